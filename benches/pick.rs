//! Cost of one dispatch and its finish, on one thread, by policy and number of workers.
//!
//! `cargo bench --bench pick` prints one table. Each figure is also given as a ratio to the floor
//! (see `baselines`), which is measured between the samples of its row, so that a machine that
//! slows down in the middle slows both. Arguments choose the rows whose names contain one of them.

mod baselines;

use baselines::{Floor, MutexPool, Worker};
use evenkeel::{Load, Policy, Pool, PoolConfig, Request, WorkerConfig, WorkerId};
use std::hint::black_box;
use std::time::{Duration, Instant};

const SAMPLES: usize = 9;
const SAMPLE: Duration = Duration::from_millis(16);
const SIZES: [usize; 5] = [2, 8, 64, 320, 1024];

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    println!(
        "dispatch + finish, one thread, ns: median of {SAMPLES}; (ratio to the floor of the same row)\n"
    );
    println!("| policy | workers | counts | evenkeel | Mutex<Vec> | floor | floor moved |");
    println!("|---|---:|---|---:|---:|---:|---:|");
    for policy in Policy::ALL {
        for size in SIZES {
            for (counts, different) in [("tied", false), ("different", true)] {
                row(&wanted, policy, size, counts, different, false);
            }
        }
    }
    row(&wanted, Policy::PowerOfTwoRequests, 64, "tied, one excluded", false, true);
}

fn row(
    wanted: &[String],
    policy: Policy,
    size: usize,
    counts: &str,
    different: bool,
    exclude: bool,
) {
    let name = format!("{policy} | {size} | {counts}");
    if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
        return;
    }
    let load = |at: usize| if different { 1000 * at as u64 } else { 1000 };
    let in_flight = |at: usize| if different { at as u32 } else { 0 };

    let pool = Pool::new(PoolConfig { seed: 1, ..PoolConfig::default() }).unwrap();
    let ids: Vec<WorkerId> =
        (0..size).map(|at| pool.add(at as u64, WorkerConfig::default()).unwrap()).collect();
    let loads: Vec<Load> = (0..size)
        .map(|at| Load {
            worker: ids[at],
            tokens: load(at),
            running: None,
            waiting: None,
            timestamp: None,
        })
        .collect();
    pool.publish(&loads).unwrap();
    for (at, &id) in ids.iter().enumerate() {
        for _ in 0..in_flight(at) {
            let _counted_for_good = pool.begin(id, 0).unwrap();
        }
    }
    let mut picker = pool.picker(1).unwrap();
    let excluded = if exclude { &ids[size / 2..][..1] } else { &[] };
    let request = Request { policy: Some(policy), excluded, ..Request::default() };

    let floor = Floor::default();
    let mutex = MutexPool::new(
        (0..size).map(|at| Worker { in_flight: in_flight(at), load: Some(load(at)) }).collect(),
    );
    let mutex_excluded = exclude.then_some(size / 2);

    let [mut own, mut locked, mut least] = [(); 3].map(|()| Vec::with_capacity(SAMPLES));
    for _ in 0..SAMPLES {
        least.push(sample(|| black_box(&floor).count_and_uncount()));
        own.push(sample(|| {
            let ticket = picker.dispatch(black_box(&request)).unwrap();
            pool.finish(ticket).unwrap();
        }));
        locked.push(sample(|| {
            let worker = mutex.dispatch(black_box(policy), mutex_excluded);
            mutex.finish(worker);
        }));
    }
    let (own, locked) = (median(&mut own), median(&mut locked));
    let floor = median(&mut least);
    let moved = (least[SAMPLES - 1] / least[0] - 1.0) * 100.0;
    println!(
        "| {name} | {own:.1} ({:.2}) | {locked:.1} ({:.2}) | {floor:.2} | {moved:.0} % |",
        own / floor,
        locked / floor,
    );
}

/// Nanoseconds of one run.
fn sample(mut run: impl FnMut()) -> f64 {
    let mut runs = 0u32;
    let start = Instant::now();
    loop {
        for _ in 0..256 {
            run();
        }
        runs += 256;
        let passed = start.elapsed();
        if passed >= SAMPLE {
            return passed.as_nanos() as f64 / f64::from(runs);
        }
    }
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
