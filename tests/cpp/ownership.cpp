// What evenkeel.hpp adds to evenkeel.h: who ends a request and when, what holds the pool, what an
// empty handle says, and that defaults and lists arrive.
#include "evenkeel.hpp"
// Twice.
#include "evenkeel.hpp"

#include "check.hpp"

#include <chrono>
#include <cstring>
#include <thread>
#if __cplusplus >= 202002L
#include <span>
#endif

using namespace evenkeel;

namespace {

std::uint64_t raw_in_flight(const ek_pool *pool) {
    Totals totals;
    CHECK(ek_pool_totals_get(pool, &totals, sizeof totals) == EK_OK);
    return totals.in_flight;
}

template <typename T>
constexpr bool moves_alone = std::is_nothrow_move_constructible_v<T> &&
                             std::is_nothrow_move_assignable_v<T> &&
                             !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(moves_alone<Pool> && moves_alone<Picker> && moves_alone<Poll>);
static_assert(moves_alone<InFlight> && moves_alone<Result<InFlight>>);
// A list of what derives from its elements would have the wrong distance.
static_assert(!std::is_constructible_v<List<ek_load>, std::vector<Load> &>);

void a_request_ends_once() {
    Pool pool = new_pool(2);
    Pool &same = pool;
    pool = std::move(same);
    {
        auto first = pool.dispatch();
        CHECK(first && *first && first->worker() != 0 && in_flight(pool) == 1);
        InFlight moved = *std::move(first);
        CHECK(!*first && first->worker() == 0 && moved && in_flight(pool) == 1);
        InFlight second = *pool.dispatch();
        CHECK(in_flight(pool) == 2);
        moved = std::move(second);  // What it had ends here.
        CHECK(in_flight(pool) == 1 && moved && !second);
        InFlight &itself = moved;
        moved = std::move(itself);
        CHECK(in_flight(pool) == 1 && moved);
        std::vector<InFlight> many;
        for (int i = 0; i < 100; i++) many.push_back(*pool.dispatch());
        CHECK(in_flight(pool) == 101);
        std::thread([taken = std::move(many)]() mutable { taken.clear(); }).join();
        CHECK(in_flight(pool) == 1);
        OK(moved.finish());
        CHECK(!moved && in_flight(pool) == 0);
        CHECK(moved.finish() == Status::null);
    }
    CHECK(in_flight(pool) == 0 && anomalies(pool) == 0 && pool.totals()->finished == 102);
}

void a_request_outlives_pool_and_picker() {
    ek_pool *watched = nullptr;
    InFlight of_pool, of_picker, begun;
    {
        Pool pool = new_pool(3);
        watched = pool.get();
        CHECK(ek_pool_ref(watched) == EK_OK);
        Picker picker = *pool.picker();
        of_pool = *pool.dispatch();
        of_picker = *picker.dispatch();
        begun = *pool.begin(*pool.find(0), 7);
    }
    CHECK(raw_in_flight(watched) == 3 && begun.tokens() == 7);
    OK(begun.grow(3));
    CHECK(begun.tokens() == 10);
    of_pool = {};
    of_picker = {};
    CHECK(raw_in_flight(watched) == 1);
    std::thread([taken = std::move(begun)] {}).join();
    CHECK(raw_in_flight(watched) == 0);
    ek_pool_free(watched);

    // Here nothing else holds the pool; a checker of memory would tell.
    InFlight last;
    Poll poll;
    {
        Pool pool = new_pool(1);
        last = *pool.picker()->dispatch();
        poll = *pool.poll();
    }
    OK(poll.begin());
    OK(last.finish());
    CHECK(poll.publish({}));
}

void an_abandoned_request_is_one_anomaly() {
    Pool pool = new_pool(1);
    InFlight told = *pool.dispatch(), untold = *pool.dispatch();
    OK(pool.abandon(told.worker()));
    CHECK(told.finish() == Status::stale && !told && anomalies(pool) == 1);
    told = {};
    CHECK(anomalies(pool) == 1);
    untold = {};
    CHECK(anomalies(pool) == 2);
}

void a_ticket_is_given_away_and_taken_back() {
    Pool pool = new_pool(2);
    Request request;
    request.tokens = 5;
    InFlight whole = *pool.dispatch(request);
    Ticket ticket = whole.release();
    CHECK(!whole && in_flight(pool) == 1);
    { const InFlight guarded = pool.guard(ticket); }
    CHECK(in_flight(pool) == 0);
    const WorkerId worker = pool.dispatch(request)->release().worker;
    OK(pool.finish_worker(worker, 5));
    CHECK(in_flight(pool) == 0 && anomalies(pool) == 0);

    InFlight moved = *pool.begin(*pool.find(0), 5);
    OK(moved.retarget(*pool.find(1)));
    CHECK(moved.worker() == *pool.find(1) && in_flight(pool) == 1);
}

void what_is_empty_says_so() {
    Pool pool;
    CHECK(pool.get() == nullptr && pool.add(1).status() == Status::null);
    CHECK(pool.dispatch().status() == Status::null && pool.pick().status() == Status::null);
    CHECK(pool.picker().status() == Status::null && pool.poll().status() == Status::null);
    CHECK(pool.stats().status() == Status::null && pool.totals().status() == Status::null);
    CHECK(pool.tune({}) == Status::null && !pool.guard({}));
    CHECK(Picker().dispatch().status() == Status::null && Poll().begin() == Status::null);
    CHECK(InFlight().grow(1) == Status::null && InFlight().tokens() == 0);

    Pool full = new_pool(1);
    Pool moved = std::move(full);
    CHECK(full.dispatch().status() == Status::null && moved.dispatch());
    PoolConfig config;
    config.capacity = 0;
    const auto failed = Pool::create(config);
    CHECK(!failed && failed.status() == Status::invalid && failed->get() == nullptr);
    CHECK(error_message().find("capacity") != std::string::npos);
    CHECK(std::strcmp(status_str(Status::saturated), ek_status_str(EK_ERR_SATURATED)) == 0);
}

void defaults_are_those_of_c() {
    ek_tuning tuning;
    CHECK(ek_tuning_init(&tuning) == EK_OK);
    const Tuning t;
    CHECK(static_cast<std::uint32_t>(t.policy) == tuning.policy && t.choices == tuning.choices);
    CHECK(t.request_tokens == tuning.request_tokens);
    CHECK(t.unreported_compete == (tuning.unreported_compete != 0));
    CHECK(t.hash_load_factor == tuning.hash_load_factor);
    ek_pool_config pool;
    CHECK(ek_pool_config_init(&pool) == EK_OK);
    const PoolConfig p;
    CHECK(p.capacity == pool.capacity && p.load_max_age_ms == pool.load_max_age_ms);
    CHECK(p.seed == pool.seed);
    ek_worker_config worker;
    CHECK(ek_worker_config_init(&worker) == EK_OK);
    const WorkerConfig w;
    CHECK(w.weight == worker.weight && w.max_in_flight == worker.max_in_flight);
    CHECK(w.vetoes == worker.vetoes && w.fresh == (worker.fresh != 0) && w.label == worker.label);
    ek_request request;
    CHECK(ek_request_init(&request) == EK_OK);
    const ek_request made = detail::raw(Request{});
    CHECK(made.struct_size == request.struct_size && made.policy == request.policy);
    CHECK(made.tokens == request.tokens && made.candidates == request.candidates);
    CHECK(made.candidate_count == request.candidate_count && made.excluded == request.excluded);
    CHECK(made.excluded_count == request.excluded_count && made.hash == request.hash);
    const Load load{1, 2};
    CHECK(load.worker == 1 && load.tokens == 2 && load.timestamp == 0);
    CHECK(load.running == UINT32_MAX && load.waiting == UINT32_MAX);
}

void configurations_arrive() {
    Tuning tuning;
    tuning.policy = Policy::round_robin;
    tuning.choices = 3;
    tuning.request_tokens = 4;
    tuning.unreported_compete = true;
    tuning.hash_load_factor = 125;
    const ek_tuning t = detail::raw(tuning);
    CHECK(t.policy == EK_POLICY_ROUND_ROBIN && t.choices == 3);
    CHECK(t.request_tokens == 4 && t.unreported_compete == 1 && t.hash_load_factor == 125);

    WorkerConfig worker;
    worker.weight = 2;
    worker.max_in_flight = 3;
    worker.vetoes = veto_operator;
    worker.fresh = true;
    worker.label = "a:1";
    const ek_worker_config w = detail::raw(worker);
    CHECK(w.weight == 2 && w.max_in_flight == 3 && w.vetoes == EK_VETO_OPERATOR && w.fresh == 1);
    CHECK(w.label == worker.label);

    PoolConfig config;
    config.capacity = 16;
    config.load_max_age_ms = 1;
    config.seed = 7;
    config.tuning.policy = Policy::round_robin;
    Pool pool = *Pool::create(config), twin = *Pool::create(config);
    for (std::uint64_t key = 0; key < 16; key++) CHECK(pool.add(key) && twin.add(key));
    CHECK(pool.add(16).status() == Status::full);
    const std::uint32_t first = worker_slot(*pool.pick());
    CHECK(worker_slot(*twin.pick()) == first && worker_slot(*pool.pick()) == (first + 1) % 16);

    const auto choices = [](Picker picker) {
        Request request;
        request.policy = Policy::random;
        std::vector<std::uint32_t> slots;
        for (int i = 0; i < 32; i++) slots.push_back(worker_slot(*picker.pick(request)));
        return slots;
    };
    const auto of_the_pool = choices(*pool.picker());
    CHECK(of_the_pool == choices(*twin.picker()) && of_the_pool != choices(*pool.picker()));
    const auto of_nine = choices(*pool.picker(9));
    CHECK(of_nine == choices(*pool.picker(9)) && of_nine != choices(*pool.picker(10)));

    const Load load{*pool.find(0), 1};
    CHECK(*pool.publish({&load, 1}) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    CHECK(pool.stats()->front().has_load == 0);
}

void requests_and_lists_arrive() {
    PoolConfig config;
    config.seed = 1;
    config.tuning.policy = Policy::random;
    Pool pool = *Pool::create(config);
    std::vector<WorkerId> ids;
    for (std::uint64_t key = 0; key < 3; key++) ids.push_back(*pool.add(key));
    Picker picker = *pool.picker(9);

    Request request;
    request.excluded = ids;
    CHECK(pool.pick(request).status() == Status::empty);
    CHECK(picker.dispatch(request).status() == Status::empty);
    request.excluded = {ids.data(), 2};
    CHECK(*picker.pick(request) == ids[2] && *pool.pick(request) == ids[2]);
    const std::array<WorkerId, 2> two = {ids[0], ids[0]};
    request = {};
    request.candidates = two;
    CHECK(*pool.pick(request) == ids[0]);
    request.candidates = {};
    CHECK(pool.pick(request).status() == Status::empty);
    request.candidates = all_workers;
    request.policy = Policy::round_robin;
    const WorkerId first = *pool.pick(request);
    CHECK(*pool.pick(request) != first && *pool.pick(request) != first);
    CHECK(*pool.pick(request) == first);
    request.policy = static_cast<Policy>(9999);
    CHECK(pool.pick(request).status() == Status::invalid);
#if __cplusplus >= 202002L
    CHECK(pool.pick({.tokens = 1, .excluded = std::span(ids).first(2)}).status() == Status::ok);
#endif

    Load loads[] = {{ids[0], 30}, {ids[1], 10}, {ids[1], 20}};
    loads[0].running = 4;
    CHECK(*pool.publish(loads) == 1);
    const auto rows = *pool.stats();
    CHECK(rows.size() == 3 && rows[0].load_tokens == 30 && rows[0].load_running == 4);
    CHECK(rows[1].load_tokens == 10 && rows[2].has_load == 0);
    Poll poll = *pool.poll(List<WorkerId>(&ids[2], 1));
    CHECK(poll.publish(loads).status() == Status::invalid);
    OK(poll.begin());
    CHECK(*poll.publish(loads) == 3);
    CHECK((*pool.stats())[0].load_tokens == 30);
}

void changes_arrive() {
    Pool pool = new_pool(0);
    WorkerConfig config;
    config.weight = 3;
    config.label = "a:1";
    const WorkerId a = *pool.ensure(1, config);
    CHECK(pool.add(1).status() == Status::exists && *pool.ensure(1) == a && *pool.find(1) == a);
    WorkerUpdate update;
    update.max_in_flight = 1;
    OK(pool.update(a, update));
    const auto row = [&] { return pool.stats()->front(); };
    CHECK(row().weight == 3 && row().max_in_flight == 1 && std::strcmp(row().label, "a:1") == 0);
    update = {};
    update.weight = 5;
    update.label = "a:2";
    OK(pool.update(a, update));
    CHECK(row().weight == 5 && row().max_in_flight == 1 && std::strcmp(row().label, "a:2") == 0);
    const InFlight one = *pool.dispatch();
    CHECK(pool.dispatch().status() == Status::saturated);
    OK(pool.veto(a, veto_host | veto_health, true));
    CHECK(row().vetoes == (veto_host | veto_health) && pool.pick().status() == Status::empty);
    OK(pool.veto(a, veto_host | veto_health, false));
    CHECK(row().vetoes == 0);

    std::vector<Member> members(2);
    members[0].key = 1;
    members[1].key = 2;
    members[1].config.label = "b:1";
    OK(pool.set_members(members));
    CHECK(row().weight == 1 && pool.stats()->at(1).key == 2 && *pool.find(1) == a);
    OK(pool.set_members(std::array<std::uint64_t, 1>{2}));
    CHECK(pool.find(1).status() == Status::unknown && pool.totals()->draining == 1);
    OK(pool.remove(*pool.find(2)));
    CHECK(pool.totals()->workers == 0);

    Tuning tuning;
    tuning.choices = 1;
    CHECK(pool.tune(tuning) == Status::invalid);
    CHECK(*policy_parse("power_of_two") == Policy::p2c_tokens);
    CHECK(policy_parse("least-requests").status() == Status::invalid);
    CHECK(std::strcmp(policy_name(Policy::random), "random") == 0);
    CHECK(policy_name(Policy::default_) == nullptr);
    CHECK(key("a") == ek_key("a") && key(std::string("a")) == ek_key("a"));
}

void a_former_workers_object_is_not_found() {
    Pool pool = new_pool(0);
    PerWorker<std::string> names(4);
    const WorkerId a = *pool.add(1);
    CHECK(names.find(a) == nullptr && names.find(0) == nullptr);
    CHECK(*names.emplace(a, "a") == "a" && *names.find(a) == "a");

    // It comes back while a request runs: the same worker, with its object.
    InFlight running = *pool.dispatch();
    OK(pool.remove(a));
    CHECK(*names.find(running.worker()) == "a" && *pool.add(1) == a);
    CHECK(*names.emplace(a, "another") == "a");

    // It comes back after its last request.
    OK(pool.remove(a));
    OK(running.finish());
    const WorkerId b = *pool.add(1);
    CHECK(b != a && worker_slot(b) == worker_slot(a));
    CHECK(names.find(b) == nullptr);
    CHECK(*names.emplace(b, "b") == "b" && *names.find(b) == "b" && names.find(a) == nullptr);

    // Ids beyond the capacity.
    for (std::uint64_t key = 2; key < 6; key++) CHECK(pool.add(key));
    CHECK(names.emplace(*pool.find(5), "beyond") == nullptr && names.find(*pool.find(5)) == nullptr);
    CHECK(names.emplace(0, "none") == nullptr && *names.find(b) == "b");
}

/// Threads take and drop requests by leases of their own, and hand them to each other.
void threads_share_a_pool() {
    Pool pool = new_pool(4);
    std::vector<std::thread> threads;
    std::array<std::vector<InFlight>, 8> handed;
    for (std::vector<InFlight> &mine : handed)
        threads.emplace_back([&] {
            Picker picker = *pool.picker();
            for (int i = 0; i < 1000; i++) {
                mine.push_back(*pool.dispatch());
                mine.push_back(*picker.dispatch());
            }
        });
    for (std::thread &thread : threads) thread.join();
    threads.clear();
    CHECK(in_flight(pool) == 16000);
    pool = {};
    for (std::vector<InFlight> &others : handed)
        threads.emplace_back([taken = std::move(others)] {});
    for (std::thread &thread : threads) thread.join();
}

}  // namespace

int main() {
    a_request_ends_once();
    a_request_outlives_pool_and_picker();
    an_abandoned_request_is_one_anomaly();
    a_ticket_is_given_away_and_taken_back();
    what_is_empty_says_so();
    defaults_are_those_of_c();
    configurations_arrive();
    requests_and_lists_arrive();
    changes_arrive();
    a_former_workers_object_is_not_found();
    threads_share_a_pool();
}
