/* Dispatch + finish through the C functions, on one thread: rows of the table of the benches.
 * Run it by `ci/bench.sh abi`: against the static library and the shared one, which the argument
 * names. The floor is a relaxed fetch_add + fetch_sub pair on a line that the thread owns, measured
 * in the same rounds; the ratio is the median of the rounds'. */

#define _POSIX_C_SOURCE 199309L

#include "evenkeel.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 15 };

static int pairs = 1000000;

static void check(int32_t status)
{
    if (status != EK_OK) {
        char text[512];
        ek_error_message(text, sizeof text);
        fprintf(stderr, "%s: %s\n", ek_status_str(status), text);
        exit(1);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double floor_pair(void)
{
    static _Alignas(128) atomic_uint_least64_t word;
    double start = now();
    for (int i = 0; i < pairs; i++) {
        atomic_fetch_add_explicit(&word, 1, memory_order_relaxed);
        atomic_fetch_sub_explicit(&word, 1, memory_order_relaxed);
    }
    return (now() - start) / pairs;
}

static double dispatch_finish(ek_pool *pool, ek_picker *picker, const ek_request *request)
{
    double start = now();
    for (int i = 0; i < pairs; i++) {
        ek_ticket ticket;
        check(ek_picker_dispatch(picker, request, &ticket));
        check(ek_pool_finish(pool, &ticket));
    }
    return (now() - start) / pairs;
}

static int by_value(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int argc, char **argv)
{
    static const unsigned workers[] = {8, 64};
    if (argc < 2) {
        fprintf(stderr, "usage: %s static|shared [--quick]\n", argv[0]);
        return 2;
    }
    if (argc > 2 && strcmp(argv[2], "--quick") == 0)
        pairs = 10000;
    for (size_t size = 0; size < sizeof workers / sizeof *workers; size++) {
        ek_pool *pool;
        ek_picker *picker;
        ek_worker_id worker;
        ek_request request;
        double pair[ROUNDS], ratio[ROUNDS];

        check(ek_pool_new(NULL, &pool));
        for (uint64_t key = 0; key < workers[size]; key++)
            check(ek_pool_add(pool, key, NULL, &worker));
        check(ek_picker_new(pool, 1, &picker));
        check(ek_request_init(&request));
        request.policy = EK_POLICY_P2C_TOKENS;
        request.tokens = 100;
        for (int round = 0; round < ROUNDS; round++) {
            double least = floor_pair();
            pair[round] = dispatch_finish(pool, picker, &request);
            ratio[round] = pair[round] / least;
        }
        qsort(pair, ROUNDS, sizeof *pair, by_value);
        qsort(ratio, ROUNDS, sizeof *ratio, by_value);
        printf("| power_of_two:tokens from C, %s library | %u | 1 | %.1f | %.2f | | | | | | | |\n",
               argv[1], workers[size], pair[ROUNDS / 2], ratio[ROUNDS / 2]);
        ek_picker_free(picker);
        ek_pool_free(pool);
    }
    return 0;
}
