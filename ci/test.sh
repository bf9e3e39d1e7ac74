#!/usr/bin/env bash
# The README's test command, with the traces if EVENKEEL_TRACES names their folder.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --workspace
