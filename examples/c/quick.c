/* A pool of four ranks: a report of their loads, requests, a rank that fails, a rank that leaves. */
#include <evenkeel.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 4, REQUESTS = 100 };

static void must(int32_t status)
{
    char text[512];
    if (status == EK_OK)
        return;
    ek_error_message(text, sizeof text);
    fprintf(stderr, "%s: %s\n", ek_status_str(status), text);
    exit(1);
}

int main(void)
{
    static const char *const labels[RANKS] = {"10.0.0.1:30000@0", "10.0.0.1:30000@1",
                                              "10.0.0.2:30000@0", "10.0.0.2:30000@1"};
    ek_pool *pool;
    ek_poll *poll;
    ek_picker *picker;
    ek_worker_id ranks[RANKS];
    ek_load loads[RANKS];
    ek_ticket tickets[REQUESTS];
    ek_request request, elsewhere;
    ek_worker_stats rows[RANKS];
    ek_pool_totals totals;
    size_t rejected, count;
    int refusals = 0;

    must(ek_pool_new(NULL, &pool));
    for (int rank = 0; rank < RANKS; rank++) {
        ek_worker_config config;
        must(ek_worker_config_init(&config));
        config.label = labels[rank];
        config.max_in_flight = 256;
        must(ek_pool_add(pool, ek_key(labels[rank]), &config, &ranks[rank]));
    }

    /* Ask the engines; what the pool counts meanwhile is credited on top of their answers. */
    must(ek_poll_new(pool, NULL, EK_ALL, &poll));
    must(ek_poll_begin(poll));
    for (int rank = 0; rank < RANKS; rank++)
        loads[rank] = (ek_load){.worker = ranks[rank], .tokens = 100000, .running = 10};
    must(ek_poll_publish(poll, loads, sizeof *loads, RANKS, &rejected));

    /* One thread's choices. A ticket is kept with its response. */
    must(ek_picker_new(pool, 0, &picker));
    must(ek_request_init(&request));
    request.tokens = 1200;
    elsewhere = request;
    elsewhere.excluded = &ranks[3];
    elsewhere.excluded_count = 1;
    for (int i = 0; i < REQUESTS; i++) {
        must(ek_picker_dispatch(picker, &request, &tickets[i]));
        if (tickets[i].worker == ranks[3] && refusals++ == 0) {
            /* It refuses one request: the next attempt goes elsewhere. */
            must(ek_pool_finish(pool, &tickets[i]));
            must(ek_picker_dispatch(picker, &elsewhere, &tickets[i]));
        }
    }

    must(ek_pool_remove(pool, ranks[0])); /* No new requests; its last ones end as always. */

    printf("%-18s %-10s %9s %7s %9s\n", "worker", "state", "in flight", "tokens", "with poll");
    must(ek_pool_stats(pool, rows, sizeof *rows, RANKS, &count));
    for (size_t row = 0; row < count && row < RANKS; row++)
        printf("%-18s %-10s %9" PRIu32 " %7" PRIu64 " %9" PRIu64 "\n", rows[row].label,
               rows[row].state == EK_WORKER_ACTIVE ? "active" : "draining", rows[row].in_flight,
               rows[row].tokens, rows[row].live_tokens);

    for (int i = 0; i < REQUESTS; i++)
        must(ek_pool_finish(pool, &tickets[i]));
    must(ek_pool_totals_get(pool, &totals, sizeof totals));
    printf("%" PRIu64 " finished, %" PRIu64 " in flight\n", totals.finished, totals.in_flight);

    ek_picker_free(picker);
    ek_poll_free(poll);
    ek_pool_free(pool);
    return rejected == 0 && count == RANKS && totals.workers == RANKS - 1 &&
                   totals.draining == 0 && totals.in_flight == 0 && totals.anomalies == 0 &&
                   totals.finished == REQUESTS + 1
               ? 0
               : 1;
}
