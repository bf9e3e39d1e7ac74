/* Four threads, each with a picker of its own, send requests beside a thread that publishes loads.
 * Every worker has a cap, and every thread lets several requests run at a time. */
#include <evenkeel.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 8, THREADS = 4, REQUESTS = 50000, AT_A_TIME = 16, CAP = 7 };

static ek_pool *pool;
static ek_worker_id workers[WORKERS];
static atomic_bool stop;

static void must(int32_t status)
{
    char text[512];
    if (status == EK_OK)
        return;
    ek_error_message(text, sizeof text);
    fprintf(stderr, "%s: %s\n", ek_status_str(status), text);
    exit(1);
}

/* Keeps AT_A_TIME requests in flight; the oldest ends when the next one comes, or when all workers
 * are at their cap. */
static void *route(void *argument)
{
    ek_ticket running[AT_A_TIME] = {{0, 0}};
    unsigned oldest = 0;
    ek_picker *picker;
    ek_request request;

    (void)argument;
    must(ek_picker_new(pool, 0, &picker));
    must(ek_request_init(&request));
    request.tokens = 500;
    for (int sent = 0; sent < REQUESTS;) {
        ek_ticket *place = &running[oldest++ % AT_A_TIME];
        int32_t status;
        if (place->worker != 0)
            must(ek_pool_finish(pool, place));
        status = ek_picker_dispatch(picker, &request, place);
        if (status == EK_ERR_SATURATED)
            continue;
        must(status);
        sent++;
    }
    for (int i = 0; i < AT_A_TIME; i++)
        if (running[i].worker != 0)
            must(ek_pool_finish(pool, &running[i]));
    ek_picker_free(picker);
    return NULL;
}

/* Publishes what the engines say: here, what the pool knows anyway. */
static void *publish(void *argument)
{
    ek_poll *poll;

    (void)argument;
    must(ek_poll_new(pool, workers, WORKERS, &poll));
    while (!atomic_load(&stop)) {
        ek_worker_stats rows[WORKERS];
        ek_load loads[WORKERS];
        size_t count, rejected;
        must(ek_poll_begin(poll));
        must(ek_pool_stats(pool, rows, sizeof *rows, WORKERS, &count));
        for (size_t row = 0; row < count; row++) {
            loads[row] = (ek_load){.worker = rows[row].worker,
                                   .tokens = rows[row].tokens,
                                   .running = rows[row].in_flight};
            if (rows[row].in_flight > CAP) {
                fprintf(stderr, "%" PRIu32 " in flight, over the cap\n", rows[row].in_flight);
                exit(1);
            }
        }
        must(ek_poll_publish(poll, loads, sizeof *loads, count, &rejected));
    }
    ek_poll_free(poll);
    return NULL;
}

int main(void)
{
    pthread_t publisher, threads[THREADS];
    ek_worker_config config;
    ek_worker_stats rows[WORKERS];
    ek_pool_totals totals;
    size_t count;

    must(ek_pool_new(NULL, &pool));
    must(ek_worker_config_init(&config));
    config.max_in_flight = CAP;
    for (unsigned worker = 0; worker < WORKERS; worker++)
        must(ek_pool_add(pool, worker, &config, &workers[worker]));

    if (pthread_create(&publisher, NULL, publish, NULL) != 0)
        return 1;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, route, NULL) != 0)
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&stop, 1);
    pthread_join(publisher, NULL);

    must(ek_pool_stats(pool, rows, sizeof *rows, WORKERS, &count));
    for (size_t row = 0; row < count; row++)
        printf("worker %" PRIu64 ": %7" PRIu64 " finished, %" PRIu32 " in flight\n", rows[row].key,
               rows[row].finished, rows[row].in_flight);
    must(ek_pool_totals_get(pool, &totals, sizeof totals));
    printf("%" PRIu64 " reports, %" PRIu64 " times saturated\n", totals.version, totals.saturated);
    ek_pool_free(pool);
    return totals.finished == (uint64_t)THREADS * REQUESTS && totals.in_flight == 0 &&
                   totals.anomalies == 0
               ? 0
               : 1;
}
