/* Case 45: 10,000 times statistics, totals and errors change no later choice of a seeded run. */

#include "check.h"

enum { WORKERS = 16, CHOICES = 2000 };

typedef struct {
    ek_pool *pool;
    ek_picker *picker;
} run;

static run new_run(void)
{
    ek_pool_config config;
    run made;
    OK(ek_pool_config_init(&config));
    config.seed = 7;
    OK(ek_pool_new(&config, &made.pool));
    for (uint64_t key = 0; key < WORKERS; key++)
        add(made.pool, key);
    OK(ek_picker_new(made.pool, 0, &made.picker));
    return made;
}

static uint32_t choose(run of, uint32_t policy)
{
    ek_request request = new_request();
    ek_ticket ticket;
    request.policy = policy;
    OK(ek_picker_dispatch(of.picker, &request, &ticket)); /* it stays in flight */
    return ek_worker_slot(ticket.worker);
}

static void watch(run of)
{
    ek_worker_stats rows[WORKERS];
    ek_worker_id worker;
    size_t count;
    OK(ek_pool_stats(of.pool, rows, sizeof *rows, WORKERS, &count));
    CHECK(count == WORKERS && totals(of.pool).workers == WORKERS);
    OK(ek_pool_find(of.pool, 3, &worker));
    GIVES(EK_ERR_UNKNOWN, ek_pool_find(of.pool, 99, &worker));
}

int main(int argc, char **argv)
{
    unsigned all_rounds = rounds(argc, argv, 10000);
    run watched = new_run(), unwatched = new_run();
    for (unsigned choice = 0; choice < CHOICES; choice++) {
        for (unsigned i = 0; i < all_rounds / CHOICES; i++)
            watch(watched);
        if (choice == CHOICES / 2)
            for (unsigned i = 0; i < all_rounds; i++)
                watch(watched);
        CHECK(choose(watched, choice % 6) == choose(unwatched, choice % 6));
    }
    ek_picker_free(watched.picker);
    ek_picker_free(unwatched.picker);
    ek_pool_free(watched.pool);
    ek_pool_free(unwatched.pool);
    return 0;
}
