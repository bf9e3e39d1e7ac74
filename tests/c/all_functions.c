/* Every function, and what it refuses. */
#define _POSIX_C_SOURCE 200112L

#include "check.h"

static const ek_worker_id NOBODY = 0x123456789abcdef0;

static void versions_statuses_and_errors(void)
{
    char text[512], small[8];
    const char *unknown = ek_status_str(1);

    CHECK(strcmp(ek_version(), EVENKEEL_VERSION) == 0);
    CHECK(ek_abi_version() == EK_ABI_VERSION);

    memset(text, 'x', sizeof text);
    OK(ek_error_message(text, sizeof text));
    CHECK(text[0] == '\0'); /* no error so far */

    CHECK(strcmp(unknown, "unknown status") == 0);
    CHECK(ek_status_str(EK_ERR_PANIC - 1) == unknown && ek_status_str(INT32_MIN) == unknown);
    for (int32_t a = EK_ERR_PANIC; a <= EK_OK; a++) {
        CHECK(ek_status_str(a) != unknown && ek_status_str(a)[0] != '\0');
        for (int32_t b = EK_ERR_PANIC; b < a; b++)
            CHECK(strcmp(ek_status_str(a), ek_status_str(b)) != 0);
    }
    CHECK(EK_OK == 0 && EK_ERR_NULL == -1 && EK_ERR_INVALID == -2 && EK_ERR_FULL == -3);
    CHECK(EK_ERR_EXISTS == -4 && EK_ERR_UNKNOWN == -5 && EK_ERR_EMPTY == -6);
    CHECK(EK_ERR_SATURATED == -7 && EK_ERR_STALE == -8 && EK_ERR_OVERFLOW == -9);
    CHECK(EK_ERR_BUSY == -10 && EK_ERR_VERSION == -11 && EK_ERR_IO == -12 && EK_ERR_PANIC == -13);

    GIVES(EK_ERR_NULL, ek_pool_ref(NULL));
    SAYS("pool is NULL");
    ek_request request = new_request();
    CHECK(request.struct_size == sizeof request);
    SAYS("pool is NULL"); /* success leaves it */

    /* Cut where a character ends, and always with NUL. */
    uint32_t policy;
    GIVES(EK_ERR_INVALID, ek_policy_parse("\xc3\xa9t\xc3\xa9", &policy));
    SAYS("policy is \"\xc3\xa9t\xc3\xa9\"; allowed: round_robin, ");
    for (size_t size = 1; size < 20; size++) {
        memset(text, 'x', sizeof text);
        OK(ek_error_message(text, size));
        CHECK(text[size] == 'x' && strlen(text) < size);
        CHECK(strlen(text) == (size == 13 || size == 16 ? size - 2 : size - 1));
    }
    GIVES(EK_ERR_NULL, ek_error_message(NULL, 8));
    small[0] = 'x';
    GIVES(EK_ERR_INVALID, ek_error_message(small, 0));
    CHECK(small[0] == 'x');
}

static void keys_slots_and_policies(void)
{
    /* Known values of the published 64-bit FNV-1a. */
    CHECK(ek_key("") == 0xcbf29ce484222325);
    CHECK(ek_key("a") == 0xaf63dc4c8601ec8c);
    CHECK(ek_key("foobar") == 0x85944171f73967e8);
    CHECK(ek_key("\xff") == (0xcbf29ce484222325 ^ 0xff) * 0x100000001b3u);
    CHECK(ek_key(NULL) == 0);
    CHECK(ek_worker_slot(0) == 0 && ek_worker_slot(0xabcdef) == 0xcdef);

    static const struct { uint32_t policy; const char *name; } policies[] = {
        {EK_POLICY_ROUND_ROBIN, "round_robin"},
        {EK_POLICY_RANDOM, "random"},
        {EK_POLICY_P2C_TOKENS, "power_of_two:tokens"},
        {EK_POLICY_P2C_REQUESTS, "power_of_two:requests"},
        {EK_POLICY_LEAST_REQUESTS, "least_requests"},
        {EK_POLICY_LEAST_TOKENS, "least_tokens"},
        {EK_POLICY_BALANCED, "balanced"},
        {EK_POLICY_CONSISTENT_HASHING, "consistent_hashing"},
    };
    uint32_t policy = 77;
    for (uint32_t i = 0; i < 8; i++) {
        CHECK(policies[i].policy == i + 1);
        CHECK(strcmp(ek_policy_name(i + 1), policies[i].name) == 0);
        OK(ek_policy_parse(policies[i].name, &policy));
        CHECK(policy == i + 1);
    }
    OK(ek_policy_parse("power_of_two", &policy));
    CHECK(policy == EK_POLICY_P2C_TOKENS);
    CHECK(ek_policy_name(EK_POLICY_DEFAULT) == NULL && ek_policy_name(9) == NULL);
    CHECK(ek_policy_name(9999) == NULL && ek_policy_name(UINT32_MAX) == NULL);

    char longest[257];
    memset(longest, 'r', sizeof longest - 1);
    longest[256] = '\0';
    const char *none[] = {"", "least-requests", " Least_Requests", "RANDOM", "\xff", longest};
    policy = 77;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        GIVES(EK_ERR_INVALID, ek_policy_parse(none[i], &policy));
    CHECK(policy == 77);
    GIVES(EK_ERR_NULL, ek_policy_parse(NULL, &policy));
    GIVES(EK_ERR_NULL, ek_policy_parse("random", NULL));

    static const char variable[] = "SGLANG_ROUTER_P2C_LOAD_METRIC";
    unsetenv(variable);
    OK(ek_policy_from_env(&policy));
    CHECK(policy == EK_POLICY_P2C_TOKENS);
    setenv(variable, "requests", 1);
    OK(ek_policy_from_env(&policy));
    CHECK(policy == EK_POLICY_P2C_REQUESTS);
    setenv(variable, "least_requests", 1);
    OK(ek_policy_from_env(&policy));
    CHECK(policy == EK_POLICY_LEAST_REQUESTS);
    setenv(variable, "token", 1);
    GIVES(EK_ERR_INVALID, ek_policy_from_env(&policy));
    CHECK(policy == EK_POLICY_LEAST_REQUESTS);
    SAYS("SGLANG_ROUTER_P2C_LOAD_METRIC is \"token\"; allowed: tokens, requests, least_requests");
    unsetenv(variable);
    GIVES(EK_ERR_NULL, ek_policy_from_env(NULL));
}

