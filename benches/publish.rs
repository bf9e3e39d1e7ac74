//! What publishing costs, and what choices pay beside it, over many workers.
//!
//! `cargo bench --bench publish`. The first rows are one publish of a load for every worker, as a
//! ratio to the floor. The others are choices over 1,024 workers on the first core while a thread
//! on the second one publishes new loads for all of them once a millisecond, as a ratio to the same
//! choices without it. Samples are means over 8 ms, so that several publishes fall into each: dearer
//! than the median choice, which meets none.

mod baselines;
mod measure;

use baselines::Floor;
use evenkeel::{Policy, Pool, PoolConfig, Request, WorkerConfig, WorkerId};
use measure::{Row, is_wanted, pin, pool_of, report, rounds, sample};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(1);

fn main() {
    Row::print_header();
    for size in [8, 64, 256, 1024] {
        publish(size);
    }
    pin(0);
    for policy in [Policy::PowerOfTwoTokens, Policy::LeastRequests] {
        let (pool, ids) = pool_of(PoolConfig::default(), [WorkerConfig::default(); 1024]);
        let mut picker = pool.picker(1).unwrap();
        let request = Request { policy: Some(policy), ..Request::default() };
        beside(&format!("{policy}, pick"), &pool, &ids, || {
            black_box(picker.pick(black_box(&request)).unwrap());
        });
        beside(&format!("{policy}, dispatch + finish"), &pool, &ids, || {
            let ticket = picker.dispatch(black_box(&request)).unwrap();
            pool.finish(ticket).unwrap();
        });
    }
}

fn publish(size: usize) {
    let what = "publish a load for each worker".to_owned();
    if !is_wanted(&what) {
        return;
    }
    let (pool, ids) = pool_of(PoolConfig::default(), vec![WorkerConfig::default(); size]);
    let loads = report(&ids, |at| 1000 * at as u64);
    let floor = Floor::default();
    let (least, own): (Vec<f64>, Vec<f64>) = (0..rounds())
        .map(|_| {
            let least = sample(|| black_box(&floor).count_and_uncount());
            (least, sample(|| assert_eq!(pool.publish(black_box(&loads)).unwrap(), 0)))
        })
        .unzip();
    Row::of_one_thread(what, size, &own, &least).print();
}

fn beside(choice: &str, pool: &Pool, ids: &[WorkerId], mut run: impl FnMut()) {
    let what = format!("{choice}, beside 1 kHz publishing; ratio: to alone");
    if !is_wanted(&what) {
        return;
    }
    let (alone, beside): (Vec<f64>, Vec<f64>) = (0..rounds())
        .map(|_| (sample(&mut run), while_publishing(pool, ids, || sample(&mut run))))
        .unzip();
    Row::of_one_thread(what, ids.len(), &beside, &alone).print();
}

/// Runs while another thread publishes.
fn while_publishing<R>(pool: &Pool, ids: &[WorkerId], run: impl FnOnce() -> R) -> R {
    let done = AtomicBool::new(false);
    // All alike, so that the choice costs the same under each of them.
    let reports = [1000, 2000].map(|tokens| report(ids, |_| tokens));
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut next = Instant::now();
            for loads in reports.iter().cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                pool.publish(loads).unwrap();
                next += PERIOD;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        let result = run();
        done.store(true, Ordering::Relaxed);
        result
    })
}
