// Cases 41, 42, 43, 45, 47 and 48 where owning handles change them: by evenkeel.hpp.
#include "check.hpp"

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

// A child that has not ended by then has hung. Checkers make it slower.
#ifndef SECONDS
#define SECONDS 2
#endif

using namespace evenkeel;

namespace {

/// Case 43, at exit: it outlives main, and its pool's handle with it.
struct AtExit {
    Pool pool;
    InFlight in_flight;
    ~AtExit() {
        CHECK(pool.totals()->in_flight == 1);
        in_flight = {};
        CHECK(pool.totals()->in_flight == 0 && pool.dispatch());
        std::puts("ended at exit");
    }
} at_exit;

/// Case 43, at a thread's end.
thread_local std::vector<InFlight> of_thread;

void requests_end_with_their_thread() {
    Pool pool = new_pool(4);
    for (int i = 0; i < 50; i++) {
        std::thread([&] {
            Picker picker = *pool.picker();
            of_thread.push_back(*pool.dispatch());
            of_thread.push_back(*picker.dispatch());
        }).join();
    }
    CHECK(in_flight(pool) == 0 && pool.totals()->finished == 100 && anomalies(pool) == 0);
    // The last holder of the pool is the thread's request.
    std::thread([] {
        Pool own = new_pool(1);
        of_thread.push_back(*own.dispatch());
    }).join();
}

/// Case 41. Each thread keeps a request beyond the pool's handle.
void many_pools(unsigned pools) {
    constexpr unsigned threads = 8;
    Pool pool;
    std::array<std::array<InFlight, 2>, threads> kept;
    std::atomic<unsigned> turn{0}, arrived{0};
    const auto wait = [](const std::atomic<unsigned> &counter, unsigned value) {
        while (counter.load() < value) std::this_thread::yield();
    };
    std::vector<std::thread> running;
    for (auto &own : kept)
        running.emplace_back([&] {
            for (unsigned i = 1; i <= pools; i++) {
                wait(turn, i);
                Picker picker = *pool.picker();
                Poll poll = *pool.poll();
                OK(poll.begin());
                own = {*pool.dispatch(), *picker.dispatch()};
                CHECK(poll.publish({}));
                arrived.fetch_add(1);
            }
        });
    for (unsigned i = 1; i <= pools; i++) {
        pool = new_pool(4);
        turn.store(i);
        wait(arrived, i * threads);
        CHECK(in_flight(pool) == 2 * threads);
    }
    pool = {};
    for (std::thread &thread : running) thread.join();
}

void publish_beside_forks(Pool &pool, WorkerId worker, const std::atomic<bool> &done) {
    while (!done.load()) {
        const Load load{worker, 7};
        CHECK(pool.publish({&load, 1}));
        OK(pool.remove(*pool.add(1000)));
    }
}

/// Not inline, so that suppressions know it by its name.
[[gnu::noinline]] std::thread start_beside_forks(Pool &pool, WorkerId worker,
                                                 const std::atomic<bool> &done) {
    return std::thread(publish_beside_forks, std::ref(pool), worker, std::cref(done));
}

/// Case 42.
void forks(unsigned children) {
    Pool pool = new_pool(16);
    Picker picker = *pool.picker();
    InFlight held = *pool.dispatch();
    std::atomic<bool> done{false};
    std::thread publisher = start_beside_forks(pool, held.worker(), done);
    for (; children > 0; children--) {
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(SECONDS);
            {
                InFlight one = *pool.dispatch(), other = *picker.dispatch();
                CHECK(in_flight(pool) == 3 && pool.pick() && picker.pick());
                CHECK(pool.publish({}) && pool.add(1001));
            }
            held = {};
            CHECK(in_flight(pool) == 0);
            picker = {};
            pool = {};
            _exit(0);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    done.store(true);
    publisher.join();
    CHECK(in_flight(pool) == 1);
}

/// Case 45.
void statistics_change_no_choice(unsigned times) {
    PoolConfig config;
    config.seed = 7;
    Pool watched = *Pool::create(config), unwatched = *Pool::create(config);
    for (std::uint64_t key = 0; key < 16; key++) CHECK(watched.add(key) && unwatched.add(key));
    Picker one = *watched.picker(), other = *unwatched.picker();
    std::vector<InFlight> held;
    for (unsigned choice = 0; choice < 1000; choice++) {
        for (unsigned i = 0; i < times / 1000; i++)
            CHECK(watched.stats()->size() == 16 && watched.totals()->in_flight == choice);
        Request request;
        request.policy = static_cast<Policy>(choice % 9);
        held.push_back(*one.dispatch(request));
        held.push_back(*other.dispatch(request));
        CHECK(worker_slot(held[2 * choice].worker()) == worker_slot(held[2 * choice + 1].worker()));
    }
}

/// Case 47, in each order of the ends of pickers, polls and requests; checkers of memory see the rest.
void handles_outlive_their_pool() {
    for (int order = 0; order < 6; order++) {
        auto pool = std::make_unique<Pool>(new_pool(2));
        Picker picker = *pool->picker();
        Poll poll = *pool->poll();
        InFlight request = *pool->dispatch();
        pool.reset();
        for (int step = 0; step < 3; step++) {
            switch ((step * (order / 3 + 1) + order) % 3) {
            case 0:
                CHECK(picker.pick());
                std::thread([&] { CHECK(picker.dispatch()); }).join();
                picker = {};
                break;
            case 1:
                OK(poll.begin());
                CHECK(poll.publish({}));
                poll = {};
                break;
            default:
                OK(request.grow(1));
                request = {};
                break;
            }
        }
    }
}

/// Case 48: what is refused owns nothing.
void the_largest_is_not_exceeded() {
    Pool pool = new_pool(1);
    const WorkerId worker = *pool.find(0);
    InFlight all = *pool.begin(worker, UINT32_MAX);
    {
        Request request;
        request.tokens = 1;
        const auto refused = pool.dispatch(request);
        CHECK(refused.status() == Status::overflow && !*refused);
        CHECK(pool.begin(worker, 1).status() == Status::overflow);
        CHECK(all.grow(1) == Status::overflow && all.tokens() == UINT32_MAX);
    }
    CHECK(in_flight(pool) == 1 && pool.stats()->front().tokens == UINT32_MAX);
    OK(all.finish());
    CHECK(pool.stats()->front().tokens == 0 && pool.totals()->finished == 1);
}

}  // namespace

int main(int argc, char **argv) {
    at_exit.pool = new_pool(2);
    at_exit.in_flight = *at_exit.pool.dispatch();
    requests_end_with_their_thread();
    many_pools(rounds(argc, argv, 5000));
    forks(rounds(argc, argv, 100) < 100 ? rounds(argc, argv, 100) : 100);
    statistics_change_no_choice(10000);
    handles_outlive_their_pool();
    the_largest_is_not_exceeded();
}
