// 16 threads use one pool by evenkeel.hpp, all at once; the first argument says how often (each of
// them). Requests move between threads and end wherever they are dropped; workers come, go, are
// abandoned and return. At the end every count is 0, and the sums
// agree with what the threads saw.
#include "check.hpp"

#include <array>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

using namespace evenkeel;

namespace {

constexpr std::uint32_t capacity = 20;
constexpr std::uint64_t keys = 16;
constexpr unsigned threads = 16;

/// What threads did, by the statuses that they got.
struct Sums {
    std::uint64_t begun = 0, told_stale = 0, saturated = 0, rejected = 0;
};

struct Host {
    Pool pool;
    /// Requests for whoever takes them next.
    std::mutex mutex;
    std::array<InFlight, 64> shelf;
};

class Router {
public:
    Router(Host &host, unsigned seed) : host_(host), pool_(host.pool), random_(seed) {}

    Sums route(unsigned times) {
        std::array<InFlight, 32> held;
        for (unsigned i = 0; i < times; i++) {
            InFlight &request = held[below(held.size())];
            switch (const auto what = below(100)) {
            case 0:
                change_members();
                break;
            case 1:
                report();
                break;
            case 2:
                watch();
                break;
            default:
                if (!request)
                    dispatch(request);
                else if (what < 20)
                    grow_or_move(request);
                else if (what < 30)
                    exchange_with_shelf(request);
                else if (what < 60)
                    tell(request.finish());
                else
                    request = {};
            }
        }
        return did_;
    }

private:
    std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
    WorkerId some_worker() { return *pool_.find(below(keys)); }

    void tell(Status status) {
        CHECK(status == Status::ok || status == Status::stale);
        did_.told_stale += status == Status::stale;
    }

    void dispatch(InFlight &place) {
        Request request;
        request.policy = static_cast<Policy>(below(9));
        request.tokens = below(5000);
        const std::array<WorkerId, 2> excluded = {some_worker(), some_worker()};
        request.excluded = excluded;
        auto made = below(2) == 0 ? pool_.dispatch(request) : picker_.dispatch(request);
        did_.saturated += made.status() == Status::saturated;
        if (!made) {
            CHECK(made.status() == Status::saturated || made.status() == Status::empty);
            return;
        }
        did_.begun++;
        CHECK(made->tokens() == request.tokens);
        CHECK(made->worker() != excluded[0] && made->worker() != excluded[1]);
        place = *std::move(made);
    }

    void grow_or_move(InFlight &request) {
        const WorkerId to = some_worker();
        const Status status = below(2) == 0 ? request.grow(100) : request.retarget(to);
        if (status != Status::saturated && status != Status::unknown) tell(status);
    }

    void exchange_with_shelf(InFlight &request) {
        const std::lock_guard<std::mutex> guard(host_.mutex);
        std::swap(request, host_.shelf[below(host_.shelf.size())]);
    }

    void report() {
        std::vector<Load> loads;
        for (auto count = below(keys); count > 0; count--)
            loads.emplace_back(some_worker(), below(100000));
        auto rejected = poll_.publish(loads);
        if (rejected.status() == Status::invalid) {  // Not begun.
            CHECK(poll_.begin() == Status::ok);
            rejected = pool_.publish(loads);
        }
        did_.rejected += *rejected;
    }

    void change_members() {
        const WorkerId worker = some_worker();
        WorkerConfig config;
        config.max_in_flight = static_cast<std::uint32_t>(below(3) * 8 + 8);
        config.fresh = below(2) == 0;
        WorkerUpdate update;
        update.weight = static_cast<std::uint32_t>(below(4));
        update.label = "10.0.0.1:30000@7";
        Status status = Status::ok;
        switch (below(8)) {
        case 0: status = pool_.remove(worker); break;
        case 1: status = pool_.abandon(worker); break;
        case 2: status = pool_.update(worker, update); break;
        case 3: status = pool_.veto(worker, veto_health, below(2) == 0); break;
        case 4: status = pool_.ensure(below(keys), config).status(); break;
        default: status = pool_.add(below(keys), config).status(); break;
        }
        CHECK(status == Status::ok || status == Status::unknown || status == Status::exists ||
              status == Status::full || status == Status::busy);
    }

    void watch() {
        const auto rows = pool_.stats();
        CHECK(rows && rows->size() <= capacity);
        for (const WorkerStats &row : *rows)
            CHECK(row.key < keys && row.in_flight <= threads * 33 + host_.shelf.size());
    }

    Host &host_;
    Pool &pool_;
    std::mt19937_64 random_;
    Picker picker_ = *pool_.picker();
    Poll poll_ = *pool_.poll();
    Sums did_;
};

}  // namespace

int main(int argc, char **argv) {
    const unsigned times = rounds(argc, argv, 20000);
    PoolConfig config;
    config.capacity = capacity;
    Host host;
    host.pool = *Pool::create(config);
    for (std::uint64_t key = 0; key < keys / 2; key++) CHECK(host.pool.add(key));

    std::array<Sums, threads> did;
    std::vector<std::thread> running;
    for (unsigned i = 0; i < threads; i++)
        running.emplace_back([&, i] { did[i] = Router(host, i + 1).route(times); });
    for (std::thread &thread : running) thread.join();
    host.shelf = {};

    Sums all;
    for (const Sums &one : did) {
        all.begun += one.begun;
        all.told_stale += one.told_stale;
        all.saturated += one.saturated;
        all.rejected += one.rejected;
    }
    const Totals totals = *host.pool.totals();
    std::printf("%llu begun, %llu finished, %llu abandoned, %llu anomalies, %llu saturated\n",
                static_cast<unsigned long long>(all.begun),
                static_cast<unsigned long long>(totals.finished),
                static_cast<unsigned long long>(totals.abandoned),
                static_cast<unsigned long long>(totals.anomalies),
                static_cast<unsigned long long>(totals.saturated));
    const auto rows = host.pool.stats();
    for (const WorkerStats &row : *rows) CHECK(row.in_flight == 0 && row.tokens == 0);
    CHECK(totals.in_flight == 0 && totals.draining == 0);
    CHECK(all.begun == totals.finished + totals.abandoned);
    CHECK(totals.saturated == all.saturated && totals.rejected_loads == all.rejected);
    // Those that were dropped say nothing.
    CHECK(totals.anomalies >= all.told_stale && totals.anomalies >= totals.abandoned);
}
