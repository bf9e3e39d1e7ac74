//! What least_tokens and balanced promise: live tokens, and what 16 threads may make of them.

mod common;

use common::*;
use evenkeel::{Policy, Pool, Request, Tuning, WorkerId};
use std::thread;

const THREADS: usize = 16;

fn live(pool: &Pool) -> Vec<u64> {
    pool.stats().unwrap().iter().map(|stats| stats.live_tokens).collect()
}

fn weigh(pool: &Pool, request_tokens: u32) {
    pool.tune(Tuning { request_tokens, ..Tuning::default() }).unwrap();
}

fn of(policy: Policy, tokens: u32) -> Request<'static> {
    Request { tokens, ..by(policy) }
}

/// 16 threads dispatch requests of 100 tokens to equal workers that start even.
fn dispatch_from_16_threads(pool: &Pool, policy: Policy) {
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut picker = pool.picker(0).unwrap();
                for _ in 0..1000 {
                    let _ = picker.dispatch(&of(policy, 100)).unwrap();
                }
            });
        }
    });
}

#[test]
fn dispatches_of_equal_cost_stay_within_one_of_them() {
    for (policy, request_tokens) in
        [(Policy::LeastTokens, 0), (Policy::Balanced, 0), (Policy::Balanced, 1000)]
    {
        let (pool, workers) = pool_of(7);
        weigh(&pool, request_tokens);
        report(&pool, &workers.iter().map(|&worker| (worker, 5000)).collect::<Vec<_>>());
        dispatch_from_16_threads(&pool, policy);
        let live = live(&pool);
        let spread = live.iter().max().unwrap() - live.iter().min().unwrap();
        assert!(spread <= 100, "{policy} {live:?}");
    }
}

/// Where polled tokens send all requests to one worker until the next poll.
#[test]
fn live_tokens_do_not_herd_between_polls() {
    let (pool, [a, b]) = two();
    report(&pool, &[(a, 1000), (b, 0)]);
    let _tickets: Vec<_> =
        (0..10).map(|_| pool.dispatch(&of(Policy::LeastTokens, 100)).unwrap()).collect();
    // Ten on b make them even.
    assert_eq!((counts(&pool), live(&pool)), (vec![0, 10], vec![1000, 1000]));
    let _tickets: Vec<_> =
        (0..10).map(|_| pool.dispatch(&of(Policy::LeastTokens, 100)).unwrap()).collect();
    assert_eq!(live(&pool), [1500, 1500]);
}

#[test]
fn least_tokens_breaks_ties_by_requests() {
    let (pool, [a, b]) = two();
    hold(&pool, a, 1);
    report(&pool, &[(a, 50), (b, 50)]);
    for _ in 0..20 {
        assert_eq!(pool.pick(&by(Policy::LeastTokens)), Ok(b));
    }
}

#[test]
fn balanced_weighs_a_request_as_so_many_tokens() {
    let (pool, [a, b]) = two();
    hold(&pool, a, 3);
    report(&pool, &[(a, 1000), (b, 1299)]);
    // a: 3 × request_tokens + 1000, b: 1299.
    for (request_tokens, better) in [(0, a), (99, a), (100, b), (u32::MAX, b)] {
        weigh(&pool, request_tokens);
        assert_eq!(pool.pick(&by(Policy::Balanced)), Ok(better), "{request_tokens}");
    }
}

#[test]
fn those_without_a_load_compete_as_tuned() {
    for policy in [Policy::LeastTokens, Policy::Balanced] {
        let (pool, [a, b]) = two();
        report(&pool, &[(a, 1_000_000)]);
        assert_eq!(pool.pick(&by(policy)), Ok(a), "{policy}: only a has a load");
        pool.tune(Tuning { unreported_compete: true, ..Tuning::default() }).unwrap();
        assert_eq!(pool.pick(&by(policy)), Ok(b), "{policy}: b has no tokens in flight");
    }
}

#[test]
fn the_largest_loads_do_not_wrap() {
    for policy in [Policy::LeastTokens, Policy::Balanced] {
        let (pool, [a, b]) = two();
        weigh(&pool, u32::MAX);
        report(&pool, &[(a, u64::MAX - 1), (b, 0)]);
        let _heavy = pool.begin(a, u32::MAX).unwrap();
        assert_eq!(pool.pick(&by(policy)), Ok(b));
    }
}

fn two() -> (Pool, [WorkerId; 2]) {
    let (pool, workers) = pool_of(2);
    (pool, [workers[0], workers[1]])
}
