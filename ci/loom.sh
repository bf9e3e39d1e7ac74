#!/usr/bin/env bash
# Every model of src/models.rs: the races of docs/benign-races.md and the edges between threads.
set -euo pipefail
cd "$(dirname "$0")/.."
# A flag of the compiler changes everything that is built, so these builds lie apart.
RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
    cargo test --lib --release -p evenkeel -- models