static void pools_and_members(void)
{
    ek_pool *pool = new_pool(), *untouched = pool;
    ek_pool_config config;
    ek_tuning tuning;
    ek_worker_id a, b, found = NOBODY;
    ek_worker_config worker = worker_config();
    ek_ticket ticket;

    OK(ek_pool_config_init(&config));
    CHECK(config.struct_size == sizeof config && config.capacity == 1024 && config.seed == 0);
    CHECK(config.load_max_age_ms == 0 && config.tuning == NULL);
    OK(ek_tuning_init(&tuning));
    CHECK(tuning.policy == EK_POLICY_LEAST_REQUESTS && tuning.choices == 2);
    CHECK(tuning.request_tokens == 0 && tuning.unreported_compete == 0);
    CHECK(tuning.hash_load_factor == 0);
    CHECK(worker.weight == 1 && worker.max_in_flight == 0 && worker.vetoes == 0);
    CHECK(worker.fresh == 0 && worker.label == NULL);

    uint32_t capacities[] = {0, 65536, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        config.capacity = capacities[i];
        GIVES(EK_ERR_INVALID, ek_pool_new(&config, &untouched));
    }
    SAYS("capacity is 4294967295; allowed: 1 to 65535");
    config.capacity = 2;
    tuning.policy = 9;
    config.tuning = &tuning;
    GIVES(EK_ERR_INVALID, ek_pool_new(&config, &untouched));
    SAYS("policy is 9");
    CHECK(untouched == pool);
    ek_pool_free(pool);

    /* References: two taken, two given back. */
    tuning.policy = EK_POLICY_ROUND_ROBIN;
    OK(ek_pool_new(&config, &pool));
    OK(ek_pool_ref(pool));
    ek_pool_free(pool);
    CHECK(totals(pool).workers == 0);

    tuning.choices = 1;
    GIVES(EK_ERR_INVALID, ek_pool_tune(pool, &tuning));
    tuning.choices = 256;
    GIVES(EK_ERR_INVALID, ek_pool_tune(pool, &tuning));
    tuning.choices = 255;
    tuning.unreported_compete = 2;
    GIVES(EK_ERR_INVALID, ek_pool_tune(pool, &tuning));
    tuning.unreported_compete = 1;
    static const uint64_t no_factors[] = {1, 99, 10001, (uint64_t)UINT32_MAX + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof no_factors / sizeof *no_factors; i++) {
        tuning.hash_load_factor = no_factors[i];
        GIVES(EK_ERR_INVALID, ek_pool_tune(pool, &tuning));
    }
    SAYS("hash_load_factor is 18446744073709551615; allowed: 100 to 10000, or 0 for no bound");
    tuning.hash_load_factor = 125;
    tuning.policy = EK_POLICY_DEFAULT;
    OK(ek_pool_tune(pool, &tuning));

    char label[257];
    memset(label, 'x', sizeof label);
    label[256] = '\0';
    worker.label = label;
    GIVES(EK_ERR_INVALID, ek_pool_add(pool, 1, &worker, &found));
    SAYS("label is of 256 bytes; allowed: at most 255");
    label[255] = '\0';
    OK(ek_pool_add(pool, 1, &worker, &a));
    CHECK(strcmp(stats(pool, a).label, label) == 0);
    GIVES(EK_ERR_EXISTS, ek_pool_add(pool, 1, &worker, &found));
    worker.label = "\xc3\x28";
    GIVES(EK_ERR_INVALID, ek_pool_ensure(pool, 1, &worker, &found));
    SAYS("label is \"\\xc3(\"; allowed: UTF-8");
    worker.label = "10.0.0.1:30000@1";
    worker.weight = 1000001;
    GIVES(EK_ERR_INVALID, ek_pool_ensure(pool, 1, &worker, &found));
    worker.weight = 3;
    worker.vetoes = 8;
    GIVES(EK_ERR_INVALID, ek_pool_ensure(pool, 1, &worker, &found));
    worker.vetoes = EK_VETO_HOST;
    worker.fresh = 2;
    GIVES(EK_ERR_INVALID, ek_pool_ensure(pool, 1, &worker, &found));
    CHECK(found == NOBODY && stats(pool, a).weight == 1);
    worker.fresh = 0;
    OK(ek_pool_ensure(pool, 1, &worker, &found));
    CHECK(found == a && stats(pool, a).weight == 3 && stats(pool, a).vetoes == 0);
    CHECK(strcmp(stats(pool, a).label, "10.0.0.1:30000@1") == 0);
    OK(ek_pool_ensure(pool, 1, NULL, &found));
    CHECK(found == a && stats(pool, a).weight == 3);
    OK(ek_pool_ensure(pool, 2, &worker, &b));
    CHECK(b != a && stats(pool, b).vetoes == EK_VETO_HOST);
    CHECK(ek_worker_slot(a) < 2 && ek_worker_slot(b) < 2 && ek_worker_slot(a) != ek_worker_slot(b));
    GIVES(EK_ERR_FULL, ek_pool_add(pool, 3, NULL, &found));
    OK(ek_pool_find(pool, 2, &found));
    CHECK(found == b);
    GIVES(EK_ERR_UNKNOWN, ek_pool_find(pool, 3, &found));
    CHECK(found == b);

    /* Only the fields that were asked for. */
    worker = worker_config();
    worker.weight = 7;
    worker.max_in_flight = 1;
    worker.label = "other";
    OK(ek_pool_update(pool, a, EK_FIELD_WEIGHT, &worker));
    CHECK(stats(pool, a).weight == 7 && stats(pool, a).max_in_flight == 0);
    CHECK(strcmp(stats(pool, a).label, "10.0.0.1:30000@1") == 0);
    OK(ek_pool_update(pool, a, EK_FIELD_MAX_IN_FLIGHT | EK_FIELD_LABEL, &worker));
    CHECK(stats(pool, a).max_in_flight == 1 && strcmp(stats(pool, a).label, "other") == 0);
    worker.weight = 1000001;
    worker.vetoes = 99;
    OK(ek_pool_update(pool, a, EK_FIELD_LABEL, &worker));
    GIVES(EK_ERR_INVALID, ek_pool_update(pool, a, EK_FIELD_WEIGHT, &worker));
    worker.max_in_flight = 1048576;
    GIVES(EK_ERR_INVALID, ek_pool_update(pool, a, EK_FIELD_MAX_IN_FLIGHT, &worker));
    GIVES(EK_ERR_INVALID, ek_pool_update(pool, a, 8, &worker));
    SAYS("fields is 8; allowed: EK_FIELD_WEIGHT (1)");
    GIVES(EK_ERR_UNKNOWN, ek_pool_update(pool, NOBODY, EK_FIELD_LABEL, &worker));
    GIVES(EK_ERR_UNKNOWN, ek_pool_update(pool, 0, 0, &worker));

    /* Two vetoes, of which one is lifted. */
    OK(ek_pool_veto(pool, b, EK_VETO_HEALTH | EK_VETO_OPERATOR, 1));
    OK(ek_pool_veto(pool, b, EK_VETO_HOST | EK_VETO_HEALTH, 0));
    CHECK(stats(pool, b).vetoes == EK_VETO_OPERATOR);
    GIVES(EK_ERR_INVALID, ek_pool_veto(pool, b, 8, 1));
    GIVES(EK_ERR_INVALID, ek_pool_veto(pool, b, 0, 1));
    GIVES(EK_ERR_INVALID, ek_pool_veto(pool, b, EK_VETO_HOST, 2));
    GIVES(EK_ERR_UNKNOWN, ek_pool_veto(pool, NOBODY, EK_VETO_HOST, 1));
    CHECK(stats(pool, b).vetoes == EK_VETO_OPERATOR);

    /* Draining: known to what ends requests, to statistics and to abandon. */
    OK(ek_pool_begin(pool, a, 10, &ticket));
    CHECK(stats(pool, a).state == EK_WORKER_ACTIVE);
    OK(ek_pool_remove(pool, a));
    CHECK(stats(pool, a).state == EK_WORKER_DRAINING && stats(pool, a).in_flight == 1);
    CHECK(totals(pool).draining == 1 && totals(pool).workers == 1);
    GIVES(EK_ERR_UNKNOWN, ek_pool_remove(pool, a));
    GIVES(EK_ERR_UNKNOWN, ek_pool_update(pool, a, EK_FIELD_LABEL, &worker));
    GIVES(EK_ERR_UNKNOWN, ek_pool_find(pool, 1, &found));
    OK(ek_pool_abandon(pool, a));
    GIVES(EK_ERR_UNKNOWN, ek_pool_abandon(pool, a));
    GIVES(EK_ERR_STALE, ek_pool_finish(pool, &ticket));
    CHECK(ticket.worker == a && ek_ticket_tokens(&ticket) == 10);
    CHECK(totals(pool).abandoned == 1 && totals(pool).anomalies == 1);

    /* One change of members: 2 stays as it is, 4 comes; then 4 is updated and 2 goes. */
    uint64_t keys[] = {2, 4};
    OK(ek_pool_set_members(pool, keys, NULL, 0, 2));
    CHECK(stats(pool, b).vetoes == EK_VETO_OPERATOR && totals(pool).workers == 2);
    ek_worker_config configs[] = {worker_config(), worker_config()};
    configs[0].weight = 5;
    OK(ek_pool_set_members(pool, keys + 1, configs, sizeof *configs, 1));
    OK(ek_pool_find(pool, 4, &found));
    CHECK(totals(pool).workers == 1 && stats(pool, found).weight == 5);
    keys[0] = 4;
    GIVES(EK_ERR_INVALID, ek_pool_set_members(pool, keys, configs, sizeof *configs, 2));
    SAYS("key is 4; allowed: each key once");
    uint64_t many[] = {5, 6, 7};
    GIVES(EK_ERR_FULL, ek_pool_set_members(pool, many, NULL, 0, 3));
    configs[1].weight = 1000001;
    GIVES(EK_ERR_INVALID, ek_pool_set_members(pool, many, configs, sizeof *configs, 2));
    configs[1].struct_size = sizeof *configs + 8;
    GIVES(EK_ERR_INVALID, ek_pool_set_members(pool, many, configs, sizeof *configs, 2));
    GIVES(EK_ERR_INVALID, ek_pool_set_members(pool, many, configs, 0, 1));
    GIVES(EK_ERR_INVALID, ek_pool_set_members(pool, many, NULL, 0, SIZE_MAX));
    GIVES(EK_ERR_INVALID, ek_pool_set_members(pool, many, configs, sizeof *configs, SIZE_MAX / 8));
    CHECK(totals(pool).workers == 1 && stats(pool, found).weight == 5);
    OK(ek_pool_set_members(pool, NULL, NULL, 0, 0));
    CHECK(totals(pool).workers == 0);
    ek_pool_free(pool);
    ek_pool_free(NULL);
}

