/* 16 threads do all that a router may do, all at once, to one pool; its first argument says how often
 * (each of them). Requests also end on other threads than they began on, and after their worker was
 * removed or abandoned. At the end every count is 0, and the sums agree with what the threads saw. */

#include "threads.h"

enum { THREADS = 16, KEYS = 24, CAPACITY = 20, HELD = 32, SHELF = 64 };

/* What one thread did, by the statuses that it got. */
typedef struct {
    uint64_t begun, ended, moved, stale, saturated, rejected, busy;
} sums;

typedef struct {
    uint64_t random;
    ek_picker *picker;
    ek_poll *poll;
    ek_ticket held[HELD];
    unsigned begun_polls;
    sums did;
} router;

static ek_pool *pool;
static unsigned all_rounds;

/* Tickets for whoever takes them next. */
static ek_ticket shelf[SHELF];
static pthread_mutex_t shelf_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t below(router *own, uint64_t limit)
{
    return next_random(&own->random) % limit;
}

/* The worker of some key, or 0 if it is not there. */
static ek_worker_id some_worker(router *own)
{
    ek_worker_id worker = 0;
    int32_t status = ek_pool_find(pool, below(own, KEYS), &worker);
    CHECK(status == EK_OK || status == EK_ERR_UNKNOWN);
    return worker;
}

/* The change was made, or refused for one of two reasons, or others kept changing for a second. */
static void change(router *own, int32_t status, int32_t reason, int32_t other_reason)
{
    CHECK(status == EK_OK || status == reason || status == other_reason || status == EK_ERR_BUSY);
    own->did.busy += status == EK_ERR_BUSY;
}

static void dispatch(router *own, ek_ticket *place)
{
    ek_request request = new_request();
    ek_worker_id excluded[2], picked;
    int32_t status;

    request.policy = (uint32_t)below(own, 9);
    request.tokens = below(own, 5000);
    if (below(own, 4) == 0) {
        excluded[0] = some_worker(own);
        excluded[1] = some_worker(own);
        request.excluded = excluded;
        request.excluded_count = 2;
    }
    switch (below(own, 4)) {
    case 0:
        status = ek_pool_dispatch(pool, &request, place);
        break;
    case 1:
        status = ek_pool_pick(pool, &request, &picked);
        if (status != EK_OK)
            picked = 0;
        status = ek_pool_begin(pool, picked, request.tokens, place);
        CHECK(status == EK_OK || status == EK_ERR_UNKNOWN || status == EK_ERR_SATURATED);
        own->did.begun += status == EK_OK;
        return;
    default:
        status = ek_picker_dispatch(own->picker, &request, place);
        break;
    }
    CHECK(status == EK_OK || status == EK_ERR_EMPTY || status == EK_ERR_SATURATED);
    own->did.begun += status == EK_OK;
    own->did.saturated += status == EK_ERR_SATURATED;
    if (status == EK_OK) {
        CHECK(place->worker != 0 && ek_ticket_tokens(place) == request.tokens);
        for (size_t i = 0; i < request.excluded_count; i++)
            CHECK(place->worker != excluded[i]);
    }
}

static void end(router *own, ek_ticket *ticket)
{
    int32_t status = below(own, 4) == 0
        ? ek_pool_finish_worker(pool, ticket->worker, ek_ticket_tokens(ticket))
        : ek_pool_finish(pool, ticket);
    CHECK(status == EK_OK || status == EK_ERR_STALE);
    own->did.ended += status == EK_OK;
    own->did.stale += status == EK_ERR_STALE;
    ticket->worker = ticket->opaque = 0;
}

static void grow_or_move(router *own, ek_ticket *ticket)
{
    ek_worker_id from = ticket->worker, to = some_worker(own);
    uint64_t tokens = ek_ticket_tokens(ticket);
    int32_t status;
    if (below(own, 2) == 0) {
        status = ek_pool_grow(pool, ticket, 100);
        CHECK(status == EK_OK || status == EK_ERR_STALE);
        CHECK(ek_ticket_tokens(ticket) == (status == EK_OK ? tokens + 100 : tokens));
    } else {
        status = ek_pool_retarget(pool, ticket, to);
        CHECK(status == EK_OK || status == EK_ERR_STALE || status == EK_ERR_SATURATED ||
              status == EK_ERR_UNKNOWN);
        CHECK(ticket->worker == (status == EK_OK ? to : from));
        own->did.moved += status == EK_OK && from != to;
    }
    own->did.stale += status == EK_ERR_STALE;
}

static void exchange_with_shelf(router *own, ek_ticket *ticket)
{
    ek_ticket *place = &shelf[below(own, SHELF)], taken;
    CHECK(pthread_mutex_lock(&shelf_lock) == 0);
    taken = *place;
    *place = *ticket;
    CHECK(pthread_mutex_unlock(&shelf_lock) == 0);
    *ticket = taken;
}

static void report(router *own)
{
    ek_load loads[KEYS];
    size_t rejected = 0, count = below(own, KEYS);
    int32_t status;
    for (size_t i = 0; i < count; i++) {
        ek_load load = {some_worker(own), below(own, 100000), 1, 1, below(own, 3)};
        loads[i] = load;
    }
    if (own->begun_polls) {
        status = ek_poll_publish(own->poll, loads, sizeof *loads, count, &rejected);
        own->begun_polls = status != EK_OK;
    } else if (below(own, 2) == 0) {
        status = ek_poll_begin(own->poll);
        own->begun_polls = status == EK_OK;
    } else {
        status = ek_pool_publish(pool, loads, sizeof *loads, count, &rejected);
    }
    change(own, status, EK_OK, EK_OK);
    own->did.rejected += rejected;
}

