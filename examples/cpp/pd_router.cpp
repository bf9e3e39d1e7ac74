// Prefill and decode on engines of their own: two pools, and a request takes one worker of each.
// On the prefill worker it counts until the first token, on the decode worker until the last one,
// with tokens that grow as they are generated. Decode ranks have a cap; a request that finds all of
// them at it gives its prefill worker back, and waits until a response of its thread has ended.
#include <evenkeel.hpp>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

using evenkeel::InFlight;
using evenkeel::Picker;
using evenkeel::Pool;
using evenkeel::Status;

namespace {

constexpr std::uint64_t prefill_workers = 3, decode_ranks = 8, threads = 4;
constexpr std::uint64_t requests = 20000, at_a_time = 24;
constexpr std::uint32_t decode_cap = 10;  // Fewer places than the threads would take.

void expect(bool holds, const char *what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::exit(1);
}

/// A request that decodes.
struct Response {
    InFlight decode;
    std::uint64_t tokens;
};

class Router {
public:
    Router() {
        for (std::uint64_t key = 0; key < prefill_workers; key++)
            expect(bool(prefill.add(key)), "a prefill worker");
        evenkeel::WorkerConfig config;
        config.max_in_flight = decode_cap;
        for (std::uint64_t key = 0; key < decode_ranks; key++)
            expect(bool(decode.add(key, config)), "a decode rank");
    }

    /// One thread's share.
    void serve() {
        Picker prefill_picker = *prefill.picker(), decode_picker = *decode.picker();
        std::deque<Response> decoding;
        for (std::uint64_t number = 0; number < requests;) {
            if (decoding.size() == at_a_time) decoding.pop_front();
            evenkeel::Request request;
            request.tokens = 1000 + number % 7000;
            auto prompt = prefill_picker.dispatch(request);
            expect(bool(prompt), "a prefill worker takes it");
            auto response = decode_picker.dispatch(request);
            if (response.status() == Status::saturated) {
                // The prompt's end of life is the end of this round.
                if (!decoding.empty()) decoding.pop_front();
                continue;
            }
            expect(bool(response), "a decode rank takes it");
            expect(prompt->finish() == Status::ok, "the first token is there");
            decoding.push_back({std::move(*response), request.tokens});
            for (Response &each : decoding) {
                expect(each.decode.grow(1) == Status::ok, "one more token");
                expect(each.decode.tokens() == ++each.tokens, "it counts");
            }
            number++;
        }
    }

    Pool prefill = *Pool::create(), decode = *Pool::create();
};

void check(const char *name, const Pool &pool) {
    const auto rows = pool.stats();
    const auto totals = pool.totals();
    expect(rows && totals, name);
    for (const auto &row : *rows) {
        std::printf("%-7s %" PRIu64 ": %6" PRIu64 " finished, %u in flight, %" PRIu64 " tokens\n",
                    name, row.key, row.finished, row.in_flight, row.tokens);
        expect(row.in_flight == 0 && row.tokens == 0, "every count is 0");
    }
    expect(totals->finished >= threads * requests && totals->anomalies == 0, "each ended once");
}

}  // namespace

int main() {
    Router router;
    std::vector<std::thread> running;
    for (std::uint64_t i = 0; i < threads; i++) running.emplace_back([&] { router.serve(); });
    for (std::thread &thread : running) thread.join();

    check("prefill", router.prefill);
    check("decode", router.decode);
    std::printf("%" PRIu64 " times all decode ranks were at their cap\n",
                router.decode.totals()->saturated);
}
