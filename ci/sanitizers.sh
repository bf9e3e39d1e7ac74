#!/usr/bin/env bash
# ci/sanitizers.sh [--long]: the programs of tests/c and tests/cpp under valgrind, AddressSanitizer
# with UndefinedBehaviorSanitizer, and ThreadSanitizer. With a nightly toolchain the library is
# instrumented too, and the runtime is that toolchain's; without, only the programs are.
set -euo pipefail
cd "$(dirname "$0")/.."

# How often each program does its work; in the long form as often as in the tests.
times=(200)
if [ "${1:-}" = --long ]; then times=(); fi

mkdir -p "${CARGO_TARGET_DIR:-target}/sanitizers"
out=$(cd "${CARGO_TARGET_DIR:-target}/sanitizers" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
nightly=$(rustc +nightly --print sysroot 2>/dev/null || true)
if [ -z "$nightly" ]; then echo 'left out: sanitizers on the Rust side: without a nightly toolchain'; fi

# under NAME LIBRARY [PROGRAM...]: builds all programs with this library, the flags in compile and
# link, and runs them by the runner.
under() {
    local name=$1 library=$2 started=$SECONDS count=0 source program
    mkdir -p "$out/$name"
    for source in tests/c/*.c tests/cpp/*.cpp; do
        case $source in
            # No main; a malloc and a clock of their own; and what loads the library itself.
            */header.c | */beside.c | */no_allocation.c | */panics.c | */unload.c) continue ;;
            *.cpp) language=(-xc++ -std=c++17) ;;
            *) language=(-xc -std=c11) ;;
        esac
        program=$out/$name/$(basename "$source")
        g++ "${language[@]}" -g -O1 -Iinclude -DEVENKEEL_VERSION="\"$version\"" -DSECONDS=60 \
            "${compile[@]}" -c "$source" -o "$program.o"
        g++ "$program.o" "${link[@]}" "$library" -lpthread -ldl -lm -o "$program"
        "${runner[@]}" "$program" "${times[@]}" >"$program.log" 2>&1 || {
            tail -n 80 "$program.log" >&2
            echo "sanitizers: $source under $name" >&2
            exit 1
        }
        count=$((count + 1))
    done
    echo "$name: $count programs, $((SECONDS - started)) s"
}

# library NAME: built, where there is a nightly toolchain instrumented by that sanitizer.
library() {
    local target=$out/library-$1
    if [ -n "$nightly" ] && [ "$1" != plain ]; then
        RUSTFLAGS="-Zsanitizer=$1 -Cunsafe-allow-abi-mismatch=sanitizer" \
            cargo +nightly build -q --lib --profile test --target-dir "$target"
    else
        cargo build -q --lib --profile test --target-dir "$target"
    fi
    echo "$target/debug/libevenkeel.a"
}

# runtime RUST_NAME FLAG...: what to link for it, from the compiler that instruments the library.
runtime() {
    local of_rust=$nightly/lib/rustlib/$(uname -m)-unknown-linux-gnu/lib/librustc-nightly_rt.$1.a
    shift
    if [ -n "$nightly" ]; then
        link=(-Wl,--whole-archive "$of_rust" -Wl,--no-whole-archive -lrt -lresolv)
    else
        link=("$@")
    fi
}

compile=() link=()
# Not "possibly lost": a forked child ends while it holds pools, whose handles point into their block.
runner=(valgrind -q --suppressions=ci/valgrind.supp --fair-sched=yes --error-exitcode=99
    --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite)
under memcheck "$(library plain)"

# What is undefined ends the program where it is.
compile=(-fsanitize=address,undefined -fsanitize-undefined-trap-on-error)
runtime asan -fsanitize=address
runner=(env ASAN_OPTIONS=detect_stack_use_after_return=1)
under address "$(library address)"

compile=(-fsanitize=thread)
runtime tsan -fsanitize=thread
runner=(env TSAN_OPTIONS=suppressions=ci/tsan.supp)
under thread "$(library thread)"
