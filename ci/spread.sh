#!/usr/bin/env bash
# How evenly `evenkeel route` spreads load, judged from the engines' side: 8 engines, one of 8 ranks, two of
# 4, loads in time and two seconds late. Takes 27 minutes; with --short 3.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet -p evenkeel-cli
EVENKEEL="${CARGO_TARGET_DIR:-target}/release/evenkeel" python3 -B ci/live/spread.py "$@"
