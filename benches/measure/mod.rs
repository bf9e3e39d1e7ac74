//! How the benches measure, and the table that all of them print.

// Each bench uses some of it.
#![allow(dead_code)]

use evenkeel::{Load, Pool, PoolConfig, WorkerConfig, WorkerId};
use std::time::{Duration, Instant};

/// Rounds of a row: odd, so that there is a middle one.
pub fn rounds() -> usize {
    if is_quick() { 3 } else { 15 }
}

/// Whether to show only that everything runs: the figures are worth nothing then.
pub fn is_quick() -> bool {
    std::env::args().any(|arg| arg == "--quick")
}

/// Whether the arguments ask for this row: without a name among them, for every row.
pub fn is_wanted(what: &str) -> bool {
    let mut names = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).peekable();
    names.peek().is_none() || names.any(|name| what.contains(&name))
}

/// Nanoseconds of one run, from runs over some milliseconds.
pub fn sample(mut run: impl FnMut()) -> f64 {
    let least = Duration::from_millis(if is_quick() { 1 } else { 8 });
    let mut runs = 0u32;
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            run();
        }
        runs += 64;
        let passed = start.elapsed();
        if passed >= least {
            return passed.as_nanos() as f64 / f64::from(runs);
        }
    }
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Ratios of samples that were taken in turns: a machine that slows down in the middle slows both.
pub fn median_ratio(samples: &[f64], to: &[f64]) -> f64 {
    median(samples.iter().zip(to).map(|(sample, to)| sample / to))
}

/// Keeps the calling thread on one core, the numbers going round.
pub fn pin(number: usize) {
    let cores = core_affinity::get_core_ids().expect("the cores are known");
    core_affinity::set_for_current(cores[number % cores.len()]);
}

/// A pool of these workers, each with a load of 1,000 tokens.
pub fn pool_of<'a>(
    config: PoolConfig,
    workers: impl IntoIterator<Item = WorkerConfig<'a>>,
) -> (Pool, Vec<WorkerId>) {
    let pool = Pool::new(config).unwrap();
    let ids: Vec<WorkerId> =
        (0..).zip(workers).map(|(key, worker)| pool.add(key, worker).unwrap()).collect();
    pool.publish(&report(&ids, |_| 1000)).unwrap();
    (pool, ids)
}

/// What an engine would report of these workers.
pub fn report(ids: &[WorkerId], tokens: impl Fn(usize) -> u64) -> Vec<Load> {
    let load = |(at, &worker)| Load {
        worker,
        tokens: tokens(at),
        running: None,
        waiting: None,
        timestamp: None,
    };
    ids.iter().enumerate().map(load).collect()
}

/// One line of the table. What is not said stays blank.
#[derive(Default)]
pub struct Row {
    pub what: String,
    pub workers: usize,
    pub threads: usize,
    pub ns: Option<f64>,
    /// `ns` to that of the floor, or of what the row names.
    pub ratio: Option<f64>,
    /// The `Mutex<Vec>` pool's, in the same row.
    pub mutex_ratio: Option<f64>,
    pub latency: Option<Latency>,
    pub mutex_latency: Option<Latency>,
    /// A dispatch + finish; under `--cfg evenkeel_count_retries` alone.
    pub retries: Option<f64>,
}

/// Nanoseconds of single operations, with those of the clock.
#[derive(Clone, Copy)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Row {
    /// Of one thread: what it took, and what that is compared with, sample by sample.
    pub fn of_one_thread(what: String, workers: usize, own: &[f64], to: &[f64]) -> Self {
        Self {
            what,
            workers,
            threads: 1,
            ns: Some(median(own.iter().copied())),
            ratio: Some(median_ratio(own, to)),
            ..Self::default()
        }
    }

    pub fn print_header() {
        println!(
            "| what | workers | threads | ns | ratio | Mutex ratio | p50 | p99 | max, µs | Mutex p99 | Mutex max, µs | retries |"
        );
        println!("|---|{}", "---:|".repeat(11));
    }

    pub fn print(&self) {
        let figure = |value: Option<f64>, digits: usize| {
            value.map_or(String::new(), |value| format!("{value:.digits$}"))
        };
        let (own, mutex) = (self.latency, self.mutex_latency);
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            self.what,
            self.workers,
            self.threads,
            figure(self.ns, 1),
            figure(self.ratio, 2),
            figure(self.mutex_ratio, 2),
            figure(own.map(|own| own.p50), 0),
            figure(own.map(|own| own.p99), 0),
            figure(own.map(|own| own.max / 1000.0), 0),
            figure(mutex.map(|mutex| mutex.p99), 0),
            figure(mutex.map(|mutex| mutex.max / 1000.0), 0),
            figure(self.retries, 3),
        );
    }
}
