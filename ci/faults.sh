#!/usr/bin/env bash
# Clients leave half way, responses break off, an engine dies and comes back, one hangs, ranks change by a
# reload, all under load: no client sees an error that is not an engine's own, and every count ends at 0.
# Takes a minute and a half; with --short half a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet -p evenkeel-cli
EVENKEEL="${CARGO_TARGET_DIR:-target}/release/evenkeel" python3 -B ci/live/faults.py "$@"
