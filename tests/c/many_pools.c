/* Case 41: 5,000 pools, each used from the same 8 threads and then freed, leave neither memory nor
 * thread keys behind. */
#define _POSIX_C_SOURCE 200112L

#include "threads.h"

enum { THREADS = 8, WORKERS = 4, WARM = 100 };

static ek_pool *pool;
static unsigned pools;
static pthread_barrier_t made, used;

static void *use(void *none)
{
    (void)none;
    for (unsigned i = 0; i < pools; i++) {
        ek_picker *picker;
        ek_poll *poll;
        ek_ticket one, other;
        size_t rejected;
        pthread_barrier_wait(&made);
        OK(ek_picker_new(pool, 0, &picker));
        OK(ek_poll_new(pool, NULL, EK_ALL, &poll));
        OK(ek_poll_begin(poll));
        OK(ek_pool_dispatch(pool, NULL, &one));
        OK(ek_picker_dispatch(picker, NULL, &other));
        OK(ek_poll_publish(poll, NULL, 0, 0, &rejected));
        GIVES(EK_ERR_UNKNOWN, ek_pool_remove(pool, 1));
        OK(ek_pool_finish(pool, &one));
        OK(ek_pool_finish(pool, &other));
        ek_poll_free(poll);
        ek_picker_free(picker);
        pthread_barrier_wait(&used);
    }
    return NULL;
}

static unsigned free_thread_keys(void)
{
    pthread_key_t keys[2048];
    unsigned made_keys = 0;
    while (made_keys < 2048 && pthread_key_create(&keys[made_keys], NULL) == 0)
        made_keys++;
    for (unsigned i = 0; i < made_keys; i++)
        CHECK(pthread_key_delete(keys[i]) == 0);
    return made_keys;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    unsigned keys = free_thread_keys();
    size_t memory = 0;

    pools = rounds(argc, argv, 5000);
    CHECK(pthread_barrier_init(&made, NULL, THREADS + 1) == 0);
    CHECK(pthread_barrier_init(&used, NULL, THREADS + 1) == 0);
    for (int i = 0; i < THREADS; i++)
        threads[i] = start(use, NULL);
    for (unsigned i = 0; i < pools; i++) {
        pool = new_pool();
        for (uint64_t key = 0; key < WORKERS; key++)
            add(pool, key);
        pthread_barrier_wait(&made);
        pthread_barrier_wait(&used);
        CHECK(totals(pool).in_flight == 0 && totals(pool).finished == 2 * THREADS);
        ek_pool_free(pool);
        if (i == WARM)
            memory = allocated();
    }
    /* Less than one byte a pool. */
    CHECK(pools <= WARM || allocated() < memory + pools);
    for (int i = 0; i < THREADS; i++)
        join(threads[i]);
    CHECK(free_thread_keys() >= keys - 2); /* a first use may take one for all pools */
    return 0;
}
