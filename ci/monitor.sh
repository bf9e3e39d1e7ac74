#!/usr/bin/env bash
# 200 engines of 8 ranks, polled each second: under 20 % of one core, and one that hangs changes no
# other's interval. Prints both. Arguments: engines, seconds of each of the two
# phases, more than the 5 after which a poll that hangs has failed.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --release --quiet -p evenkeel-monitor --example many_engines -- "$@"