static void reports_and_polls(void)
{
    ek_pool *pool = new_pool();
    ek_worker_id a = add(pool, 1), b = add(pool, 2), both[] = {a, b, a, NOBODY, 0};
    ek_load loads[] = {{a, 500, 3, 2, 77}, {b, 100, UINT32_MAX, UINT32_MAX, 0},
                       {a, 1, 1, 1, 1}, {NOBODY, 1, 1, 1, 1}, {0, 1, 1, 1, 1}};
    ek_poll *of_a, *of_all, *of_none;
    ek_ticket ticket;
    size_t rejected = 99;

    OK(ek_pool_publish(pool, loads, sizeof *loads, 5, &rejected));
    CHECK(rejected == 3 && totals(pool).rejected_loads == 3);
    ek_worker_stats row = stats(pool, a);
    CHECK(row.has_load == 1 && row.load_tokens == 500 && row.load_running == 3);
    CHECK(row.load_waiting == 2 && row.load_timestamp == 77 && row.live_tokens == 500);
    CHECK(row.load_age_ms < 60000);
    row = stats(pool, b);
    CHECK(row.load_tokens == 100 && row.load_running == UINT32_MAX && row.load_timestamp == 0);
    loads[1].tokens = UINT64_MAX; /* none */
    OK(ek_pool_publish(pool, loads, sizeof *loads, 2, &rejected));
    CHECK(rejected == 1 && stats(pool, a).has_load == 1);
    row = stats(pool, b);
    CHECK(row.has_load == 0 && row.load_tokens == 0 && row.load_running == 0);
    /* An empty report clears all, whatever the pointer and the size. */
    OK(ek_pool_publish(pool, NULL, 0, 0, &rejected));
    CHECK(rejected == 0 && stats(pool, a).has_load == 0);

    OK(ek_poll_new(pool, both, 1, &of_a));
    OK(ek_poll_new(pool, NULL, EK_ALL, &of_all));
    OK(ek_poll_new(pool, NULL, 0, &of_none));
    rejected = 99;
    GIVES(EK_ERR_INVALID, ek_poll_publish(of_a, loads, sizeof *loads, 1, &rejected));
    SAYS("not begun");
    CHECK(rejected == 99 && stats(pool, a).has_load == 0);

    /* What is begun after the poll is credited; another poll's workers stay as they are. */
    loads[1].tokens = 100;
    OK(ek_poll_begin(of_all));
    OK(ek_poll_publish(of_all, loads, sizeof *loads, 2, &rejected));
    OK(ek_poll_begin(of_a));
    OK(ek_pool_begin(pool, a, 40, &ticket));
    loads[0].tokens = 600;
    loads[0].timestamp = 78;
    OK(ek_poll_publish(of_a, loads, sizeof *loads, 2, &rejected));
    CHECK(rejected == 1 && stats(pool, b).load_tokens == 100);
    CHECK(stats(pool, a).load_tokens == 600 && stats(pool, a).live_tokens == 640);
    GIVES(EK_ERR_INVALID, ek_poll_publish(of_a, loads, sizeof *loads, 1, &rejected));
    OK(ek_poll_begin(of_none));
    OK(ek_poll_publish(of_none, loads, sizeof *loads, 1, &rejected));
    CHECK(rejected == 1 && stats(pool, a).load_tokens == 600);

    OK(ek_pool_finish(pool, &ticket));
    ek_poll_free(of_a);
    ek_poll_free(of_none);
    ek_poll_free(NULL);
    ek_pool_free(pool); /* the last poll still holds it */
    OK(ek_poll_begin(of_all));
    OK(ek_poll_publish(of_all, NULL, 0, 0, &rejected));
    ek_poll_free(of_all);
}

