#!/usr/bin/env bash
# ci/fuzz.sh [SECONDS]: the whole C interface by arbitrary bytes, with AddressSanitizer and overflow
# checks, for 600 seconds or as long as said. Needs a nightly toolchain and cargo-fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}/fuzz
mkdir -p "$target/corpus"
# A crash leaves its input in fuzz/artifacts; its smallest form becomes a test of its own.
exec cargo +nightly fuzz run --fuzz-dir fuzz --target-dir "$target" border "$target/corpus" -- \
    -max_total_time="${1:-600}" -max_len=4096 -timeout=10 -print_final_stats=1
