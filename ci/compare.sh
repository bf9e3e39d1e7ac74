#!/usr/bin/env bash
# The same load and bursts through `evenkeel route` and whatever of SGLang's router, nginx and HAProxy is here,
# in turns, as one table. --install gets them first: sglang-router from PyPI into a venv under the target folder,
# nginx and HAProxy from Debian. Takes 25 minutes with all of them; with --short 1 and more for each other router.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
case " $* " in *" --install "*)
    python3 -m venv "$target/sglang"
    "$target/sglang/bin/pip" install --quiet sglang-router==0.3.2
    command -v nginx haproxy >/dev/null || apt-get install -y -qq --no-install-recommends nginx haproxy
esac
cargo build --release --quiet -p evenkeel-cli
EVENKEEL="$target/release/evenkeel" SGLANG="$target/sglang/bin/python" python3 -B ci/live/compare.py "$@"