static void choices(void)
{
    ek_pool *pool = new_pool();
    ek_picker *picker, *twin;
    ek_request request = new_request();
    ek_ticket ticket = {NOBODY, 5};
    ek_worker_id worker = NOBODY;

    CHECK(request.policy == EK_POLICY_DEFAULT && request.tokens == 0);
    CHECK(request.candidates == NULL && request.candidate_count == EK_ALL);
    CHECK(request.excluded == NULL && request.excluded_count == 0 && request.hash == 0);

    OK(ek_picker_new(pool, 42, &picker));
    OK(ek_picker_new(pool, 42, &twin));
    GIVES(EK_ERR_EMPTY, ek_pool_pick(pool, NULL, &worker));
    GIVES(EK_ERR_EMPTY, ek_picker_pick(picker, NULL, &worker));
    GIVES(EK_ERR_EMPTY, ek_pool_dispatch(pool, NULL, &ticket));
    GIVES(EK_ERR_EMPTY, ek_picker_dispatch(picker, NULL, &ticket));
    CHECK(worker == NOBODY && ticket.worker == NOBODY && ticket.opaque == 5);

    ek_worker_id all[8];
    for (uint64_t key = 0; key < 8; key++)
        all[key] = add(pool, key);
    for (uint32_t policy = EK_POLICY_DEFAULT; policy <= EK_POLICY_CONSISTENT_HASHING; policy++) {
        request.policy = policy;
        OK(ek_pool_pick(pool, &request, &worker));
        OK(ek_picker_pick(picker, &request, &worker));
    }
    worker = NOBODY;
    static const uint32_t no_policies[] = {9, 1u << 31, UINT32_MAX, 9999};
    for (size_t i = 0; i < sizeof no_policies / sizeof *no_policies; i++) {
        request.policy = no_policies[i];
        GIVES(EK_ERR_INVALID, ek_pool_pick(pool, &request, &worker));
        GIVES(EK_ERR_INVALID, ek_pool_dispatch(pool, &request, &ticket));
        GIVES(EK_ERR_INVALID, ek_picker_pick(picker, &request, &worker));
        GIVES(EK_ERR_INVALID, ek_picker_dispatch(picker, &request, &ticket));
    }
    SAYS("policy is 9999; allowed: 0 (EK_POLICY_DEFAULT) to 8");
    CHECK(worker == NOBODY);
    request.policy = EK_POLICY_RANDOM;

    request.tokens = (uint64_t)UINT32_MAX + 1;
    GIVES(EK_ERR_INVALID, ek_pool_dispatch(pool, &request, &ticket));
    SAYS("tokens is 4294967296; allowed: 0 to 4294967295");
    CHECK(ticket.worker == NOBODY && totals(pool).in_flight == 0);
    request.tokens = 100;

    /* Pickers of one seed agree. */
    ek_picker_free(picker);
    OK(ek_picker_new(pool, 42, &picker));
    for (int i = 0; i < 100; i++) {
        ek_worker_id one, other;
        OK(ek_picker_pick(picker, &request, &one));
        OK(ek_picker_pick(twin, &request, &other));
        CHECK(one == other);
    }
    ek_picker_free(twin);

    /* Candidates, in any order, with repeated and unknown ones. */
    ek_worker_id candidates[] = {all[5], NOBODY, all[2], all[5], 0};
    request.candidates = candidates;
    request.candidate_count = 5;
    for (int i = 0; i < 100; i++) {
        OK(ek_picker_pick(picker, &request, &worker));
        CHECK(worker == all[5] || worker == all[2]);
    }
    request.excluded = all;
    request.excluded_count = 5;
    OK(ek_picker_dispatch(picker, &request, &ticket));
    CHECK(ticket.worker == all[5] && ek_ticket_tokens(&ticket) == 100);
    CHECK(stats(pool, all[5]).in_flight == 1 && stats(pool, all[5]).tokens == 100);
    OK(ek_pool_finish(pool, &ticket));
    CHECK(ticket.worker == 0 && ek_ticket_tokens(&ticket) == 0);
    CHECK(stats(pool, all[5]).finished == 1 && stats(pool, all[5]).in_flight == 0);
    request.excluded_count = EK_ALL;
    GIVES(EK_ERR_EMPTY, ek_picker_dispatch(picker, &request, &ticket));
    request.excluded_count = 0;
    request.excluded = NULL;
    request.candidate_count = 0; /* none, whatever the pointer */
    GIVES(EK_ERR_EMPTY, ek_pool_dispatch(pool, &request, &ticket));
    request.candidates = NULL;
    GIVES(EK_ERR_EMPTY, ek_pool_dispatch(pool, &request, &ticket));
    request.candidate_count = 1;
    GIVES(EK_ERR_NULL, ek_pool_dispatch(pool, &request, &ticket));
    SAYS("candidates is NULL");
    request.candidates = all;
    request.candidate_count = SIZE_MAX / 8 - 1;
    GIVES(EK_ERR_INVALID, ek_pool_dispatch(pool, &request, &ticket));
    SAYS("candidates is 2305843009213693950 elements");
    request.candidate_count = EK_ALL; /* all, whatever the pointer */
    OK(ek_pool_dispatch(pool, &request, &ticket));
    OK(ek_pool_finish(pool, &ticket));
    request.excluded_count = 1;
    GIVES(EK_ERR_NULL, ek_pool_pick(pool, &request, &worker));
    SAYS("excluded is NULL");

    ek_pool_free(pool); /* the picker still holds it */
    OK(ek_picker_dispatch(picker, NULL, &ticket));
    ek_picker_free(picker);
    ek_picker_free(NULL);
}

