/* Case 43: requests end, and others are chosen, in destructors of threads that end and in a handler
 * of exit. */
#define _POSIX_C_SOURCE 200112L

#include "threads.h"

#include <threads.h>

enum { THREADS = 50 };

static ek_pool *pool;
static pthread_key_t posix_key;
static tss_t standard_key;
static ek_ticket of_threads[THREADS][2], of_process;
static atomic_uint ended;

/* The whole of a router's life, and an error with its words, in one that is about to end. */
static void end(void *ticket)
{
    ek_picker *picker;
    ek_ticket other;
    ek_worker_id worker;

    OK(ek_pool_finish(pool, (ek_ticket *)ticket));
    GIVES(EK_ERR_STALE, ek_pool_finish(pool, (ek_ticket *)ticket));
    SAYS("ended already");
    OK(ek_pool_pick(pool, NULL, &worker));
    OK(ek_pool_dispatch(pool, NULL, &other));
    OK(ek_pool_finish(pool, &other));
    OK(ek_picker_new(pool, 0, &picker));
    OK(ek_picker_dispatch(picker, NULL, &other));
    OK(ek_pool_finish(pool, &other));
    ek_picker_free(picker);
    atomic_fetch_add(&ended, 1);
}

static void *hold(void *tickets)
{
    ek_ticket *own = (ek_ticket *)tickets;
    OK(ek_pool_dispatch(pool, NULL, &own[0]));
    OK(ek_pool_dispatch(pool, NULL, &own[1]));
    CHECK(pthread_setspecific(posix_key, &own[0]) == 0);
    CHECK(tss_set(standard_key, &own[1]) == thrd_success);
    return NULL;
}

/* Here main has returned. */
static void at_exit(void)
{
    uint64_t finished = totals(pool).finished;
    CHECK(totals(pool).in_flight == 1);
    end(&of_process);
    CHECK(totals(pool).in_flight == 0 && totals(pool).finished == finished + 3);
    ek_pool_free(pool);
    puts("ended at exit");
}

int main(void)
{
    CHECK(atexit(at_exit) == 0);
    CHECK(pthread_key_create(&posix_key, end) == 0);
    CHECK(tss_create(&standard_key, end) == thrd_success);
    pool = new_pool();
    for (uint64_t key = 0; key < 4; key++)
        add(pool, key);
    for (int i = 0; i < THREADS; i++)
        join(start(hold, of_threads[i]));
    CHECK(atomic_load(&ended) == 2 * THREADS);
    CHECK(totals(pool).in_flight == 0 && totals(pool).finished == 2 * THREADS * 3);
    OK(ek_pool_dispatch(pool, NULL, &of_process));
    return 0;
}
