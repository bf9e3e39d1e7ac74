/* R6: of two threads that finish one ticket object at once, exactly one succeeds. A model proves it
 * of the core; this is the C function. */
#define _POSIX_C_SOURCE 200112L

#include "threads.h"

#include <sched.h>

static unsigned all_rounds;

static ek_pool *pool;
static ek_ticket ticket;
static atomic_uint arrived;
static atomic_uint ended;

/* Both threads leave at about the same time, one or the other a little earlier. */
static void meet(unsigned meeting, unsigned *random)
{
    atomic_fetch_add(&arrived, 1);
    for (unsigned turns = 0; atomic_load(&arrived) < 2 * meeting; turns++)
        if (turns > 1000)
            sched_yield();
    *random = *random * 1664525 + 1013904223;
    for (volatile unsigned turns = *random >> 26; turns > 0; turns--)
        ;
}

static void *finish(void *first)
{
    unsigned random = first != NULL;
    for (unsigned round = 0; round < all_rounds; round++) {
        if (first != NULL)
            OK(ek_pool_dispatch(pool, NULL, &ticket));
        meet(2 * round + 1, &random);
        int32_t given = ek_pool_finish(pool, &ticket);
        CHECK(given == EK_OK || given == EK_ERR_STALE);
        if (given == EK_OK)
            atomic_fetch_add(&ended, 1);
        meet(2 * round + 2, &random);
        CHECK(atomic_load(&ended) == round + 1);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    ek_ticket sibling;
    int first;

    all_rounds = rounds(argc, argv, 20000);
    pool = new_pool();
    ek_worker_id worker = add(pool, 1);
    OK(ek_pool_dispatch(pool, NULL, &sibling));
    pthread_t other = start(finish, NULL);
    finish(&first);
    join(other);

    CHECK(stats(pool, worker).in_flight == 1);
    CHECK(totals(pool).finished == all_rounds);
    CHECK(totals(pool).anomalies == all_rounds);
    OK(ek_pool_finish(pool, &sibling));
    CHECK(totals(pool).in_flight == 0);
    ek_pool_free(pool);
    return 0;
}