static void requests(void)
{
    ek_pool *pool = new_pool(), *other = new_pool();
    ek_worker_config config = worker_config();
    ek_worker_id a, b = add(pool, 2);
    ek_ticket ticket = {NOBODY, 5}, second, copy;
    uint64_t anomalies = 0;

    config.max_in_flight = 2;
    config.vetoes = EK_VETO_OPERATOR;
    OK(ek_pool_add(pool, 1, &config, &a));
    GIVES(EK_ERR_UNKNOWN, ek_pool_begin(pool, NOBODY, 1, &ticket));
    GIVES(EK_ERR_UNKNOWN, ek_pool_begin(other, a, 1, &ticket));
    GIVES(EK_ERR_INVALID, ek_pool_begin(pool, a, (uint64_t)UINT32_MAX + 1, &ticket));
    CHECK(ticket.worker == NOBODY && ticket.opaque == 5);
    OK(ek_pool_begin(pool, a, UINT32_MAX, &ticket)); /* vetoes don't bind it */
    GIVES(EK_ERR_OVERFLOW, ek_pool_begin(pool, a, 1, &second));
    OK(ek_pool_begin(pool, a, 0, &second));
    GIVES(EK_ERR_SATURATED, ek_pool_begin(pool, a, 0, &copy));
    GIVES(EK_ERR_OVERFLOW, ek_pool_grow(pool, &second, 1));
    OK(ek_pool_begin(pool, b, 7, &copy));
    GIVES(EK_ERR_SATURATED, ek_pool_retarget(pool, &copy, a));
    CHECK(copy.worker == b && ek_ticket_tokens(&copy) == 7);
    OK(ek_pool_finish(pool, &ticket));
    CHECK(stats(pool, a).in_flight == 1 && stats(pool, a).tokens == 0);

    GIVES(EK_ERR_INVALID, ek_pool_grow(pool, &second, (uint64_t)UINT32_MAX + 1));
    OK(ek_pool_grow(pool, &second, 30));
    OK(ek_pool_grow(pool, &second, 12));
    CHECK(ek_ticket_tokens(&second) == 42 && stats(pool, a).tokens == 42);
    GIVES(EK_ERR_OVERFLOW, ek_pool_grow(pool, &second, UINT32_MAX));
    GIVES(EK_ERR_UNKNOWN, ek_pool_retarget(pool, &second, NOBODY));
    SAYS("worker 0x123456789abcdef0");
    OK(ek_pool_retarget(pool, &second, b));
    CHECK(second.worker == b && stats(pool, b).in_flight == 2 && stats(pool, b).tokens == 49);
    CHECK(stats(pool, a).in_flight == 0 && stats(pool, a).finished == 1);
    OK(ek_pool_retarget(pool, &second, b));

    /* Ended, never begun, another pool's: stale, unchanged, and an anomaly each. */
    GIVES(EK_ERR_STALE, ek_pool_finish(other, &second));
    GIVES(EK_ERR_STALE, ek_pool_grow(other, &second, 1));
    GIVES(EK_ERR_STALE, ek_pool_retarget(other, &second, b));
    CHECK(totals(other).anomalies == 3 && second.worker == b && ek_ticket_tokens(&second) == 42);
    GIVES(EK_ERR_STALE, ek_pool_finish(pool, &ticket));
    GIVES(EK_ERR_STALE, ek_pool_grow(pool, &ticket, 1));
    GIVES(EK_ERR_STALE, ek_pool_retarget(pool, &ticket, b));
    CHECK(totals(pool).anomalies == (anomalies += 3) && ticket.worker == 0);
    ticket = second;
    ticket.opaque += (uint64_t)1 << 32; /* more tokens than a request can have */
    GIVES(EK_ERR_STALE, ek_pool_finish(pool, &ticket));
    GIVES(EK_ERR_STALE, ek_pool_grow(pool, &ticket, 0));
    GIVES(EK_ERR_STALE, ek_pool_retarget(pool, &ticket, a));
    CHECK(totals(pool).anomalies == (anomalies += 3) && ticket.worker == b);
    CHECK(stats(pool, b).in_flight == 2 && stats(pool, b).tokens == 49);
    SAYS("ended already");

    /* The same object twice: its sibling stays. */
    OK(ek_pool_finish(pool, &second));
    GIVES(EK_ERR_STALE, ek_pool_finish(pool, &second));
    CHECK(totals(pool).anomalies == ++anomalies && stats(pool, b).in_flight == 1);

    /* By the worker alone, also a draining one; more tokens than are in flight end at 0. */
    GIVES(EK_ERR_INVALID, ek_pool_finish_worker(pool, b, (uint64_t)UINT32_MAX + 1));
    OK(ek_pool_remove(pool, b));
    OK(ek_pool_grow(pool, &copy, 1));
    OK(ek_pool_finish_worker(pool, b, 1000));
    CHECK(totals(pool).anomalies == ++anomalies && totals(pool).draining == 0);
    GIVES(EK_ERR_STALE, ek_pool_finish_worker(pool, b, 0));
    GIVES(EK_ERR_STALE, ek_pool_finish_worker(pool, NOBODY, 0));
    GIVES(EK_ERR_STALE, ek_pool_finish_worker(pool, 0, 0));
    GIVES(EK_ERR_STALE, ek_pool_finish_worker(pool, a, 0));
    CHECK(totals(pool).anomalies == (anomalies += 4) && totals(pool).in_flight == 0);

    /* Saturated: eligible but for the cap. */
    OK(ek_pool_veto(pool, a, EK_VETO_OPERATOR, 0));
    OK(ek_pool_dispatch(pool, NULL, &ticket));
    OK(ek_pool_dispatch(pool, NULL, &second));
    copy.worker = NOBODY;
    copy.opaque = 5;
    GIVES(EK_ERR_SATURATED, ek_pool_dispatch(pool, NULL, &copy));
    CHECK(copy.worker == NOBODY && copy.opaque == 5 && totals(pool).saturated == 1);
    OK(ek_pool_finish(pool, &ticket));
    OK(ek_pool_finish(pool, &second));
    CHECK(totals(pool).in_flight == 0 && totals(pool).finished == 5);
    ek_pool_free(pool);
    ek_pool_free(other);
}

