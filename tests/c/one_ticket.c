/* R6: of two threads that finish one ticket object at once, exactly one succeeds. A model proves it
 * of the core; this is the C function. */
#define _POSIX_C_SOURCE 200112L

#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { ROUNDS = 20000 };

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
    for (unsigned round = 0; round < ROUNDS; round++) {
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

int main(void)
{
    pthread_t other;
    ek_ticket sibling;
    int first;

    pool = new_pool();
    ek_worker_id worker = add(pool, 1);
    OK(ek_pool_dispatch(pool, NULL, &sibling));
    CHECK(pthread_create(&other, NULL, finish, NULL) == 0);
    finish(&first);
    CHECK(pthread_join(other, NULL) == 0);

    CHECK(stats(pool, worker).in_flight == 1);
    CHECK(totals(pool).finished == ROUNDS);
    CHECK(totals(pool).anomalies == ROUNDS);
    OK(ek_pool_finish(pool, &sibling));
    CHECK(totals(pool).in_flight == 0);
    ek_pool_free(pool);
    return 0;
}
