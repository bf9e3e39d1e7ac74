/* Case 48: with the most requests, or the most tokens, in flight, one more is an overflow: nothing is
 * counted, and nothing borrowed from the next field. */

#include "check.h"

static const uint32_t MOST_REQUESTS = 1048575, MOST_TOKENS = UINT32_MAX;

static ek_pool *pool;
static ek_worker_id full, other;

static void counts(uint32_t requests, uint32_t tokens)
{
    ek_worker_stats row = stats(pool, full);
    CHECK(row.in_flight == requests && row.tokens == tokens && row.live_tokens == tokens);
    CHECK(row.state == EK_WORKER_ACTIVE && stats(pool, other).in_flight == 0);
    CHECK(totals(pool).in_flight == requests);
}

/* Each way to one more on the full worker. */
static void refuses_one_more(uint64_t tokens, uint32_t requests_now, uint32_t tokens_now)
{
    ek_picker *picker;
    ek_ticket ticket = {1, 2}, elsewhere;
    ek_request request = new_request();

    OK(ek_picker_new(pool, 0, &picker));
    request.candidates = &full;
    request.candidate_count = 1;
    request.tokens = tokens;
    for (uint32_t policy = EK_POLICY_DEFAULT; policy <= EK_POLICY_CONSISTENT_HASHING; policy++) {
        request.policy = policy;
        GIVES(EK_ERR_OVERFLOW, ek_pool_dispatch(pool, &request, &ticket));
        GIVES(EK_ERR_OVERFLOW, ek_picker_dispatch(picker, &request, &ticket));
    }
    GIVES(EK_ERR_OVERFLOW, ek_pool_begin(pool, full, tokens, &ticket));
    CHECK(ticket.worker == 1 && ticket.opaque == 2);
    OK(ek_pool_begin(pool, other, tokens, &elsewhere));
    GIVES(EK_ERR_OVERFLOW, ek_pool_retarget(pool, &elsewhere, full));
    CHECK(elsewhere.worker == other && ek_ticket_tokens(&elsewhere) == tokens);
    OK(ek_pool_finish(pool, &elsewhere));
    counts(requests_now, tokens_now);
    ek_picker_free(picker);
}

int main(void)
{
    ek_ticket ticket, large;

    pool = new_pool();
    full = add(pool, 1);
    other = add(pool, 2);

    for (uint32_t i = 1; i < MOST_REQUESTS; i++)
        OK(ek_pool_begin(pool, full, 1, &ticket));
    OK(ek_pool_begin(pool, full, 1, &large));
    counts(MOST_REQUESTS, MOST_REQUESTS);
    refuses_one_more(0, MOST_REQUESTS, MOST_REQUESTS);

    /* The most of both. */
    OK(ek_pool_grow(pool, &large, MOST_TOKENS - MOST_REQUESTS));
    counts(MOST_REQUESTS, MOST_TOKENS);
    refuses_one_more(1, MOST_REQUESTS, MOST_TOKENS);
    GIVES(EK_ERR_OVERFLOW, ek_pool_grow(pool, &ticket, 1));
    GIVES(EK_ERR_OVERFLOW, ek_pool_grow(pool, &large, MOST_TOKENS));
    counts(MOST_REQUESTS, MOST_TOKENS);
    OK(ek_pool_finish(pool, &ticket));
    counts(MOST_REQUESTS - 1, MOST_TOKENS - 1);
    refuses_one_more(2, MOST_REQUESTS - 1, MOST_TOKENS - 1);
    for (uint32_t i = 2; i < MOST_REQUESTS; i++)
        OK(ek_pool_finish_worker(pool, full, 1));
    counts(1, MOST_TOKENS - MOST_REQUESTS + 1);

    /* The most tokens alone. */
    OK(ek_pool_grow(pool, &large, MOST_REQUESTS - 1));
    counts(1, MOST_TOKENS);
    refuses_one_more(1, 1, MOST_TOKENS);
    OK(ek_pool_begin(pool, full, 0, &ticket));
    GIVES(EK_ERR_OVERFLOW, ek_pool_grow(pool, &ticket, 1));
    OK(ek_pool_finish(pool, &large));
    counts(1, 0);
    OK(ek_pool_finish(pool, &ticket));
    counts(0, 0);
    CHECK(totals(pool).anomalies == 0);
    ek_pool_free(pool);
    return 0;
}