static void statistics(void)
{
    ek_pool *pool = new_pool();
    ek_worker_stats rows[3];
    ek_pool_totals all;
    size_t count = 99;

    OK(ek_pool_stats(pool, NULL, 0, 0, &count));
    CHECK(count == 0);
    ek_worker_id a = add(pool, 10), b = add(pool, 20);
    OK(ek_pool_stats(pool, NULL, 0, 0, &count));
    CHECK(count == 2);
    memset(rows, 0xab, sizeof rows);
    OK(ek_pool_stats(pool, rows, sizeof *rows, 1, &count));
    CHECK(count == 2 && rows[0].worker == a && rows[0].key == 10);
    CHECK(rows[1].worker == 0xabababababababab);
    OK(ek_pool_stats(pool, rows, sizeof *rows, 3, &count));
    CHECK(count == 2 && rows[1].worker == b && rows[1].key == 20 && rows[1].weight == 1);
    CHECK(rows[1].label[0] == '\0' && rows[2].worker == 0xabababababababab);

    /* Rows that are shorter, also in the middle of a field, or longer. */
    unsigned char bytes[2 * sizeof *rows + 64];
    for (size_t size = 8; size <= sizeof *rows + 16; size++) {
        memset(bytes, 0xab, sizeof bytes);
        OK(ek_pool_stats(pool, bytes, size, 2, &count));
        size_t known = size < sizeof *rows ? size : sizeof *rows;
        CHECK(memcmp(bytes, &rows[0], known) == 0 && memcmp(bytes + size, &rows[1], known) == 0);
        for (size_t at = known; at < size; at++)
            CHECK(bytes[at] == 0 && bytes[size + at] == 0);
        CHECK(bytes[2 * size] == 0xab);
    }
    size_t none[] = {0, 7, 4097, SIZE_MAX};
    memset(bytes, 0xab, sizeof bytes);
    count = 99;
    for (size_t i = 0; i < 4; i++) {
        GIVES(EK_ERR_INVALID, ek_pool_stats(pool, bytes, none[i], 2, &count));
        GIVES(EK_ERR_INVALID, ek_pool_totals_get(pool, bytes, none[i]));
    }
    SAYS("totals_size is 18446744073709551615; allowed: 8 to 4096 bytes");
    CHECK(bytes[0] == 0xab && count == 99);

    all = totals(pool);
    CHECK(all.workers == 2 && all.draining == 0 && all.version == 2);
    for (size_t size = 8; size <= sizeof all + 16; size++) {
        memset(bytes, 0xab, sizeof bytes);
        OK(ek_pool_totals_get(pool, bytes, size));
        size_t known = size < sizeof all ? size : sizeof all;
        CHECK(memcmp(bytes, &all, known) == 0 && bytes[size] == 0xab);
        for (size_t at = known; at < size; at++)
            CHECK(bytes[at] == 0);
    }
    ek_pool_free(pool);
}

/* Case 37: NULL for each pointer, one at a time, changes nothing. */
static void null_pointers(void)
{
    ek_pool *pool = new_pool();
    ek_picker *picker, *out_picker;
    ek_poll *poll, *out_poll;
    ek_tuning tuning;
    ek_worker_config config = worker_config();
    ek_worker_id worker = add(pool, 1), out_worker;
    ek_load load = {worker, 1, 1, 1, 1};
    ek_ticket ticket;
    ek_pool_totals before, after;
    ek_worker_stats row;
    uint64_t key = 1;
    size_t out;

    OK(ek_tuning_init(&tuning));
    OK(ek_picker_new(pool, 0, &picker));
    OK(ek_poll_new(pool, NULL, EK_ALL, &poll));
    OK(ek_pool_dispatch(pool, NULL, &ticket));
    OK(ek_poll_begin(poll));
    before = totals(pool);

    GIVES(EK_ERR_NULL, ek_pool_config_init(NULL));
    GIVES(EK_ERR_NULL, ek_tuning_init(NULL));
    GIVES(EK_ERR_NULL, ek_worker_config_init(NULL));
    GIVES(EK_ERR_NULL, ek_request_init(NULL));
    SAYS("request is NULL");
    GIVES(EK_ERR_NULL, ek_pool_new(NULL, NULL));
    GIVES(EK_ERR_NULL, ek_pool_ref(NULL));
    GIVES(EK_ERR_NULL, ek_pool_tune(NULL, &tuning));
    GIVES(EK_ERR_NULL, ek_pool_tune(pool, NULL));
    GIVES(EK_ERR_NULL, ek_pool_add(NULL, 2, &config, &out_worker));
    GIVES(EK_ERR_NULL, ek_pool_add(pool, 2, &config, NULL));
    GIVES(EK_ERR_NULL, ek_pool_ensure(NULL, 2, &config, &out_worker));
    GIVES(EK_ERR_NULL, ek_pool_ensure(pool, 2, &config, NULL));
    GIVES(EK_ERR_NULL, ek_pool_set_members(NULL, &key, &config, sizeof config, 1));
    GIVES(EK_ERR_NULL, ek_pool_set_members(pool, NULL, &config, sizeof config, 1));
    GIVES(EK_ERR_NULL, ek_pool_update(NULL, worker, EK_FIELD_WEIGHT, &config));
    GIVES(EK_ERR_NULL, ek_pool_update(pool, worker, EK_FIELD_WEIGHT, NULL));
    GIVES(EK_ERR_NULL, ek_pool_veto(NULL, worker, EK_VETO_HOST, 1));
    GIVES(EK_ERR_NULL, ek_pool_remove(NULL, worker));
    GIVES(EK_ERR_NULL, ek_pool_abandon(NULL, worker));
    GIVES(EK_ERR_NULL, ek_pool_find(NULL, 1, &out_worker));
    GIVES(EK_ERR_NULL, ek_pool_find(pool, 1, NULL));
    GIVES(EK_ERR_NULL, ek_pool_publish(NULL, &load, sizeof load, 1, &out));
    GIVES(EK_ERR_NULL, ek_pool_publish(pool, NULL, sizeof load, 1, &out));
    GIVES(EK_ERR_NULL, ek_pool_publish(pool, &load, sizeof load, 1, NULL));
    GIVES(EK_ERR_NULL, ek_poll_new(NULL, &worker, 1, &out_poll));
    GIVES(EK_ERR_NULL, ek_poll_new(pool, NULL, 1, &out_poll));
    GIVES(EK_ERR_NULL, ek_poll_new(pool, &worker, 1, NULL));
    GIVES(EK_ERR_NULL, ek_poll_begin(NULL));
    GIVES(EK_ERR_NULL, ek_poll_publish(NULL, &load, sizeof load, 1, &out));
    GIVES(EK_ERR_NULL, ek_poll_publish(poll, NULL, sizeof load, 1, &out));
    GIVES(EK_ERR_NULL, ek_poll_publish(poll, &load, sizeof load, 1, NULL));
    GIVES(EK_ERR_NULL, ek_pool_pick(NULL, NULL, &out_worker));
    GIVES(EK_ERR_NULL, ek_pool_pick(pool, NULL, NULL));
    GIVES(EK_ERR_NULL, ek_pool_dispatch(NULL, NULL, &ticket));
    GIVES(EK_ERR_NULL, ek_pool_dispatch(pool, NULL, NULL));
    GIVES(EK_ERR_NULL, ek_picker_new(NULL, 0, &out_picker));
    GIVES(EK_ERR_NULL, ek_picker_new(pool, 0, NULL));
    GIVES(EK_ERR_NULL, ek_picker_pick(NULL, NULL, &out_worker));
    GIVES(EK_ERR_NULL, ek_picker_pick(picker, NULL, NULL));
    GIVES(EK_ERR_NULL, ek_picker_dispatch(NULL, NULL, &ticket));
    GIVES(EK_ERR_NULL, ek_picker_dispatch(picker, NULL, NULL));
    SAYS("out_ticket is NULL");
    GIVES(EK_ERR_NULL, ek_pool_begin(NULL, worker, 1, &ticket));
    GIVES(EK_ERR_NULL, ek_pool_begin(pool, worker, 1, NULL));
    GIVES(EK_ERR_NULL, ek_pool_finish(NULL, &ticket));
    GIVES(EK_ERR_NULL, ek_pool_finish(pool, NULL));
    GIVES(EK_ERR_NULL, ek_pool_finish_worker(NULL, worker, 0));
    GIVES(EK_ERR_NULL, ek_pool_grow(NULL, &ticket, 1));
    GIVES(EK_ERR_NULL, ek_pool_grow(pool, NULL, 1));
    GIVES(EK_ERR_NULL, ek_pool_retarget(NULL, &ticket, worker));
    GIVES(EK_ERR_NULL, ek_pool_retarget(pool, NULL, worker));
    GIVES(EK_ERR_NULL, ek_pool_stats(NULL, &row, sizeof row, 1, &out));
    GIVES(EK_ERR_NULL, ek_pool_stats(pool, NULL, sizeof row, 1, &out));
    GIVES(EK_ERR_NULL, ek_pool_stats(pool, &row, sizeof row, 1, NULL));
    GIVES(EK_ERR_NULL, ek_pool_totals_get(NULL, &after, sizeof after));
    GIVES(EK_ERR_NULL, ek_pool_totals_get(pool, NULL, sizeof after));
    CHECK(ek_ticket_tokens(NULL) == 0);

    after = totals(pool);
    CHECK(memcmp(&before, &after, sizeof after) == 0);
    CHECK(stats(pool, worker).has_load == 0 && stats(pool, worker).in_flight == 1);
    OK(ek_poll_publish(poll, &load, sizeof load, 1, &out)); /* it is still begun */
    OK(ek_pool_finish(pool, &ticket));
    ek_poll_free(poll);
    ek_picker_free(picker);
    ek_pool_free(pool);
}

