#!/usr/bin/env bash
# Formatting, clippy, and the rules of the house that no lint knows.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo fmt --all --check
rustfmt --edition 2024 --check fuzz/border.rs
cargo clippy --workspace --all-targets -- -D warnings

fail() { echo "lint: $1" >&2; exit 1; }
# The core's atomics come from src/sync.rs, or the models would not see them.
if grep -rn 'sync::atomic' src --include='*.rs' | grep -v '^src/sync.rs'; then fail 'atomics outside src/sync.rs'; fi
# Unsafe code lives in three places.
if grep -rnw 'unsafe' src --include='*.rs' | grep -vE '^src/(sync\.rs|region\.rs|ffi/)|unsafe_code'; then
    fail 'unsafe outside sync, region and ffi'
fi
if grep -rnE '#\[ignore|\b(todo|unimplemented)!' --include='*.rs' src tests cli monitor tower benches examples; then fail 'unfinished or ignored'; fi
echo 'lint: ok'
