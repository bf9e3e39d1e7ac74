#!/usr/bin/env bash
# Speed of dispatch + finish from C through the static library, with its ratio to the floor.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --release --lib -q
"${CC:-cc}" -std=c11 -O2 -Wall -Wextra -Iinclude benches/c_pick.c "$target/release/libevenkeel.a" \
    -lpthread -ldl -lm -o "$target/release/c_pick"
"$target/release/c_pick"