/* Case 37: sizes of structs from none to larger than known. A field counts if it is there whole:
 * each call below has a value that is refused in one field, and defaults before it. */
enum { LARGER = 64 };

#define FIELD(type, field) offsetof(type, field), sizeof((type *)NULL)->field, sizeof(type)

static void sizes(const char *what, size_t offset, size_t field, size_t known, int32_t refused,
                  int32_t (*call)(size_t size, const void *value, size_t offset, size_t field),
                  const void *value)
{
    size_t none[] = {0, 7, 4097, SIZE_MAX};
    for (size_t i = 0; i < 4; i++)
        GIVES(EK_ERR_INVALID, call(none[i], NULL, 0, 0));
    for (size_t size = 8; size <= known + LARGER; size++) {
        int32_t expected = size >= offset + field ? refused : EK_OK;
        int32_t given = call(size, value, offset, field);
        if (given != expected) {
            fprintf(stderr, "%s: size %zu gives %s\n", what, size, ek_status_str(given));
            exit(1);
        }
    }
    for (size_t at = known; at < known + LARGER; at++) {
        GIVES(EK_ERR_VERSION, call(known + LARGER, "\1", at, 1));
        OK(call(at, "\1", at, 1)); /* beyond the size */
    }
    SAYS("is not 0; allowed beyond the ");
}

static ek_pool *sized_pool;

/* Defaults, but for one value, in as little memory as that takes: a checker sees reads beyond. */
static void *sized(int32_t (*init)(void *, size_t), size_t size, const void *value, size_t offset,
                   size_t field)
{
    size_t room = size > 4096 || size < 8 ? 8 : size;
    unsigned char whole[4096] = {0}, *exact = (unsigned char *)malloc(room);
    CHECK(exact != NULL);
    OK(init(whole, 4096));
    memcpy(whole, &size, sizeof size);
    if (value != NULL)
        memcpy(whole + offset, value, field);
    memcpy(exact, whole, room);
    return exact;
}

static int32_t by_tune(size_t size, const void *value, size_t offset, size_t field)
{
    void *tuning = sized(ek_tuning_init_sized, size, value, offset, field);
    int32_t given = ek_pool_tune(sized_pool, (const ek_tuning *)tuning);
    free(tuning);
    return given;
}

static int32_t by_new(size_t size, const void *value, size_t offset, size_t field)
{
    void *config = sized(ek_pool_config_init_sized, size, value, offset, field);
    ek_pool *pool = NULL;
    int32_t given = ek_pool_new((const ek_pool_config *)config, &pool);
    CHECK((given == EK_OK) == (pool != NULL));
    ek_pool_free(pool);
    free(config);
    return given;
}

static int32_t by_ensure(size_t size, const void *value, size_t offset, size_t field)
{
    void *config = sized(ek_worker_config_init_sized, size, value, offset, field);
    ek_worker_id worker;
    int32_t given = ek_pool_ensure(sized_pool, 1, (const ek_worker_config *)config, &worker);
    free(config);
    return given;
}

static int32_t by_set_members(size_t size, const void *value, size_t offset, size_t field)
{
    void *config = sized(ek_worker_config_init_sized, size, value, offset, field);
    uint64_t key = 1;
    int32_t given =
        ek_pool_set_members(sized_pool, &key, (const ek_worker_config *)config, size, 1);
    free(config);
    return given;
}

static int32_t by_pick(size_t size, const void *value, size_t offset, size_t field)
{
    void *request = sized(ek_request_init_sized, size, value, offset, field);
    ek_worker_id worker;
    int32_t given = ek_pool_pick(sized_pool, (const ek_request *)request, &worker);
    free(request);
    return given;
}

static int32_t by_publish(size_t size, const void *value, size_t offset, size_t field)
{
    size_t room = size < 8 || size > 4096 ? 8 : size;
    unsigned char whole[4096] = {0}, *exact = (unsigned char *)malloc(room);
    size_t rejected = 99;
    CHECK(exact != NULL);
    if (value != NULL)
        memcpy(whole + offset, value, field);
    memcpy(exact, whole, room);
    int32_t given = ek_pool_publish(sized_pool, (const ek_load *)(void *)exact, size, 1, &rejected);
    CHECK((given == EK_OK) == (rejected == 1)); /* it is of worker 0 */
    free(exact);
    return given;
}