static void change_members(router *own)
{
    ek_worker_config config = worker_config(), configs[KEYS / 2];
    ek_worker_id worker = some_worker(own), added;
    uint64_t key = below(own, KEYS), keys[KEYS];
    size_t count = 0;

    config.weight = (uint32_t)below(own, 4);
    config.max_in_flight = (uint32_t)below(own, 3) * 8 + 8;
    config.fresh = (uint32_t)below(own, 2);
    config.label = "10.0.0.1:30000@7";
    switch (below(own, 16)) {
    case 0:
    case 1:
        change(own, ek_pool_remove(pool, worker), EK_ERR_UNKNOWN, EK_ERR_UNKNOWN);
        break;
    case 2:
        change(own, ek_pool_abandon(pool, worker), EK_ERR_UNKNOWN, EK_ERR_UNKNOWN);
        break;
    case 3:
        change(own, ek_pool_update(pool, worker, 7, &config), EK_ERR_UNKNOWN, EK_ERR_UNKNOWN);
        break;
    case 4:
    case 5:
        change(own, ek_pool_veto(pool, worker, 1u << below(own, 3), (uint32_t)below(own, 2)),
               EK_ERR_UNKNOWN, EK_ERR_UNKNOWN);
        break;
    case 6:
        while (count < KEYS / 2) {
            keys[count] = (key + count) % KEYS;
            configs[count++] = config;
        }
        change(own, ek_pool_set_members(pool, keys, configs, sizeof *configs, count), EK_ERR_FULL, EK_ERR_FULL);
        break;
    case 7:
    case 8:
    case 9:
        change(own, ek_pool_ensure(pool, key, &config, &added), EK_ERR_FULL, EK_ERR_FULL);
        break;
    default:
        change(own, ek_pool_add(pool, key, &config, &added), EK_ERR_EXISTS, EK_ERR_FULL);
        break;
    }
}

static void watch(void)
{
    ek_worker_stats rows[CAPACITY];
    size_t count;
    OK(ek_pool_stats(pool, rows, sizeof *rows, CAPACITY, &count));
    CHECK(count <= CAPACITY);
    for (size_t row = 0; row < count; row++) {
        CHECK(rows[row].key < KEYS && ek_worker_slot(rows[row].worker) < CAPACITY);
        CHECK(rows[row].in_flight <= THREADS * (HELD + 1) + SHELF);
    }
    CHECK(totals(pool).workers + totals(pool).draining <= 2 * CAPACITY);
}

static void *route(void *argument)
{
    router *own = (router *)argument;
    OK(ek_picker_new(pool, 0, &own->picker));
    OK(ek_poll_new(pool, NULL, EK_ALL, &own->poll));
    for (unsigned round = 0; round < all_rounds; round++) {
        ek_ticket *ticket = &own->held[below(own, HELD)];
        uint64_t what = below(own, 100);
        if (what == 0) {
            change_members(own);
        } else if (what == 1) {
            report(own);
        } else if (what == 2) {
            watch();
        } else if (ticket->worker == 0) {
            dispatch(own, ticket);
        } else if (what < 20) {
            grow_or_move(own, ticket);
        } else if (what < 30) {
            exchange_with_shelf(own, ticket);
        } else {
            end(own, ticket);
        }
    }
    for (int i = 0; i < HELD; i++)
        if (own->held[i].worker != 0)
            end(own, &own->held[i]);
    ek_poll_free(own->poll);
    ek_picker_free(own->picker);
    return NULL;
}

int main(int argc, char **argv)
{
    static router routers[THREADS];
    pthread_t threads[THREADS];
    ek_pool_config config;
    sums all = {0, 0, 0, 0, 0, 0, 0};

    all_rounds = rounds(argc, argv, 20000);
    OK(ek_pool_config_init(&config));
    config.capacity = CAPACITY;
    OK(ek_pool_new(&config, &pool));
    for (uint64_t key = 0; key < KEYS / 2; key++)
        add(pool, key);
    for (int i = 0; i < THREADS; i++) {
        routers[i].random = (uint64_t)i + 1;
        threads[i] = start(route, &routers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        join(threads[i]);
    for (int i = 0; i < SHELF; i++)
        if (shelf[i].worker != 0)
            end(&routers[0], &shelf[i]);
    for (int i = 0; i < THREADS; i++) {
        const sums *did = &routers[i].did;
        all.begun += did->begun;
        all.ended += did->ended;
        all.moved += did->moved;
        all.stale += did->stale;
        all.saturated += did->saturated;
        all.rejected += did->rejected;
        all.busy += did->busy;
    }

    ek_worker_stats rows[CAPACITY];
    size_t count;
    OK(ek_pool_stats(pool, rows, sizeof *rows, CAPACITY, &count));
    for (size_t row = 0; row < count; row++)
        CHECK(rows[row].in_flight == 0 && rows[row].tokens == 0);
    ek_pool_totals sum = totals(pool);
    printf("%llu begun, %llu ended, %llu moved, %llu abandoned, %llu stale, %llu saturated, %llu busy\n",
           (unsigned long long)all.begun, (unsigned long long)all.ended,
           (unsigned long long)all.moved, (unsigned long long)sum.abandoned,
           (unsigned long long)all.stale, (unsigned long long)all.saturated,
           (unsigned long long)all.busy);
    CHECK(sum.in_flight == 0 && sum.draining == 0 && sum.workers == count);
    CHECK(sum.finished == all.ended);
    CHECK(all.begun == all.ended + sum.abandoned);
    CHECK(sum.anomalies == all.stale);
    CHECK(sum.saturated == all.saturated);
    CHECK(sum.rejected_loads == all.rejected);
    ek_pool_free(pool);
    return 0;
}
