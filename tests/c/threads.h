/* Threads and atomics, for programs that are C and C++ alike. */
#ifndef THREADS_H
#define THREADS_H

#include "check.h"

#include <pthread.h>
#ifdef __cplusplus
#include <atomic>
using std::atomic_fetch_add;
using std::atomic_load;
using std::atomic_store;
using std::atomic_uint;
#else
#include <stdatomic.h>
#endif

static inline pthread_t start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    return thread;
}

static inline void join(pthread_t thread)
{
    CHECK(pthread_join(thread, NULL) == 0);
}

#endif
