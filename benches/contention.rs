//! Dispatch + finish by many threads over 8 workers, saturating and paced.
//!
//! `cargo bench --bench contention`. Thread `i` is pinned to core `i` modulo the number of cores.
//!
//! * Saturating: each thread does one operation after the other. `ns` is the time in which the pool
//!   as a whole gets one done, the inverse of its throughput; the floor is that of the same threads,
//!   each on a line of its own.
//! * Paced: each thread sleeps 100 µs between two operations.
//!
//! Percentiles are of single operations. In saturating rows one in 61 is timed, so that the clock
//! costs a hundredth and falls on each worker in turn; in paced rows each is. Every pool is measured
//! by the same code, in turns of 30 ms: a row shows the median of its turns, and the largest max.
//! With more threads than cores, max is how long the scheduler kept a thread off in the middle of
//! an operation.
//!
//! Retries are exchanges that failed and scans that were repeated. The library counts them, where it
//! retries, under `--cfg evenkeel_count_retries`, as `ci/bench.sh` builds it for this bench.
//!
//! "By bare words" is no pool: the lines that a scan needs, read, and one of them written.
//!
//! Std's mutex is unfair, so its turns come in two kinds: threads that wait for each other, or one
//! that has the lock to itself while the others are parked. So there are many.

mod baselines;
mod measure;

use arc_swap::ArcSwap;
use baselines::{BareWords, Floor, MutexPool, RouterPool, Rules, Snapshot, SnapshotPool, Worker};
use crossbeam_epoch::Atomic;
use evenkeel::{Policy, PoolConfig, Request, WorkerConfig};
use hdrhistogram::Histogram;
use measure::{Latency, Row, is_quick, is_wanted, median, median_ratio, pin, pool_of, rounds};
use std::hint::black_box;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: usize = 8;
const PACE: Duration = Duration::from_micros(100);
const TIMED: u32 = 61;

fn main() {
    Row::print_header();
    for policy in Policy::ALL {
        for threads in [1, 2, 4, 8, 16] {
            evenkeel(policy, threads, None);
        }
    }
    for threads in [2, 16] {
        evenkeel(Policy::LeastRequests, threads, Some(PACE));
    }
    for threads in [2, 4] {
        bare_words(threads);
    }
    router(2);
    snapshot::<Atomic<_>>("crossbeam-epoch", 2);
    snapshot::<ArcSwap<_>>("arc-swap", 2);
}

fn evenkeel(policy: Policy, threads: usize, pace: Option<Duration>) {
    let (pool, _) = pool_of(PoolConfig::default(), [WorkerConfig::default(); WORKERS]);
    row(policy, "", threads, pace, |thread| {
        let mut picker = pool.picker(thread + 1).unwrap();
        let mut request =
            Request { policy: Some(policy), hash: thread << 32, ..Request::default() };
        let pool = &pool;
        move || {
            // For the one policy that goes by it.
            request.hash += 1;
            let ticket = picker.dispatch(black_box(&request)).unwrap();
            pool.finish(ticket).unwrap();
        }
    });
}

fn bare_words(threads: usize) {
    let words = BareWords::<WORKERS>::new();
    row(Policy::LeastRequests, " by bare words", threads, None, |thread| {
        let (words, mut rules) = (&words, Rules::new(thread + 1));
        move || words.count_and_uncount(&mut rules)
    });
}

fn router(threads: usize) {
    let (policy, pool) = (Policy::PowerOfTwoTokens, &RouterPool::new(WORKERS));
    row(policy, " by RwLock<HashMap>, re-implementation", threads, None, |thread| {
        let mut rules = Rules::new(thread + 1);
        move || pool.dispatch(black_box(policy), &mut rules).finish()
    });
}

fn snapshot<S: Snapshot + Sync>(name: &str, threads: usize) {
    let (policy, pool) = (Policy::PowerOfTwoTokens, &SnapshotPool::<S>::new(WORKERS));
    row(policy, &format!(" by {name}"), threads, None, |thread| {
        let mut rules = Rules::new(thread + 1);
        move || pool.finish(pool.dispatch(black_box(policy), &mut rules))
    });
}

