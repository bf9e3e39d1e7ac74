/* Case 39: a panic inside is a status, the host lives, and the pool still works. This program's clock
 * gives times that the library, built with checks of overflow, can't count with. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "check.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int beyond_all_times;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (beyond_all_times) {
        time->tv_sec = INT64_MAX;
        time->tv_nsec = 0;
        return 0;
    }
    return (int)syscall(SYS_clock_gettime, clock, time);
}

int main(void)
{
    ek_pool_config config;
    ek_pool *pool;
    ek_picker *picker;
    ek_poll *poll;
    ek_ticket ticket = {1, 2};
    ek_worker_id worker;
    size_t rejected = 99;

    OK(ek_pool_config_init(&config));
    config.load_max_age_ms = 1000; /* so that choices need the time */
    OK(ek_pool_new(&config, &pool));
    worker = add(pool, 1);
    OK(ek_picker_new(pool, 0, &picker));
    OK(ek_poll_new(pool, NULL, EK_ALL, &poll));
    ek_load load = {worker, 1, 1, 1, 0};
    OK(ek_pool_publish(pool, &load, sizeof load, 1, &rejected));
    ek_pool_totals before = totals(pool);

    beyond_all_times = 1;
    GIVES(EK_ERR_PANIC, ek_pool_publish(pool, &load, sizeof load, 1, &rejected));
    SAYS("a fault inside evenkeel: attempt to multiply with overflow");
    GIVES(EK_ERR_PANIC, ek_poll_begin(poll));
    GIVES(EK_ERR_PANIC, ek_pool_dispatch(pool, NULL, &ticket));
    GIVES(EK_ERR_PANIC, ek_picker_dispatch(picker, NULL, &ticket));
    GIVES(EK_ERR_PANIC, ek_picker_pick(picker, NULL, &worker));
    CHECK(ticket.worker == 1 && ticket.opaque == 2);
    beyond_all_times = 0;

    ek_pool_totals after = totals(pool);
    after.version = before.version; /* the view is published again after each */
    CHECK(memcmp(&before, &after, sizeof after) == 0);
    OK(ek_poll_begin(poll));
    OK(ek_poll_publish(poll, &load, sizeof load, 1, &rejected));
    OK(ek_pool_dispatch(pool, NULL, &ticket));
    OK(ek_pool_finish(pool, &ticket));
    OK(ek_picker_dispatch(picker, NULL, &ticket));
    OK(ek_pool_finish(pool, &ticket));
    add(pool, 2);
    ek_poll_free(poll);
    ek_picker_free(picker);
    ek_pool_free(pool);
    return 0;
}
