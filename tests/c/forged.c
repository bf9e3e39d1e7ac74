/* Case 46: tickets and ids with any bytes in them give a status, and reach no count but that of a
 * worker whose id they spell out. */

#include "check.h"

enum { WORKERS = 4, HELD = 8 };

static uint64_t random_bits(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    return next_random(&state);
}

static ek_pool *pool;
static ek_worker_id workers[WORKERS];
static ek_ticket held[WORKERS][HELD];

static int is_worker(ek_worker_id id)
{
    for (int i = 0; i < WORKERS; i++)
        if (workers[i] == id)
            return 1;
    return 0;
}

static uint64_t with_random_byte(uint64_t bits)
{
    unsigned shift = (unsigned)(random_bits() % 8 * 8);
    return (bits & ~((uint64_t)0xff << shift)) | (random_bits() & 0xff) << shift;
}

/* All of it random, or one byte, or one half. */
static ek_ticket forge(void)
{
    ek_ticket ticket = held[random_bits() % WORKERS][random_bits() % HELD];
    switch (random_bits() % 5) {
    case 0:
        ticket.worker = random_bits();
        ticket.opaque = random_bits();
        break;
    case 1:
        ticket.worker = with_random_byte(ticket.worker);
        break;
    case 2:
        ticket.opaque = with_random_byte(ticket.opaque);
        break;
    case 3:
        ticket.opaque = random_bits() >> random_bits() % 64;
        break;
    default:
        ticket.worker = random_bits() & 0xffff;
        break;
    }
    return ticket;
}

static void counts_are_whole(void)
{
    for (int i = 0; i < WORKERS; i++) {
        ek_worker_stats row = stats(pool, workers[i]);
        CHECK(row.in_flight == HELD && row.tokens <= UINT32_MAX);
        CHECK(row.state == EK_WORKER_ACTIVE);
    }
    CHECK(totals(pool).workers == WORKERS && totals(pool).in_flight == WORKERS * HELD);
}

static void forged_ticket(void)
{
    ek_ticket forged = forge(), before = forged, replaced;
    int real = is_worker(forged.worker) && forged.opaque <= UINT32_MAX;
    int32_t given;
    switch (random_bits() % 3) {
    case 0:
        GIVES(real ? EK_OK : EK_ERR_STALE, ek_pool_finish(pool, &forged));
        if (real) {
            CHECK(forged.worker == 0);
            OK(ek_pool_begin(pool, before.worker, 0, &replaced));
            forged = before;
        }
        break;
    case 1:
        given = ek_pool_grow(pool, &forged, 0);
        CHECK(given == (real ? EK_OK : EK_ERR_STALE));
        break;
    default:
        given = ek_pool_retarget(pool, &forged, random_bits() | 1);
        CHECK(given == (real ? EK_ERR_UNKNOWN : EK_ERR_STALE));
        break;
    }
    CHECK(forged.worker == before.worker && forged.opaque == before.opaque);
    CHECK(ek_ticket_tokens(&forged) == before.opaque);
}

static void forged_id(void)
{
    ek_worker_id id = forge().worker, chosen;
    ek_worker_config config = worker_config();
    ek_load load = {id, 1, 1, 1, 0};
    ek_request request = new_request();
    ek_ticket ticket = held[0][0];
    ek_poll *poll;
    size_t rejected;

    CHECK(ek_worker_slot(id) < 65536);
    if (is_worker(id))
        return;
    request.candidates = &id;
    request.candidate_count = 1;
    switch (random_bits() % 10) {
    case 0: GIVES(EK_ERR_UNKNOWN, ek_pool_begin(pool, id, 1, &ticket)); break;
    case 1: GIVES(EK_ERR_STALE, ek_pool_finish_worker(pool, id, random_bits() >> 32)); break;
    case 2: GIVES(EK_ERR_UNKNOWN, ek_pool_update(pool, id, EK_FIELD_WEIGHT, &config)); break;
    case 3: GIVES(EK_ERR_UNKNOWN, ek_pool_veto(pool, id, EK_VETO_HOST, 1)); break;
    case 4: GIVES(EK_ERR_UNKNOWN, ek_pool_remove(pool, id)); break;
    case 5: GIVES(EK_ERR_UNKNOWN, ek_pool_abandon(pool, id)); break;
    case 6: GIVES(EK_ERR_UNKNOWN, ek_pool_retarget(pool, &ticket, id)); break;
    case 7: GIVES(EK_ERR_EMPTY, ek_pool_dispatch(pool, &request, &ticket)); break;
    case 8:
        request.excluded = &id;
        request.excluded_count = 1;
        request.candidate_count = EK_ALL;
        OK(ek_pool_pick(pool, &request, &chosen));
        CHECK(is_worker(chosen));
        break;
    default:
        OK(ek_poll_new(pool, &id, 1, &poll));
        OK(ek_poll_begin(poll));
        OK(ek_poll_publish(poll, &load, sizeof load, 1, &rejected));
        CHECK(rejected == 1);
        ek_poll_free(poll);
        break;
    }
    CHECK(ticket.worker == held[0][0].worker && ticket.opaque == held[0][0].opaque);
}

int main(int argc, char **argv)
{
    pool = new_pool();
    for (uint64_t i = 0; i < WORKERS; i++) {
        workers[i] = add(pool, i);
        for (int j = 0; j < HELD; j++)
            OK(ek_pool_begin(pool, workers[i], random_bits() % 100000, &held[i][j]));
    }
    for (unsigned round = rounds(argc, argv, 300000); round > 0; round--) {
        forged_ticket();
        forged_id();
        if (round % 1000 == 0)
            counts_are_whole();
    }
    counts_are_whole();
    /* Ids, generations and their tags are as before: what was held ends, and with it all tokens. */
    for (int i = 0; i < WORKERS; i++) {
        for (int j = 0; j < HELD; j++)
            OK(ek_pool_finish(pool, &held[i][j]));
        CHECK(stats(pool, workers[i]).in_flight == 0 && stats(pool, workers[i]).tokens == 0);
    }
    ek_pool_free(pool);
    return 0;
}
