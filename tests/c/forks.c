/* Case 42: a child that was forked while other threads publish and change the pool picks, publishes
 * and frees, all within two seconds. */
#define _POSIX_C_SOURCE 200112L

#include "threads.h"

#include <sys/wait.h>
#include <unistd.h>

/* A child that has not ended by then has hung. Checkers make it slower. */
#ifndef SECONDS
#define SECONDS 2
#endif

enum { KEPT = 16, COMING_AND_GOING = 8 };

static ek_pool *pool;
static ek_picker *picker;
static ek_poll *poll;
static atomic_uint done;

static void *publish_beside_forks(void *none)
{
    uint64_t keys[KEPT + COMING_AND_GOING];
    (void)none;
    for (uint64_t key = 0; key < KEPT + COMING_AND_GOING; key++)
        keys[key] = key;
    while (!atomic_load(&done)) {
        size_t rejected;
        OK(ek_pool_publish(pool, NULL, 0, 0, &rejected));
        OK(ek_pool_set_members(pool, keys, NULL, 0, KEPT + COMING_AND_GOING));
        OK(ek_pool_set_members(pool, keys, NULL, 0, KEPT));
    }
    return NULL;
}

static void live(void)
{
    ek_worker_id worker, own;
    ek_ticket ticket, other;
    size_t rejected;
    uint64_t before = totals(pool).in_flight;

    OK(ek_pool_pick(pool, NULL, &worker));
    OK(ek_picker_pick(picker, NULL, &worker));
    OK(ek_pool_dispatch(pool, NULL, &ticket));
    OK(ek_picker_dispatch(picker, NULL, &other));
    CHECK(totals(pool).in_flight == before + 2);
    OK(ek_pool_finish(pool, &ticket));
    OK(ek_pool_finish(pool, &other));
    OK(ek_pool_find(pool, 0, &worker));
    ek_load load = {worker, 5, 1, 1, 0};
    OK(ek_pool_publish(pool, &load, sizeof load, 1, &rejected));
    OK(ek_poll_begin(poll));
    OK(ek_poll_publish(poll, &load, sizeof load, 1, &rejected));
    own = add(pool, 1000);
    OK(ek_pool_begin(pool, own, 1, &ticket));
    OK(ek_pool_remove(pool, own));
    OK(ek_pool_finish(pool, &ticket));
    CHECK(totals(pool).in_flight == before);
    ek_poll_free(poll);
    ek_picker_free(picker);
    ek_pool_free(pool);
}

int main(int argc, char **argv)
{
    ek_ticket held;

    pool = new_pool();
    for (uint64_t key = 0; key < KEPT; key++)
        add(pool, key);
    OK(ek_picker_new(pool, 0, &picker));
    OK(ek_poll_new(pool, NULL, EK_ALL, &poll));
    OK(ek_pool_dispatch(pool, NULL, &held));
    pthread_t publisher = start(publish_beside_forks, NULL);
    for (unsigned round = rounds(argc, argv, 100); round > 0; round--) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(SECONDS);
            live();
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    atomic_store(&done, 1);
    join(publisher);
    OK(ek_pool_finish(pool, &held));
    live();
    return 0;
}
