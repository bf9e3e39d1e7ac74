/* What comes and goes with requests and reports allocates nothing, also where it is refused. */

#include "check.h"

static unsigned allocations;

/* The C library's own, under the names that it keeps for this. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

void *malloc(size_t size)
{
    allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    allocations++;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size)
{
    allocations++;
    return __libc_realloc(old, size);
}

enum { WORKERS = 100 };

int main(void)
{
    ek_pool *pool = new_pool();
    ek_picker *picker;
    ek_poll *poll;
    ek_worker_id workers[WORKERS], worker;
    ek_load loads[WORKERS];
    ek_ticket ticket, other;
    ek_request request = new_request();
    size_t rejected;

    OK(ek_picker_new(pool, 0, &picker));
    OK(ek_poll_new(pool, NULL, EK_ALL, &poll));
    CHECK(allocations > 0);
    for (uint64_t i = 0; i < WORKERS; i++) {
        workers[i] = add(pool, i);
        loads[i] = (ek_load){workers[i], i, 1, 1, 0};
    }
    request.tokens = 10;
    request.excluded = workers;

    allocations = 0;
    for (uint32_t round = 0; round < 1000; round++) {
        request.policy = round % 9;
        request.excluded_count = round % 3;
        request.candidates = round % 2 ? workers + 1 : NULL;
        request.candidate_count = round % 2 ? 20 : EK_ALL;
        OK(ek_pool_pick(pool, &request, &worker));
        OK(ek_picker_pick(picker, &request, &worker));
        OK(ek_poll_begin(poll));
        OK(ek_pool_dispatch(pool, &request, &ticket));
        OK(ek_picker_dispatch(picker, &request, &other));
        OK(ek_pool_grow(pool, &ticket, 5));
        OK(ek_pool_retarget(pool, &ticket, workers[round % WORKERS]));
        OK(ek_poll_publish(poll, loads, sizeof *loads, WORKERS, &rejected));
        OK(ek_pool_publish(pool, loads, sizeof *loads, WORKERS, &rejected));
        OK(ek_pool_finish(pool, &ticket));
        OK(ek_pool_finish(pool, &other));
        OK(ek_pool_begin(pool, worker, 7, &ticket));
        OK(ek_pool_finish_worker(pool, worker, 7));

        GIVES(EK_ERR_STALE, ek_pool_finish(pool, &ticket));
        GIVES(EK_ERR_UNKNOWN, ek_pool_begin(pool, 1, 7, &ticket));
        GIVES(EK_ERR_NULL, ek_picker_dispatch(picker, NULL, NULL));
        request.candidate_count = 0;
        GIVES(EK_ERR_EMPTY, ek_picker_dispatch(picker, &request, &ticket));
        request.policy = 9;
        GIVES(EK_ERR_INVALID, ek_pool_dispatch(pool, &request, &ticket));
    }
    CHECK(allocations == 0);

    ek_poll_free(poll);
    ek_picker_free(picker);
    ek_pool_free(pool);
    return 0;
}
