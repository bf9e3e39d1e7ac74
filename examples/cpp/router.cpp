// A thread-pool router over 8 workers: four threads route streaming requests, retry elsewhere what
// a worker refuses, and end each response when its last token is through, while one thread
// publishes loads, and one takes a worker out and brings it back. At the end every count is 0.
#include <evenkeel.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using evenkeel::InFlight;
using evenkeel::Load;
using evenkeel::Picker;
using evenkeel::Pool;
using evenkeel::Status;
using evenkeel::WorkerId;

namespace {

constexpr std::size_t ranks = 8, threads = 4, at_a_time = 24, attempts = 3;

void expect(bool holds, const char *what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::exit(1);
}

template <typename T>
T must(evenkeel::Result<T> result) {
    expect(bool(result), evenkeel::status_str(result.status()));
    return *std::move(result);
}

void must(Status status) { expect(status == Status::ok, evenkeel::status_str(status)); }

/// Waits for what the other threads will bring about.
template <typename Condition>
void wait_until(const char *what, Condition condition) {
    const auto patience = std::chrono::steady_clock::now() + 60s;
    while (!condition()) {
        expect(std::chrono::steady_clock::now() < patience, what);
        std::this_thread::sleep_for(100us);
    }
}

/// Stands for an engine's rank.
struct Rank {
    std::string label;
    std::atomic<std::uint64_t> tokens{0}, requests{0};

    /// Rank 5 refuses every tenth request.
    bool accept(std::uint64_t request_tokens) {
        if (requests++ % 10 == 9 && label.back() == '5') return false;
        tokens += request_tokens;
        return true;
    }
};

/// What the router keeps for each worker.
struct Connection {
    explicit Connection(Rank &to) : rank(to) {}
    Rank &rank;
    std::atomic<std::uint64_t> accepted{0}, refused{0};
};

/// A response that streams. With it the request ends.
struct Response {
    Response(InFlight counted, Connection &from)
        : in_flight(std::move(counted)), connection(from) {}
    Response(Response &&) = default;
    ~Response() { connection.rank.tokens -= in_flight.tokens(); }

    InFlight in_flight;
    Connection &connection;
};

std::array<Rank, ranks> cluster;
Pool pool;
evenkeel::PerWorker<Connection> connections(1024);
std::atomic<std::uint64_t> routed{0};
std::atomic<bool> stop{false};

WorkerId join(Rank &rank) {
    evenkeel::WorkerConfig config;
    config.label = rank.label.c_str();
    config.vetoes = evenkeel::veto_host;  // Until it has its connection.
    const WorkerId worker = must(pool.add(evenkeel::key(rank.label), config));
    expect(connections.emplace(worker, rank) != nullptr, "a slot below the capacity");
    must(pool.veto(worker, evenkeel::veto_host, false));
    return worker;
}

void route(Picker &picker, std::uint64_t tokens, std::deque<Response> &streaming) {
    std::array<WorkerId, attempts> failed{};
    evenkeel::Request request;
    request.tokens = tokens;
    for (std::size_t attempt = 0; attempt < attempts; attempt++) {
        request.excluded = {failed.data(), attempt};
        InFlight in_flight = must(picker.dispatch(request));
        failed[attempt] = in_flight.worker();
        Connection *connection = connections.find(in_flight.worker());
        expect(connection != nullptr, "each worker has its connection");
        if (connection->rank.accept(tokens)) {
            connection->accepted++;
            streaming.emplace_back(std::move(in_flight), *connection);
            routed++;
            return;
        }
        connection->refused++;
    }  // What was refused ends here.
    expect(false, "one of three workers accepts");
}

/// One thread of the router: some responses stream while the next request comes.
void serve() {
    Picker picker = must(pool.picker());
    std::deque<Response> streaming;
    for (std::uint64_t number = 0; !stop; number++) {
        if (streaming.size() == at_a_time) streaming.pop_front();
        route(picker, 100 + number % 900, streaming);
    }
}

/// Asks every rank, again and again. (A real one asks each engine by a poll of its own.)
void publish() {
    evenkeel::Poll poll = must(pool.poll());
    while (!stop) {
        must(poll.begin());
        std::vector<Load> loads;
        for (Rank &rank : cluster)
            if (const auto worker = pool.find(evenkeel::key(rank.label)))
                loads.emplace_back(*worker, rank.tokens);
        must(poll.publish(loads));
        std::this_thread::sleep_for(1ms);
    }
}

}  // namespace

int main() {
    pool = must(Pool::create());
    std::array<WorkerId, ranks> workers{};
    for (std::size_t rank = 0; rank < ranks; rank++) {
        cluster[rank].label = "10.0.0.1:30000@" + std::to_string(rank);
        workers[rank] = join(cluster[rank]);
    }

    std::vector<std::thread> running;
    running.emplace_back(publish);
    for (std::size_t i = 0; i < threads; i++) running.emplace_back(serve);
    wait_until("requests", [] { return routed > 20000; });

    must(pool.remove(workers[2]));
    wait_until("its last request ends", [] { return must(pool.totals()).draining == 0; });
    const std::uint64_t before = routed;
    wait_until("the others take over", [&] { return routed > before + 20000; });

    const WorkerId returned = join(cluster[2]);
    expect(returned != workers[2], "a new worker");
    expect(connections.find(workers[2]) == nullptr, "the former one's connection is gone");
    wait_until("the returned one takes its share",
               [&] { return connections.find(returned)->accepted > 2000; });

    stop = true;
    for (std::thread &thread : running) thread.join();

    std::printf("%-18s %8s %8s %9s %6s\n", "worker", "accepted", "refused", "in flight", "tokens");
    for (const auto &row : must(pool.stats())) {
        const Connection &connection = *connections.find(row.worker);
        std::printf("%-18s %8" PRIu64 " %8" PRIu64 " %9u %6" PRIu64 "\n", row.label,
                    connection.accepted.load(), connection.refused.load(), row.in_flight,
                    row.tokens);
        expect(row.in_flight == 0 && row.tokens == 0, "every count is 0");
        expect(row.finished == connection.accepted + connection.refused, "each attempt ended once");
        expect((row.key == evenkeel::key(cluster[5].label)) == (connection.refused > 0),
               "rank 5 alone refuses");
    }
    const evenkeel::Totals totals = must(pool.totals());
    expect(totals.workers == ranks && totals.draining == 0, "8 workers");
    expect(totals.in_flight == 0 && totals.anomalies == 0, "nothing in flight, nothing amiss");
}
