#!/usr/bin/env python3
"""ci/weigh.py TRACE: what weighing requests against tokens gives on AgentX at concurrency 192, mean of
seeds 1 to 5, as docs/simulate.md has it. Fails if balanced or least_tokens gives less than it should."""
import json, os, subprocess, sys

BINARY = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "release/evenkeel")
held = True


def simulate(*options):
    command = [BINARY, "simulate", "--trace", sys.argv[1], "--seeds", "5", "--json", *options]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {row["policy"]: row for row in rows}


def bar(text, value, most):
    global held
    held &= value <= most
    print(f"{'ok' if value <= most else 'MISSED':6} {value:6.3f}  at most {most:.2f}  {text}")


policies = "--policies=round_robin,tokens,requests,least_requests,least_tokens,balanced"
for name, options, bars in [
    ("deepseek-v4-mi355x", [], {"least_requests": 1.01}),
    ("c = 5 ms per million tokens", ["--step=7.58,0.332,5"], {"least_requests": 0.96}),
    ("mla-full-attention", ["--preset=mla-full-attention"], {"least_requests": 0.93, "tokens": 0.95}),
]:
    rows = simulate(policies, *options)
    print(f"{name}: TPOT p50, ms: " + ", ".join(f"{policy} {row['tpot_p50_ms']:.2f}" for policy, row in rows.items()))
    for other, most in bars.items():
        bar(f"balanced ÷ {other}", rows["balanced"]["tpot_p50_ms"] / rows[other]["tpot_p50_ms"], most)
for interval in ["1s", "5s"]:
    live = simulate("--policies=least_tokens", f"--poll-interval={interval}")["least_tokens"]
    # All 8 ranks drawn: the fewest polled tokens of all.
    raw = simulate("--policies=tokens", "--choices=8", f"--poll-interval={interval}")["tokens"]
    print(f"poll interval {interval}: by raw polled tokens outstanding CV {raw['outstanding_cv']:.3f}, KV ratio {raw['kv_busiest_over_mean']:.2f}")
    bar("outstanding CV of least_tokens", live["outstanding_cv"], 0.20)
    bar("KV ratio of least_tokens", live["kv_busiest_over_mean"], 1.26)
sys.exit(not held)
