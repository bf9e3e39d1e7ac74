//! What several of the test files need.
#![allow(dead_code)] // Each of them needs a part of it.

use evenkeel::{Load, Policy, Pool, PoolConfig, Request, WorkerConfig, WorkerId, WorkerStats};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A pool of workers with the keys 0, 1, 2 … in the slots 0, 1, 2 …
pub fn pool_of(workers: usize) -> (Pool, Vec<WorkerId>) {
    let pool = Pool::new(PoolConfig::default()).unwrap();
    let workers = (0..workers as u64).map(|key| add(&pool, key)).collect();
    (pool, workers)
}

pub fn add(pool: &Pool, key: u64) -> WorkerId {
    pool.add(key, WorkerConfig::default()).unwrap()
}

pub fn by(policy: Policy) -> Request<'static> {
    Request { policy: Some(policy), ..Request::default() }
}

/// Puts requests in flight that never end.
pub fn hold(pool: &Pool, worker: WorkerId, requests: u32) {
    for _ in 0..requests {
        let _ = pool.begin(worker, 0).unwrap();
    }
}

pub fn load(worker: WorkerId, tokens: u64) -> Load {
    Load { worker, tokens, running: None, waiting: None, timestamp: None }
}

/// Publishes these tokens as the whole report.
pub fn report(pool: &Pool, tokens: &[(WorkerId, u64)]) {
    let loads: Vec<_> = tokens.iter().map(|&(worker, tokens)| load(worker, tokens)).collect();
    assert_eq!(pool.publish(&loads), Ok(0));
}

pub fn stats_of(pool: &Pool, worker: WorkerId) -> Option<WorkerStats> {
    pool.stats().unwrap().into_iter().find(|stats| stats.worker == worker)
}

pub fn in_flight(pool: &Pool, worker: WorkerId) -> u32 {
    stats_of(pool, worker).expect("known").in_flight
}

/// In flight on each worker, by slot.
pub fn counts(pool: &Pool) -> Vec<u32> {
    pool.stats().unwrap().iter().map(|stats| stats.in_flight).collect()
}

/// How often each of the workers was chosen; choosing any other fails.
pub fn tally(workers: &[WorkerId], times: usize, mut choose: impl FnMut() -> WorkerId) -> Vec<u64> {
    let places: HashMap<_, _> = workers.iter().copied().zip(0..).collect();
    let mut tally = vec![0; workers.len()];
    for _ in 0..times {
        let chosen = choose();
        let place: usize = *places.get(&chosen).unwrap_or_else(|| panic!("{chosen} was chosen"));
        tally[place] += 1;
    }
    tally
}

/// Sets the flag when dropped: whoever runs until then ends also when the test fails.
pub struct Until<'a>(pub &'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Lets threads go on at the same moment, again and again: a barrier of the system wakes them one
/// by one, far apart for what takes nanoseconds.
pub struct StartingLine {
    threads: usize,
    arrived: AtomicUsize,
    /// For an [`Until`] in each thread, so that nobody waits for one that has failed.
    pub left: AtomicBool,
}

impl StartingLine {
    pub fn new(threads: usize) -> Self {
        Self { threads, arrived: AtomicUsize::new(0), left: AtomicBool::new(false) }
    }

    pub fn wait(&self) {
        let arrived = self.arrived.fetch_add(1, Ordering::AcqRel) + 1;
        let all = arrived.next_multiple_of(self.threads);
        for spins in 1.. {
            // First: who leaves at the end has arrived before.
            let left = self.left.load(Ordering::Acquire);
            if self.arrived.load(Ordering::Acquire) >= all {
                return;
            }
            assert!(!left, "one has failed");
            if spins % 200 == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// Critical values of chi-square by degrees of freedom: a right distribution exceeds them with
/// probability 1e-9. The seeds are fixed, so a test that passes goes on passing.
const CRITICAL: [(usize, f64); 14] = [
    (1, 37.325),
    (2, 41.447),
    (3, 44.841),
    (4, 47.879),
    (5, 50.692),
    (6, 53.345),
    (7, 55.875),
    (8, 58.308),
    (9, 60.660),
    (19, 81.559),
    (20, 83.479),
    (56, 144.29),
    (99, 207.90),
    (199, 342.84),
];

pub fn assert_chi_square(statistic: f64, degrees: usize) {
    let (_, critical) = CRITICAL.iter().find(|(of, _)| *of == degrees).expect("in the table");
    assert!(statistic < *critical, "chi-square {statistic} of {degrees} degrees of freedom");
}

/// The observed numbers fit these probabilities; one of 0 binds exactly.
pub fn assert_fits(observed: &[u64], probabilities: &[f64]) {
    let total: u64 = observed.iter().sum();
    let mut statistic = 0.0;
    let mut cells = 0;
    for (&seen, probability) in observed.iter().zip(probabilities) {
        let expected = total as f64 * probability;
        if *probability == 0.0 {
            assert_eq!(seen, 0, "{observed:?} for {probabilities:?}");
            continue;
        }
        assert!(expected >= 100.0, "too few for chi-square");
        statistic += (seen as f64 - expected).powi(2) / expected;
        cells += 1;
    }
    if cells > 1 {
        assert_chi_square(statistic, cells - 1);
    }
}

pub fn assert_uniform(observed: &[u64]) {
    assert_fits(observed, &vec![1.0 / observed.len() as f64; observed.len()]);
}

/// Bytes that the calling thread has allocated and not freed.
pub fn heap() -> isize {
    HEAP.get()
}

thread_local! {
    static HEAP: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.set(HEAP.get() + layout.size() as isize);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HEAP.set(HEAP.get() - layout.size() as isize);
        // SAFETY: `alloc` got it there, with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}
