// A load balancer of the shape that brpc's have: SelectServer on one thread, Feedback on another,
// to where the call's fiber was moved meanwhile. What travels between them is the worker's id
// alone, so the request is ended by it. A call that failed goes to another server, and a server
// leaves while it has calls.
#include <evenkeel.hpp>

#include <cinttypes>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

using evenkeel::Status;
using evenkeel::WorkerId;

namespace {

void expect(bool holds, const char *what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::exit(1);
}

class LoadBalancer {
public:
    using ServerId = std::uint64_t;

    struct SelectIn {
        /// Servers that this call failed on.
        evenkeel::List<WorkerId> excluded;
    };
    struct SelectOut {
        WorkerId worker;
    };
    struct CallInfo {
        WorkerId worker;
    };

    bool AddServer(ServerId server) { return bool(pool_.add(server)); }

    bool RemoveServer(ServerId server) {
        const auto worker = pool_.find(server);
        return worker && pool_.remove(*worker) == Status::ok;
    }

    /// Fibers have no thread of their own that a picker could belong to: the pool chooses by the
    /// generator of the thread that the fiber is on.
    bool SelectServer(const SelectIn &in, SelectOut *out) {
        evenkeel::Request request;
        request.excluded = in.excluded;
        auto in_flight = pool_.dispatch(request);
        if (!in_flight) return false;
        out->worker = in_flight->release().worker;
        return true;
    }

    /// A server that was removed still gets the feedback of its last calls.
    void Feedback(const CallInfo &call) {
        expect(pool_.finish_worker(call.worker) == Status::ok, "each call ends once");
    }

    const evenkeel::Pool &pool() const { return pool_; }

private:
    evenkeel::Pool pool_ = *evenkeel::Pool::create();
};

struct Call {
    std::uint64_t number;
    WorkerId worker;
    bool retried;
};

/// Calls on their way to the threads that their responses wake.
class Responses {
public:
    void push(Call call) {
        const std::lock_guard<std::mutex> lock(mutex_);
        calls_.push_back(call);
        more_.notify_one();
    }

    bool pop(Call *call) {
        std::unique_lock<std::mutex> lock(mutex_);
        more_.wait(lock, [this] { return closed_ || !calls_.empty(); });
        if (calls_.empty()) return false;
        *call = calls_.front();
        calls_.pop_front();
        return true;
    }

    void close() {
        const std::lock_guard<std::mutex> lock(mutex_);
        closed_ = true;
        more_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable more_;
    std::deque<Call> calls_;
    bool closed_ = false;
};

constexpr std::uint64_t servers = 6, calls = 60000;

}  // namespace

int main() {
    LoadBalancer balancer;
    for (LoadBalancer::ServerId server = 0; server < servers; server++)
        expect(balancer.AddServer(server), "it is new");
    Responses responses;

    std::thread select([&] {
        for (std::uint64_t number = 0; number < calls; number++) {
            LoadBalancer::SelectOut out{};
            expect(balancer.SelectServer({}, &out), "a server");
            responses.push({number, out.worker, false});
            if (number == calls / 2) expect(balancer.RemoveServer(3), "it was there");
        }
        responses.close();
    });

    std::thread feedback([&] {
        Call call{};
        std::uint64_t retries = 0;
        while (responses.pop(&call)) {
            balancer.Feedback({call.worker});
            if (call.number % 100 != 0) continue;
            // It failed. The retry is selected here, and answered at once.
            LoadBalancer::SelectOut out{};
            expect(balancer.SelectServer({{&call.worker, 1}}, &out), "another server");
            expect(out.worker != call.worker, "not the one that failed");
            balancer.Feedback({out.worker});
            retries++;
        }
        expect(retries == calls / 100, "each failed call was retried");
    });
    select.join();
    feedback.join();

    const auto rows = balancer.pool().stats();
    expect(bool(rows), "statistics");
    for (const auto &row : *rows) {
        std::printf("server %" PRIu64 ": %" PRIu64 " calls, %u in flight\n", row.key, row.finished,
                    row.in_flight);
        expect(row.in_flight == 0, "every count is 0");
    }
    const auto totals = balancer.pool().totals();
    expect(totals && totals->workers == servers - 1 && totals->draining == 0, "one server less");
    expect(totals->finished == calls + calls / 100, "every call ended");
    expect(totals->in_flight == 0 && totals->anomalies == 0, "nothing in flight, nothing amiss");
}