/// One pool, whose threads run the operations that are made for them, beside the `Mutex<Vec>` pool.
fn row<O: FnMut()>(
    policy: Policy,
    by: &str,
    threads: usize,
    pace: Option<Duration>,
    operation: impl Fn(u64) -> O + Sync,
) {
    let what = format!("{policy}{by}, {}", if pace.is_some() { "paced" } else { "saturating" });
    if !is_wanted(&what) {
        return;
    }
    let mutex = MutexPool::new(vec![Worker { in_flight: 0, load: Some(1000) }; WORKERS]);
    let [mut least, mut own, mut locked] = [(); 3].map(|()| Vec::with_capacity(turns()));
    for _ in 0..turns() {
        if pace.is_none() {
            least.push(turn(threads, pace, |_| {
                let floor = Floor::default();
                move || black_box(&floor).count_and_uncount()
            }));
        }
        own.push(turn(threads, pace, &operation));
        locked.push(turn(threads, pace, |_| || mutex.finish(mutex.dispatch(policy, None))));
    }
    let [floor, ns, mutex_ns] =
        [&least, &own, &locked].map(|turns| turns.iter().map(|turn| turn.ns).collect::<Vec<_>>());
    let saturating =
        |figure: fn(&[f64], &[f64]) -> f64, of| pace.is_none().then(|| figure(of, &floor));
    Row {
        what,
        workers: WORKERS,
        threads,
        ns: saturating(|ns, _| median(ns.iter().copied()), &ns),
        ratio: saturating(median_ratio, &ns),
        mutex_ratio: saturating(median_ratio, &mutex_ns),
        latency: Some(latency(&own)),
        mutex_latency: Some(latency(&locked)),
        retries: (cfg!(evenkeel_count_retries) && by.is_empty())
            .then(|| median(own.iter().map(|turn| turn.retries))),
    }
    .print();
}

fn turns() -> usize {
    2 * rounds() + 1
}

struct Turn {
    ns: f64,
    latency: Latency,
    retries: f64,
}

fn latency(turns: &[Turn]) -> Latency {
    let each = |of: fn(&Latency) -> f64| turns.iter().map(move |turn| of(&turn.latency));
    Latency {
        p50: median(each(|latency| latency.p50)),
        p99: median(each(|latency| latency.p99)),
        max: each(|latency| latency.max).fold(0.0, f64::max),
    }
}

/// All threads at once, each with the operation that is made for it.
fn turn<O: FnMut()>(
    threads: usize,
    pace: Option<Duration>,
    operation: impl Fn(u64) -> O + Sync,
) -> Turn {
    let length = Duration::from_millis(if is_quick() { 2 } else { 30 });
    let (ready, start) = (Barrier::new(threads), OnceLock::new());
    let one = |thread: usize| {
        pin(thread);
        let mut operation = operation(thread as u64);
        let mut times = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3).unwrap();
        let mut done = 0u64;
        ready.wait();
        let started = *start.get_or_init(Instant::now);
        loop {
            match pace {
                None => (1..TIMED).for_each(|_| operation()),
                Some(pace) => thread::sleep(pace),
            }
            let before = Instant::now();
            operation();
            let after = Instant::now();
            times.saturating_record((after - before).as_nanos() as u64);
            done += if pace.is_none() { TIMED.into() } else { 1 };
            if after - started >= length {
                return (after - started, done, times, retries());
            }
        }
    };
    let results: Vec<_> = thread::scope(|scope| {
        let one = &one;
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let took = results.iter().map(|result| result.0).max().unwrap();
    let done: u64 = results.iter().map(|result| result.1).sum();
    let retries: u64 = results.iter().map(|result| result.3).sum();
    let mut times = Histogram::<u64>::new(3).unwrap();
    for result in &results {
        times.add(&result.2).unwrap();
    }
    Turn {
        ns: took.as_nanos() as f64 / done as f64,
        retries: retries as f64 / done as f64,
        latency: Latency {
            p50: times.value_at_quantile(0.5) as f64,
            p99: times.value_at_quantile(0.99) as f64,
            max: times.max() as f64,
        },
    }
}

/// Of the calling thread.
#[cfg(evenkeel_count_retries)]
fn retries() -> u64 {
    evenkeel::RETRIES.get()
}

#[cfg(not(evenkeel_count_retries))]
fn retries() -> u64 {
    0
}
