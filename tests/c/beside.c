/* Case 40: with another Rust library in the same program, which has threads and panics of its own. */

#include "check.h"

uint64_t other_sum(uint64_t limit); /* and 1, for a panic that it caught */

int main(void)
{
    ek_pool *pool = new_pool();
    ek_ticket ticket;
    add(pool, 1);
    CHECK(other_sum(10) == 46);
    OK(ek_pool_dispatch(pool, NULL, &ticket));
    OK(ek_pool_finish(pool, &ticket));
    CHECK(other_sum(3) == 4);
    ek_pool_free(pool);
    return 0;
}
