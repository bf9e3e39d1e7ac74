#!/usr/bin/env bash
# Every bench in one table, which is printed. Three minutes once built; on a machine that does nothing else, or
# the figures mean little.
#
#   ci/bench.sh                     all of them; the table stays in target/bench.md
#   ci/bench.sh [--quick] NAME…     these alone: pick, abi, publish, contention
#   ci/bench.sh --quick             seconds: shows that the benches run and the table is well formed
#   ci/bench.sh --check             the bars, from target/bench.md
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
table=$target/bench.md

if [ "${1:-}" = --check ]; then
    exec python3 - "$table" <<'PY'
import sys

rows = {}
for line in open(sys.argv[1]):
    if line.startswith("|"):
        what, workers, threads, *figures = (cell.strip() for cell in line.strip().strip("|").split("|"))
        rows[what, workers, threads] = figures
figures = ("ns", "ratio", "Mutex ratio", "p50", "p99", "max", "Mutex p99")
ok = True

def figure(what, workers, threads, name):
    return float(rows[what, str(workers), str(threads)][figures.index(name)])

def bar(text, value, most):
    global ok
    ok &= value <= most
    print(f"{'ok' if value <= most else 'MISSED':6}  {value:8.2f}  at most {most:8.2f}  {text}")

for what, workers, threads in rows:
    if what.endswith(", saturating") and " by " not in what:
        for name, unit in ("ratio", "of the floor's time an operation"), ("p99", "ns, p99"):
            value, most = (figure(what, workers, threads, of) for of in (name, f"Mutex {name}"))
            if threads == "1":
                print(f"        {value:8.2f}  Mutex   {most:8.2f}  {what}, 1 thread: {unit}")
            else:
                bar(f"{what}, {threads} threads: {unit}, against Mutex<Vec>", value, most)
    elif "1 kHz publishing" in what:
        bar(f"{what}", figure(what, workers, threads, "ratio"), 1.5)
for what, workers, most in [
    ("power_of_two:tokens", 8, 2.6),
    ("power_of_two:requests", 8, 2.6),
    ("power_of_two:tokens", 64, 2.6),
    ("power_of_two:tokens, one excluded", 64, 5.5),
    ("least_requests", 8, 9),
    ("least_tokens", 8, 9),
    ("balanced", 8, 9),
    ("least_requests", 64, 30),
    ("least_requests", 1024, 150),
    ("power_of_two:tokens from C, static library", 8, 3.5),
    ("power_of_two:tokens from C, static library", 64, 3.5),
    ("power_of_two:tokens from C, shared library", 8, 3.8),
    ("power_of_two:tokens from C, shared library", 64, 3.8),
]:
    bar(f"{what}, {workers} workers: × floor", figure(what, workers, 1, "ratio"), most)
sys.exit(not ok)
PY
fi

quick=()
names=()
for argument in "$@"; do
    case $argument in
        --quick) quick=(--quick) ;;
        pick | contention | publish | abi) names+=("$argument") ;;
        *) echo "usage: ci/bench.sh [--quick] [pick|abi|publish|contention]… | --check" >&2; exit 2 ;;
    esac
done
whole=
if [ ${#names[@]} -eq 0 ]; then
    names=(pick abi publish contention)
    [ ${#quick[@]} -gt 0 ] || whole=yes
fi

rows_of() {
    if [ "$1" = contention ] && [ ${#quick[@]} -eq 0 ]; then
        # A flag of the compiler changes everything that is built, so this build lies apart.
        RUSTFLAGS='--cfg evenkeel_count_retries' CARGO_TARGET_DIR=$target/retries \
            cargo bench -q --bench contention
        return
    fi
    if [ "$1" != abi ]; then
        cargo bench -q --bench "$1" -- "${quick[@]}"
        return
    fi
    cargo build -q --release --lib
    local built=$target/release programs=$target/bench
    local cc=("${CC:-cc}" -std=c11 -O2 -Wall -Wextra -Iinclude benches/abi.c)
    mkdir -p "$programs"
    "${cc[@]}" "$built/libevenkeel.a" -lpthread -ldl -lm -o "$programs/static"
    "${cc[@]}" "$built/libevenkeel.so" -o "$programs/shared"
    # The program asks for the library by its SONAME.
    ln -f "$built/libevenkeel.so" "$programs/libevenkeel.so.0"
    "$programs/static" static "${quick[@]}"
    LD_LIBRARY_PATH=$programs "$programs/shared" shared "${quick[@]}"
}

mkdir -p "$target"
for name in "${names[@]}"; do
    rows_of "$name"
done | awk -v cpu="$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)" -v cores="$(nproc)" \
    -v rustc="$(rustc --version)" -v date="$(date -I)" -v quick="${quick[*]}" '
BEGIN {
    if (quick) print "From a --quick run: the figures mean nothing.\n"
    print "Machine: " cpu ", " cores " cores; " rustc "; " date ". Nothing is claimed for more cores or other machines.\n"
    print "Rows are one dispatch and its finish, unless they say otherwise. ns: its time; with several"
    print "threads, pinned to the cores in turn, the time in which all of them together get one done. ratio: to the floor, one atomic"
    print "addition and one subtraction on a line that the thread has to itself, measured in the same turns."
    print "Mutex: a `Mutex<Vec>` pool with the same rules, in the same turns. p50, p99, max: of single"
    print "operations, in ns and µs, the clock included. retries: a dispatch and its finish.\n"
    head = "| what | workers | threads | ns | ratio | Mutex ratio | p50 | p99 | max, µs | Mutex p99 | Mutex max, µs | retries |"
    columns = gsub(/\|/, "|", head)
    print head
    print "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
}
# The benches print the head of the table, too.
$0 == head || /^\|---/ { next }
/^\| what / || gsub(/\|/, "|") != columns { print "not a row of the table: " $0 >"/dev/stderr"; exit 1 }
{ print; rows++ }
END { if (rows == 0) exit 1 }' | tee "$table.new"
if [ "$whole" ]; then
    mv "$table.new" "$table"
    echo "$table" >&2
else
    rm "$table.new"
fi
