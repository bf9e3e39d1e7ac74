/* Checks that say where and why, and end the program; for C and C++. */
#ifndef CHECK_H
#define CHECK_H

#include "evenkeel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define CHECK(condition) check(__FILE__, __LINE__, #condition, (condition))
/* The call returns this status. */
#define GIVES(expected, call) check_status(__FILE__, __LINE__, #call, (expected), (call))
#define OK(call) GIVES(EK_OK, call)

static inline void check(const char *file, int line, const char *condition, int holds)
{
    if (!holds) {
        fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
        _Exit(1); /* also in a destructor or in a handler of exit */
    }
}

static inline void check_status(const char *file, int line, const char *call, int32_t expected,
                                int32_t given)
{
    if (given != expected) {
        char text[512];
        ek_error_message(text, sizeof text);
        fprintf(stderr, "%s:%d: %s\n  expected: %s\n  given: %s\n  last error: %s\n", file, line,
                call, ek_status_str(expected), ek_status_str(given), text);
        _Exit(1);
    }
}

/* This thread's last error has these words in it. */
#define SAYS(words) check_words(__FILE__, __LINE__, (words))

static inline void check_words(const char *file, int line, const char *words)
{
    char text[512];
    OK(ek_error_message(text, sizeof text));
    if (strstr(text, words) == NULL) {
        fprintf(stderr, "%s:%d: last error: %s\n  without: %s\n", file, line, text, words);
        _Exit(1);
    }
}

/* How often a program does its work: as its first argument says, for checkers that slow it down. */
static inline unsigned rounds(int argc, char **argv, unsigned usual)
{
    return argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : usual;
}

/* Bytes that are allocated now, where the C library tells. */
static inline size_t allocated(void)
{
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    struct mallinfo2 all = mallinfo2();
    return all.uordblks + all.hblkhd;
#else
    return 0;
#endif
}

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline ek_pool *new_pool(void)
{
    ek_pool *pool;
    OK(ek_pool_new(NULL, &pool));
    return pool;
}

static inline ek_worker_id add(ek_pool *pool, uint64_t key)
{
    ek_worker_id worker;
    OK(ek_pool_add(pool, key, NULL, &worker));
    return worker;
}

static inline ek_worker_config worker_config(void)
{
    ek_worker_config config;
    OK(ek_worker_config_init(&config));
    return config;
}

static inline ek_request new_request(void)
{
    ek_request request;
    OK(ek_request_init(&request));
    return request;
}

static inline ek_pool_totals totals(const ek_pool *pool)
{
    ek_pool_totals all;
    OK(ek_pool_totals_get(pool, &all, sizeof all));
    return all;
}

/* The statistics of one worker, which the pool has. */
static inline ek_worker_stats stats(const ek_pool *pool, ek_worker_id worker)
{
    ek_worker_stats rows[64];
    size_t count;
    OK(ek_pool_stats(pool, rows, sizeof *rows, 64, &count));
    for (size_t row = 0; row < count && row < 64; row++)
        if (rows[row].worker == worker)
            return rows[row];
    fprintf(stderr, "no statistics of worker %llx\n", (unsigned long long)worker);
    _Exit(1);
}

#endif