static void growing_structs(void)
{
    uint32_t zero = 0, two = 2, large = 2000000;
    uint64_t wide = (uint64_t)1 << 32;
    size_t one = 1;
    ek_tuning tuning;
    const ek_tuning *bad_tuning = &tuning;
    char longest[257];
    const char *label = longest;

    OK(ek_tuning_init(&tuning));
    tuning.choices = 0;
    memset(longest, 'x', sizeof longest - 1);
    longest[256] = '\0';
    sized_pool = new_pool();
    add(sized_pool, 1);

#define SIZES(call, type, field, refused, value) \
    sizes(#type "." #field, FIELD(type, field), refused, call, value)
    SIZES(by_tune, ek_tuning, policy, EK_ERR_INVALID, &large);
    SIZES(by_tune, ek_tuning, choices, EK_ERR_INVALID, &zero);
    SIZES(by_tune, ek_tuning, unreported_compete, EK_ERR_INVALID, &two);
    SIZES(by_tune, ek_tuning, hash_load_factor, EK_ERR_INVALID, &wide);
    SIZES(by_new, ek_pool_config, capacity, EK_ERR_INVALID, &zero);
    SIZES(by_new, ek_pool_config, tuning, EK_ERR_INVALID, &bad_tuning);
    SIZES(by_ensure, ek_worker_config, weight, EK_ERR_INVALID, &large);
    SIZES(by_ensure, ek_worker_config, max_in_flight, EK_ERR_INVALID, &large);
    SIZES(by_ensure, ek_worker_config, vetoes, EK_ERR_INVALID, &large);
    SIZES(by_ensure, ek_worker_config, fresh, EK_ERR_INVALID, &two);
    SIZES(by_ensure, ek_worker_config, label, EK_ERR_INVALID, &label);
    SIZES(by_set_members, ek_worker_config, weight, EK_ERR_INVALID, &large);
    SIZES(by_set_members, ek_worker_config, label, EK_ERR_INVALID, &label);
    SIZES(by_pick, ek_request, policy, EK_ERR_INVALID, &large);
    SIZES(by_pick, ek_request, tokens, EK_ERR_INVALID, &wide);
    SIZES(by_pick, ek_request, candidate_count, EK_ERR_NULL, &one);
    SIZES(by_pick, ek_request, excluded_count, EK_ERR_NULL, &one);
    SIZES(by_publish, ek_load, worker, EK_OK, "\0\0\0\0\0\0\0");
#undef SIZES

    /* What is missing of a shorter load: its tokens are none, its requests unknown. */
    ek_worker_id worker = add(sized_pool, 2);
    for (size_t size = 8; size <= sizeof(ek_load); size++) {
        ek_load load = {worker, 5, 6, 7, 8};
        unsigned char bytes[2 * sizeof load] = {0};
        size_t rejected;
        memcpy(bytes + size, &load, size); /* the second one, so that it is not aligned */
        OK(ek_pool_publish(sized_pool, (const ek_load *)(void *)bytes, size, 2, &rejected));
        ek_worker_stats row = stats(sized_pool, worker);
        CHECK(rejected == (size < 16 ? 2 : 1) && row.has_load == (size >= 16));
        CHECK(row.load_tokens == (size < 16 ? 0 : 5));
        CHECK(size < 16 || row.load_running == (size < 20 ? UINT32_MAX : 6));
        CHECK(size < 16 || row.load_waiting == (size < 24 ? UINT32_MAX : 7));
        CHECK(size < 16 || row.load_timestamp == (size < 32 ? 0 : 8));
        OK(ek_pool_publish(sized_pool, NULL, 0, 0, &rejected));
    }
    /* A later one that isn't understood: nothing of the report is published. */
    struct { ek_load known; uint64_t later; } loads[] = {
        {{worker, 5, 6, 7, 8}, 0},
        {{worker, 1, 1, 1, 1}, 1},
    };
    const ek_load *first = &loads[0].known;
    size_t rejected = 99, many = SIZE_MAX / 4096;
    uint64_t version = totals(sized_pool).version;
    GIVES(EK_ERR_VERSION, ek_pool_publish(sized_pool, first, sizeof *loads, 2, &rejected));
    GIVES(EK_ERR_INVALID, ek_pool_publish(sized_pool, first, 4096, many, &rejected));
    CHECK(rejected == 99 && totals(sized_pool).version == version);

    /* Configurations that lie in larger structs of the caller's, and not aligned. */
    struct { ek_worker_config config; uint64_t own; } members[] = {
        {worker_config(), 77},
        {worker_config(), 78},
    };
    uint64_t keys[] = {1, 2};
    members[1].config.weight = 9;
    OK(ek_pool_set_members(sized_pool, keys, &members[0].config, sizeof *members, 2));
    CHECK(stats(sized_pool, worker).weight == 9);
    unsigned char packed[2 * sizeof(ek_worker_config) + 2];
    members[0].config.weight = 3;
    memcpy(packed, &members[1].config, sizeof(ek_worker_config));
    memcpy(packed + sizeof(ek_worker_config) + 1, &members[0].config, sizeof(ek_worker_config));
    OK(ek_pool_set_members(sized_pool, keys, (const ek_worker_config *)(void *)packed,
                           sizeof(ek_worker_config) + 1, 2));
    CHECK(stats(sized_pool, worker).weight == 3);

    /* Defaults are written as far as the caller's struct goes, and zeros beyond the library's. */
    static const struct { int32_t (*init)(void *, size_t); size_t known; } inits[] = {
        {ek_pool_config_init_sized, sizeof(ek_pool_config)},
        {ek_tuning_init_sized, sizeof(ek_tuning)},
        {ek_worker_config_init_sized, sizeof(ek_worker_config)},
        {ek_request_init_sized, sizeof(ek_request)},
    };
    for (size_t i = 0; i < sizeof inits / sizeof *inits; i++) {
        unsigned char bytes[256];
        size_t none[] = {0, 7, 4097, SIZE_MAX}, struct_size;
        memset(bytes, 0xab, sizeof bytes);
        for (size_t j = 0; j < 4; j++)
            GIVES(EK_ERR_INVALID, inits[i].init(bytes, none[j]));
        CHECK(bytes[0] == 0xab);
        for (size_t size = 8; size < 128; size++) {
            memset(bytes, 0xab, sizeof bytes);
            OK(inits[i].init(bytes, size));
            memcpy(&struct_size, bytes, sizeof struct_size);
            CHECK(struct_size == size && bytes[size] == 0xab);
            for (size_t at = inits[i].known; at < size; at++)
                CHECK(bytes[at] == 0);
        }
        GIVES(EK_ERR_NULL, inits[i].init(NULL, 64));
    }
    ek_pool_free(sized_pool);
}

int main(void)
{
    versions_statuses_and_errors();
    keys_slots_and_policies();
    pools_and_members();
    reports_and_polls();
    choices();
    requests();
    statistics();
    null_pointers();
    growing_structs();
    return 0;
}
