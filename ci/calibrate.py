#!/usr/bin/env python3
"""ci/calibrate.py TRACE [SECONDS]: searches the knobs of `evenkeel simulate` for the one set that comes
closest to the published measurement at concurrency 192 and 384 together, and prints it with the
residuals (in the last column 1 is as far off as allowed). 0 seconds: the residuals of the default preset.
Fails if a cell is outside or an order does not hold."""
import json, math, os, random, subprocess, sys, time

POLICIES = ["round_robin", "tokens", "requests", "least_requests"]
# metric: (allowed deviation, relative?, {concurrency: values by policy})
PUBLISHED = {
    "outstanding_cv": (0.025, False, {192: [0.17, 0.22, 0.09, 0.05], 384: [0.10, 0.15, 0.04, 0.02]}),
    "batch_cv": (0.03, False, {192: [0.22, 0.24, 0.17, 0.14], 384: [0.16, 0.17, 0.13, 0.13]}),
    "busiest_batch": (0.07, True, {192: [14.8, 15.2, 13.1, 12.7], 384: [28.8, 28.3, 25.9, 25.3]}),
    "tpot_p50_ms": (0.05, True, {192: [12.45, 12.63, 11.90, 11.80], 384: [17.34, 16.67, 15.92, 15.65]}),
    "kv_busiest_over_mean": (0.10, False, {192: [1.43, 1.23, 1.35, 1.32], 384: [1.31, 1.12, 1.22, 1.21]}),
}
THROUGHPUT = {192: [369.9, 366.7, 375.5, 372.8], 384: [563.5, 568.4, 570.1, 570.0]}
# option: (start, lowest, highest, unit); all are searched by factors.
KNOBS = {
    "--prefill-time": (18, 1, 60, "ms"),
    "--prefill-rate": (200_000, 80_000, 1_000_000, ""),
    "--transfer": (1_100, 10, 4_000, "ms"),
    "--transfer-rate": (1_150_000, 300_000, 20_000_000, ""),
    "--think-cap": (5_300, 1_000, 20_000, "ms"),
}


def simulate(trace, seeds, options):
    binary = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release/evenkeel")
    command = [binary, "simulate", "--trace", trace, "--concurrency", "192,384", "--seeds", str(seeds), "--json"]
    rows = json.loads(subprocess.run(command + options, check=True, capture_output=True).stdout)
    return {(row["policy"], row["concurrency"]): row for row in rows}


def residuals(rows):
    """(metric, concurrency, policy, simulated, published, deviation ÷ what is allowed)"""
    for metric, (allowed, relative, published) in PUBLISHED.items():
        for concurrency, values in published.items():
            for policy, value in zip(POLICIES, values):
                simulated = rows[policy, concurrency][metric]
                within = allowed * (value if relative else 1)
                if (metric, policy) == ("outstanding_cv", "tokens"):
                    within = 0.035
                yield metric, concurrency, policy, simulated, value, (simulated - value) / within
    for concurrency, values in THROUGHPUT.items():
        base = rows["round_robin", concurrency]["tok_s_gpu"]
        for policy, value in zip(POLICIES[1:], values[1:]):
            change = 100 * (rows[policy, concurrency]["tok_s_gpu"] / base - 1)
            published = 100 * (value / values[0] - 1)
            wrong = change * published < 0
            yield "tok_s_gpu, change in %", concurrency, policy, change, published, abs(change) / 0.5 * wrong


def broken_orders(rows):
    """What must hold whatever the cells say."""
    for concurrency in (192, 384):
        def of(metric):
            return [rows[policy, concurrency][metric] for policy in POLICIES]

        round_robin, tokens, requests, least = of("outstanding_cv")
        if not least < requests < round_robin < tokens:
            yield f"outstanding CV at {concurrency}"
        round_robin, tokens, requests, least = of("tpot_p50_ms")
        if not least <= requests < round_robin:
            yield f"TPOT at {concurrency}"
        round_robin, tokens, requests, least = of("kv_busiest_over_mean")
        if not tokens < least <= requests < round_robin:
            yield f"KV ratio at {concurrency}"
        round_robin, tokens, requests, least = of("busiest_share")
        if not (requests <= 0.17 and requests < round_robin):
            yield f"busiest_share at {concurrency}"
        if rows["requests", concurrency]["rank_mean_dev"] > 0.02:
            yield f"rank_mean_dev at {concurrency}"


def loss(rows):
    """What is within its bounds hardly matters, what is outside counts squared."""
    return sum(max(0, abs(off) - 0.9) ** 2 + 0.01 * off * off for *_, off in residuals(rows))


def options(knobs):
    return [f"{name}={round(value)}{KNOBS[name][3]}" for name, value in knobs.items()]


def search(trace, seconds):
    random.seed(1)
    until = time.time() + seconds
    best = {name: start for name, (start, *_) in KNOBS.items()}
    least, spread = loss(simulate(trace, 2, options(best))), 0.4
    while time.time() < until:
        knobs = dict(best)
        for name in random.sample(list(KNOBS), random.choice([1, 2, 3, 5])):
            _, lowest, highest, _ = KNOBS[name]
            knobs[name] = min(highest, max(lowest, knobs[name] * math.exp(random.gauss(0, spread))))
        found = loss(simulate(trace, 2, options(knobs)))
        spread = min(0.6, spread * 1.15) if found < least else max(0.05, spread * 0.985)
        if found < least:
            best, least = knobs, found
            print(f"{least:.3f} {' '.join(options(best))}", file=sys.stderr)
    return options(best)


def main():
    trace, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0
    found = search(trace, seconds) if seconds else []
    rows = simulate(trace, 5, found)
    print(f"{' '.join(found) or 'the default preset'}: loss {loss(rows):.3f}")
    outside = 0
    for metric, concurrency, policy, simulated, published, off in residuals(rows):
        outside += abs(off) > 1
        mark = "  OUTSIDE" if abs(off) > 1 else ""
        print(f"{metric:24} {concurrency} {policy:15} {simulated:8.3f} {published:8.3f} {off:+6.2f}{mark}")
    broken = list(broken_orders(rows))
    print(f"{outside} cells outside, orders that don't hold: {', '.join(broken) or 'none'}")
    sys.exit(1 if broken or outside else 0)


main()
