//! What consistent_hashing promises: where hashes go, what moves when workers do, shares by weight,
//! and how far one worker may be ahead.

mod common;

use common::*;
use evenkeel::{
    Error, Policy, Pool, Request, Tuning, Vetoes, WorkerConfig, WorkerId, WorkerUpdate,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::thread;

const HASHES: u64 = 20_000;

fn of(hash: u64) -> Request<'static> {
    Request { hash, ..by(Policy::ConsistentHashing) }
}

/// Where each of the hashes goes.
fn placement(pool: &Pool) -> Vec<WorkerId> {
    (0..HASHES).map(|hash| pool.pick(&of(hash)).unwrap()).collect()
}

fn bounded(workers: usize, percent: u32) -> (Pool, Vec<WorkerId>) {
    let (pool, workers) = pool_of(workers);
    bound(&pool, percent);
    (pool, workers)
}

fn bound(pool: &Pool, percent: u32) {
    pool.tune(Tuning { hash_load_factor: percent, ..Tuning::default() }).unwrap();
}

/// Hashes of 10,000 sessions, of which few are busy and most are not.
fn zipf(seed: u64) -> impl FnMut() -> u64 {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut sum = 0.0;
    let mut up_to = Vec::new();
    for rank in 1..=10_000 {
        sum += f64::from(rank).powf(-1.1);
        up_to.push(sum);
    }
    move || {
        let drawn = rng.next_u64() as f64 / 2f64.powi(64) * sum;
        let session = up_to.partition_point(|&up_to| up_to <= drawn);
        evenkeel::key(&format!("session {session}"))
    }
}

/// It is the same in each version, in C, and on every machine: routers side by side agree.
#[test]
fn the_placement_stays_the_same() {
    let pool = Pool::new(Default::default()).unwrap();
    for port in 0..8 {
        add(&pool, evenkeel::key(&format!("10.0.0.1:300{port}")));
    }
    let first: Vec<_> = (0..16).map(|hash| pool.pick(&of(hash)).unwrap().slot()).collect();
    assert_eq!(first, PLACED);
}

const PLACED: [usize; 16] = [6, 0, 6, 0, 7, 5, 5, 3, 3, 3, 0, 1, 5, 7, 5, 3];

#[test]
fn a_worker_that_goes_moves_only_its_own_hashes() {
    let (pool, workers) = pool_of(16);
    let before = placement(&pool);
    for &gone in &workers {
        pool.veto(gone, Vetoes::OPERATOR, true).unwrap();
        for (before, after) in before.iter().zip(placement(&pool)) {
            assert_eq!(after == *before, *before != gone, "{before} to {after} without {gone}");
        }
        pool.veto(gone, Vetoes::OPERATOR, false).unwrap();
    }
    let gone = workers[5];
    pool.remove(gone).unwrap();
    let without = placement(&pool);
    assert!(
        before.iter().zip(&without).all(|(before, after)| (after == before) != (*before == gone))
    );
    let back = add(&pool, 5);
    let as_before = |(before, after): (&WorkerId, &WorkerId)| {
        *after == if *before == gone { back } else { *before }
    };
    assert!(before.iter().zip(&placement(&pool)).all(as_before));
}

#[test]
fn a_worker_that_comes_takes_hashes_and_moves_no_others() {
    let (pool, _) = pool_of(16);
    let before = placement(&pool);
    let new = add(&pool, 16);
    let after = placement(&pool);
    assert!(before.iter().zip(&after).all(|(before, after)| after == before || *after == new));
    let taken = after.iter().filter(|worker| **worker == new).count() as u64;
    // A 17th of them, by 5 standard deviations.
    assert!(taken.abs_diff(HASHES / 17) < 170, "{taken}");
}

#[test]
fn more_weight_only_takes() {
    let (pool, workers) = pool_of(16);
    let before = placement(&pool);
    pool.update(workers[3], WorkerUpdate { weight: Some(2), ..WorkerUpdate::default() }).unwrap();
    let after = placement(&pool);
    let moved = || before.iter().zip(&after).filter(|(before, after)| before != after);
    assert!(moved().count() > 500 && moved().all(|(_, after)| *after == workers[3]));
}

#[test]
fn shares_follow_the_weights() {
    for weights in [vec![1; 20], vec![1, 2, 3, 10], vec![1_000, 500, 10], vec![7; 3]] {
        let pool = Pool::new(Default::default()).unwrap();
        let workers: Vec<_> = (weights.iter().zip(0..))
            .map(|(&weight, key)| {
                pool.add(key, WorkerConfig { weight, ..Default::default() }).unwrap()
            })
            .collect();
        let sum: u32 = weights.iter().sum();
        let shares: Vec<_> = weights.iter().map(|&w| f64::from(w) / f64::from(sum)).collect();
        let mut picker = pool.picker(1).unwrap();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
        // In a row, far apart, and of names.
        let mut hashes: [Box<dyn FnMut(u64) -> u64>; 3] = [
            Box::new(|n| n),
            Box::new(|_| rng.next_u64()),
            Box::new(|n| evenkeel::key(&format!("user-{n}"))),
        ];
        for hash in &mut hashes {
            let mut n = 0;
            let tally = tally(&workers, 100_000, || {
                n += 1;
                picker.pick(&of(hash(n))).unwrap()
            });
            assert_fits(&tally, &shares);
        }
    }
}

