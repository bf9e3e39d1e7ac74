#!/usr/bin/env bash
# ci/simulate.sh TRACE: outstanding-requests CV of each policy on an AgentX trace at concurrency
# 192, one simulated hour, mean of seeds 1 to 5, against the published measurement; then every
# published cell at 192 and 384.
set -euo pipefail
cd "$(dirname "$0")/.."
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
cargo build --release -q -p evenkeel-cli
started=$(date +%s)
cargo run --release -q -p evenkeel-cli -- simulate --trace "$1" --concurrency 192 --seeds 5 --json >"$rows"
echo "took $(($(date +%s) - started)) s"
python3 - "$rows" <<'PY'
import json, sys

cv = {row["policy"]: row["outstanding_cv"] for row in json.load(open(sys.argv[1]))}
published = {"least_requests": (0.05, 0.03), "requests": (0.09, 0.03), "round_robin": (0.17, 0.03), "tokens": (0.22, 0.04)}
bad = list(cv) and sorted(cv, key=cv.get) != list(published)
for policy, (value, within) in published.items():
    off = abs(cv[policy] - value) > within
    bad |= off
    print(f"{policy:15} {cv[policy]:.3f}, published {value:.2f} ± {within}{'  OFF' if off else ''}")
sys.exit("the order or a value is off" if bad else 0)
PY
ci/calibrate.py "$1"
