#!/usr/bin/env bash
# ci/simulate.sh TRACE: the default preset on an AgentX trace, one simulated hour, mean of seeds 1 to 5,
# against every cell of the published measurement at concurrency 192 and 384; then what weighing requests
# against tokens gives.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release -q -p evenkeel-cli
started=$(date +%s)
ci/calibrate.py "$1"
ci/weigh.py "$1"
echo "took $(($(date +%s) - started)) s"
