#!/usr/bin/env bash
# ci/soak.sh [MINUTES | --short]: the router's resident memory and file descriptors under load with leaving
# clients and breaking engines, for 30 minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet -p evenkeel-cli
EVENKEEL="${CARGO_TARGET_DIR:-target}/release/evenkeel" python3 -B ci/live/soak.py "$@"
