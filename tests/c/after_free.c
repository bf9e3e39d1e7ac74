/* Case 47: pickers and polls go on when their pool was freed, on whichever thread, and the memory
 * goes with the last of them. */

#include "threads.h"

enum { WARM = 20 };

static ek_picker *picker;
static ek_poll *poll;
static ek_worker_id worker;

static void *go_on(void *none)
{
    ek_load load = {worker, 1, 1, 1, 0};
    ek_ticket ticket;
    ek_worker_id chosen;
    size_t rejected;

    (void)none;
    OK(ek_picker_pick(picker, NULL, &chosen));
    CHECK(chosen == worker);
    OK(ek_poll_begin(poll));
    OK(ek_picker_dispatch(picker, NULL, &ticket));
    CHECK(ticket.worker == worker);
    OK(ek_poll_publish(poll, &load, sizeof load, 1, &rejected));
    CHECK(rejected == 0);
    return NULL;
}

static void once(unsigned picker_goes_first)
{
    ek_pool *pool = new_pool();
    worker = add(pool, 1);
    OK(ek_picker_new(pool, 0, &picker));
    OK(ek_poll_new(pool, NULL, EK_ALL, &poll));
    OK(ek_pool_ref(pool));
    ek_pool_free(pool);
    CHECK(totals(pool).workers == 1);
    ek_pool_free(pool);
    go_on(NULL);
    join(start(go_on, NULL));
    if (picker_goes_first) {
        ek_picker_free(picker);
        OK(ek_poll_begin(poll));
        ek_poll_free(poll);
    } else {
        ek_poll_free(poll);
        OK(ek_picker_pick(picker, NULL, &worker));
        ek_picker_free(picker);
    }
}

int main(int argc, char **argv)
{
    unsigned all_rounds = rounds(argc, argv, 500);
    size_t memory = 0;
    for (unsigned round = 0; round < all_rounds; round++) {
        once(round % 2);
        if (round == WARM)
            memory = allocated();
    }
    /* Less than the smallest object each. */
    CHECK(all_rounds <= WARM || allocated() < memory + 64 * (all_rounds - WARM));
    return 0;
}