/// The bar: 125 percent of the mean, rounded up, at each of 100,000 dispatches.
#[test]
fn no_worker_goes_above_its_bound() {
    for percent in [100, 125, 200] {
        let (pool, _) = bounded(16, percent);
        let mut hash = zipf(1);
        let mut picker = pool.picker(1).unwrap();
        let mut counts = [0u64; 16];
        for dispatched in 1..=100_000u64 {
            let ticket = picker.dispatch(&of(hash())).unwrap();
            let count = &mut counts[ticket.worker().slot()];
            *count += 1;
            assert!(*count <= (dispatched * u64::from(percent)).div_ceil(16 * 100));
        }
        let most = *counts.iter().max().unwrap();
        assert!(percent == 100 || most > 6_300, "the mix presses against the bound: {most}");
    }
}

#[test]
fn the_bound_follows_weights_and_ends() {
    let pool = Pool::new(Default::default()).unwrap();
    let weights = [1, 1, 2, 4];
    for (key, &weight) in weights.iter().enumerate() {
        pool.add(key as u64, WorkerConfig { weight, ..Default::default() }).unwrap();
    }
    bound(&pool, 125);
    let mut hash = zipf(2);
    let mut picker = pool.picker(1).unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut tickets = Vec::new();
    for _ in 0..20_000 {
        let random = rng.next_u64() as usize;
        if random % 100 < 45 && !tickets.is_empty() {
            let ended = tickets.swap_remove(random / 100 % tickets.len());
            pool.finish(ended).unwrap();
            continue;
        }
        tickets.push(picker.dispatch(&of(hash())).unwrap());
        let slot = tickets.last().unwrap().worker().slot();
        let here = tickets.iter().filter(|ticket| ticket.worker().slot() == slot).count();
        let most = (tickets.len() * 125 * weights[slot] as usize).div_ceil(100 * 8);
        assert!(here <= most, "{here} of {most}");
    }
}

#[test]
fn the_bound_holds_among_threads() {
    let (pool, _) = bounded(8, 110);
    thread::scope(|scope| {
        for seed in 0..8 {
            let pool = &pool;
            scope.spawn(move || {
                let mut hash = zipf(seed);
                let mut picker = pool.picker(seed).unwrap();
                for _ in 0..5_000 {
                    let _ = picker.dispatch(&of(hash())).unwrap();
                }
            });
        }
    });
    let counts = counts(&pool);
    assert_eq!(counts.iter().sum::<u32>(), 40_000);
    assert!(counts.iter().all(|&count| count <= 5_500), "{counts:?}");
}

/// Passed over is a worker as if it were not there: its hashes go to the next in their order.
#[test]
fn a_full_worker_is_passed_over_for_the_next_in_order() {
    let (pool, workers) = pool_of(4);
    for hash in 0..200 {
        let first = pool.pick(&of(hash)).unwrap();
        let next = pool.pick(&Request { excluded: &[first], ..of(hash) }).unwrap();
        // 3 of 4 is above 125 percent of the mean, 1.
        let held: Vec<_> = (0..3).map(|_| pool.begin(first, 0).unwrap()).collect();
        assert_eq!(pool.pick(&of(hash)), Ok(first), "without a bound");
        bound(&pool, 125);
        assert_eq!(pool.pick(&of(hash)), Ok(next));
        // Alone it is the mean.
        assert_eq!(pool.pick(&Request { candidates: Some(&[first]), ..of(hash) }), Ok(first));
        bound(&pool, 0);
        for ticket in held {
            pool.finish(ticket).unwrap();
        }
        pool.update(first, WorkerUpdate { max_in_flight: Some(1), ..WorkerUpdate::default() })
            .unwrap();
        let filled = pool.dispatch(&of(hash)).unwrap();
        let beside = pool.dispatch(&of(hash)).unwrap();
        assert_eq!((filled.worker(), beside.worker()), (first, next), "a cap of 1");
        pool.finish(filled).unwrap();
        pool.finish(beside).unwrap();
        pool.update(first, WorkerUpdate { max_in_flight: Some(0), ..WorkerUpdate::default() })
            .unwrap();
    }
    let _ = workers;
}

#[test]
fn load_factors_have_their_bounds() {
    let pool = Pool::new(Default::default()).unwrap();
    for hash_load_factor in [1, 99, 10_001, u32::MAX] {
        let refused = pool.tune(Tuning { hash_load_factor, ..Tuning::default() }).unwrap_err();
        let said = format!("hash_load_factor is {hash_load_factor}; allowed: 100 to 10000, or 0");
        assert!(refused.to_string().starts_with(&said), "{refused}");
        assert!(matches!(refused, Error::Invalid(_)));
    }
    for hash_load_factor in [100, 125, 10_000, 0] {
        bound(&pool, hash_load_factor);
        assert_eq!(pool.tuning(), Tuning { hash_load_factor, ..Tuning::default() });
    }
}
