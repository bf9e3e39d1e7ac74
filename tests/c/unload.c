/* Case 43: the library that the first argument names is loaded, used, and unloaded, 1,000 times (or
 * as often as the second says), while threads that used it still run and end only afterwards. A
 * child that is forked then finds nothing of it. */
#define _POSIX_C_SOURCE 200112L

#include "threads.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 2, BETWEEN_FORKS = 50 };

static void *library;
static pthread_barrier_t used, unloaded;

static void load(const char *name, void *function, size_t size)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol != NULL && size == sizeof symbol);
    memcpy(function, &symbol, size);
}
/* A pointer to this function of the library. */
#define LOAD(name) \
    __typeof__(name) *name##_loaded; \
    load(#name, &name##_loaded, sizeof name##_loaded)

static void *use(void *none)
{
    LOAD(ek_pool_new);
    LOAD(ek_pool_add);
    LOAD(ek_pool_dispatch);
    LOAD(ek_pool_finish);
    LOAD(ek_picker_new);
    LOAD(ek_picker_pick);
    LOAD(ek_picker_free);
    LOAD(ek_error_message);
    LOAD(ek_pool_free);
    ek_pool *pool;
    ek_picker *picker;
    ek_worker_id worker;
    ek_ticket ticket;
    char text[64];

    (void)none;
    CHECK(ek_pool_new_loaded(NULL, &pool) == EK_OK);
    CHECK(ek_pool_add_loaded(pool, 1, NULL, &worker) == EK_OK);
    CHECK(ek_pool_dispatch_loaded(pool, NULL, &ticket) == EK_OK);
    CHECK(ek_pool_finish_loaded(pool, &ticket) == EK_OK);
    CHECK(ek_pool_finish_loaded(pool, &ticket) == EK_ERR_STALE);
    CHECK(ek_error_message_loaded(text, sizeof text) == EK_OK && text[0] != '\0');
    CHECK(ek_picker_new_loaded(pool, 0, &picker) == EK_OK);
    CHECK(ek_picker_pick_loaded(picker, NULL, &worker) == EK_OK);
    ek_picker_free_loaded(picker);
    ek_pool_free_loaded(pool);
    pthread_barrier_wait(&used);
    pthread_barrier_wait(&unloaded);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    CHECK(pthread_barrier_init(&used, NULL, THREADS + 1) == 0);
    CHECK(pthread_barrier_init(&unloaded, NULL, THREADS + 1) == 0);
    for (unsigned round = rounds(argc - 1, argv + 1, 1000); round > 0; round--) {
        pthread_t threads[THREADS];
        library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(library != NULL);
        for (int i = 0; i < THREADS; i++)
            threads[i] = start(use, NULL);
        pthread_barrier_wait(&used);
        CHECK(dlclose(library) == 0);
        CHECK(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL); /* it is gone indeed */
        if (round % BETWEEN_FORKS == 0) {
            int status;
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        pthread_barrier_wait(&unloaded);
        for (int i = 0; i < THREADS; i++)
            join(threads[i]);
    }
    return 0;
}
