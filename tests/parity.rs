//! The policies as they are specified, row by row, and the behaviours that the tests of SGLang's
//! router check. Random choices are of pickers with fixed seeds.

mod common;

use common::*;
use evenkeel::{
    Error, InFlight, METRIC_VARIABLE, Policy, Pool, PoolConfig, Request, Tuning, Vetoes,
    WorkerConfig, WorkerId, WorkerUpdate, key,
};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::process::Command;
use std::sync::Barrier;
use std::thread;

const LEAST: Policy = Policy::LeastRequests;
const TOKENS: Policy = Policy::PowerOfTwoTokens;
const REQUESTS: Policy = Policy::PowerOfTwoRequests;

/// Workers with these requests in flight and polled tokens.
fn pool_with(workers: &[(u32, Option<u64>)]) -> (Pool, Vec<WorkerId>) {
    let (pool, ids) = pool_of(workers.len());
    let mut polled = Vec::new();
    for (&worker, &(requests, tokens)) in ids.iter().zip(workers) {
        hold(&pool, worker, requests);
        polled.extend(tokens.map(|tokens| (worker, tokens)));
    }
    report(&pool, &polled);
    (pool, ids)
}

/// The same, chosen from 10,000 times.
fn picks(policy: Policy, workers: &[(u32, Option<u64>)]) -> Vec<u64> {
    let (pool, ids) = pool_with(workers);
    picks_of(&pool, &ids, policy)
}

fn picks_of(pool: &Pool, workers: &[WorkerId], policy: Policy) -> Vec<u64> {
    let mut picker = pool.picker(1).unwrap();
    let mut hash = 0;
    tally(workers, 10_000, || {
        hash += 1;
        picker.pick(&Request { hash, ..by(policy) }).unwrap()
    })
}

fn tune(pool: &Pool, tuning: Tuning) {
    pool.tune(tuning).unwrap();
    assert_eq!(pool.tuning(), tuning);
}

fn update(pool: &Pool, worker: WorkerId, weight: u32) {
    pool.update(worker, WorkerUpdate { weight: Some(weight), ..WorkerUpdate::default() }).unwrap();
}

// The table of policies.

#[test]
fn round_robin_takes_the_next_slot_after_the_last_chosen() {
    let (pool, workers) = pool_of(4);
    let mut pickers = [1, 2].map(|seed| pool.picker(seed).unwrap());
    let mut last = pool.pick(&by(Policy::RoundRobin)).unwrap().slot();
    // The cursor is the pool's: picks and dispatches of everybody move it.
    for round in 0..40 {
        let request = by(Policy::RoundRobin);
        let worker = match round % 4 {
            0 => pool.pick(&request).unwrap(),
            1 => pool.dispatch(&request).unwrap().worker(),
            2 => pickers[0].pick(&request).unwrap(),
            _ => pickers[1].dispatch(&request).unwrap().worker(),
        };
        assert_eq!(worker, workers[(last + 1) % 4]);
        last = worker.slot();
        // Those of other policies don't.
        for policy in &Policy::ALL[1..] {
            pool.pick(&by(*policy)).unwrap();
        }
    }
}

/// What is in flight and polled is nothing to it.
#[test]
fn round_robin_and_random_compare_nothing() {
    let workers = [(9, None), (0, Some(0)), (2, Some(1000)), (5, Some(3))];
    assert_eq!(picks(Policy::RoundRobin, &workers), [2500; 4]);
    assert_uniform(&picks(Policy::Random, &workers));
}

#[test]
fn random_is_uniform() {
    for n in [2, 3, 5, 8, 100] {
        let (pool, mut workers) = pool_of(n + 3);
        for gone in [n, n / 2, 0] {
            pool.veto(workers.remove(gone), Vetoes::HOST, true).unwrap();
        }
        let mut picker = pool.picker(3).unwrap();
        let request = by(Policy::Random);
        assert_uniform(&tally(&workers, 40_000, || picker.pick(&request).unwrap()));
        // Few are left among many, so that it has to look for them.
        let few = &workers[..2];
        let request = Request { candidates: Some(few), ..request };
        assert_uniform(&tally(few, 10_000, || picker.pick(&request).unwrap()));
    }
}

#[test]
fn power_of_two_tokens_compares_tokens_where_both_have_a_load() {
    assert_eq!(picks(TOKENS, &[(0, Some(11)), (9, Some(10))]), [0, 10_000]);
    assert_eq!(picks(TOKENS, &[(9, Some(0)), (0, Some(1))]), [10_000, 0]);
}

#[test]
fn power_of_two_tokens_compares_requests_where_tokens_are_equal() {
    assert_eq!(picks(TOKENS, &[(4, Some(10)), (3, Some(10))]), [0, 10_000]);
}

#[test]
fn power_of_two_tokens_compares_requests_where_one_has_no_load() {
    assert_eq!(picks(TOKENS, &[(4, None), (3, Some(10))]), [0, 10_000]);
    assert_eq!(picks(TOKENS, &[(4, Some(0)), (3, None)]), [0, 10_000]);
    assert_eq!(picks(TOKENS, &[(4, None), (3, None)]), [0, 10_000]);
}

#[test]
fn power_of_two_requests_compares_requests() {
    assert_eq!(picks(REQUESTS, &[(4, Some(0)), (3, Some(10))]), [0, 10_000]);
    assert_eq!(picks(REQUESTS, &[(4, Some(0)), (3, None)]), [0, 10_000]);
}

#[test]
fn power_of_two_requests_compares_tokens_of_ties_where_both_have_a_load() {
    assert_eq!(picks(REQUESTS, &[(3, Some(11)), (3, Some(10))]), [0, 10_000]);
    assert_uniform(&picks(REQUESTS, &[(3, Some(11)), (3, None)]));
}

/// The first drawn, and that is either of them equally often.
#[test]
fn power_of_two_full_tie_takes_the_first_drawn() {
    for policy in [TOKENS, REQUESTS] {
        for tokens in [None, Some(7)] {
            assert_uniform(&picks(policy, &[(3, tokens), (3, tokens)]));
            assert_uniform(&picks(policy, &[(0, tokens); 4]));
        }
    }
}

#[test]
fn least_requests_takes_the_fewest_requests() {
    assert_eq!(picks(LEAST, &[(3, None), (2, None), (1, None), (4, None)]), [0, 0, 10_000, 0]);
    let loaded = [(3, Some(0)), (2, Some(1)), (1, Some(9)), (4, Some(0))];
    assert_eq!(picks(LEAST, &loaded), [0, 0, 10_000, 0]);
}

#[test]
fn least_requests_breaks_ties_by_tokens_and_then_at_random() {
    assert_eq!(picks(LEAST, &[(1, Some(5)), (1, Some(4)), (1, Some(6))]), [0, 10_000, 0]);
    let tied = picks(LEAST, &[(1, Some(4)), (0, None), (1, Some(4)), (1, Some(6))]);
    assert_fits(&tied, &[0.5, 0.0, 0.5, 0.0]);
    assert_uniform(&picks(LEAST, &[(1, None); 3]));
}

#[test]
fn least_requests_lets_only_the_reported_compete() {
    assert_eq!(picks(LEAST, &[(0, None), (7, Some(1_000_000)), (0, None)]), [0, 10_000, 0]);
    assert_eq!(picks(LEAST, &[(1, None), (0, None), (2, None)]), [0, 10_000, 0]);
}

/// Those that aren't eligible don't count for it: here the only reported one.
#[test]
fn least_requests_reported_rule_is_about_the_eligible() {
    let (pool, workers) = pool_with(&[(0, None), (7, Some(1)), (1, None)]);
    let [idle, reported, other] = workers[..] else { unreachable!() };
    let excluded = [reported];
    let request = Request { excluded: &excluded, ..by(LEAST) };
    assert_eq!(pool.pick(&request), Ok(idle));
    let request = Request { candidates: Some(&[idle, other]), ..by(LEAST) };
    assert_eq!(pool.pick(&request), Ok(idle));
    let full = WorkerUpdate { max_in_flight: Some(7), ..WorkerUpdate::default() };
    pool.update(reported, full).unwrap();
    assert_eq!(pool.dispatch(&by(LEAST)).unwrap().worker(), idle);
    assert_eq!(pool.pick(&by(LEAST)), Ok(reported), "picks have no cap");
    pool.veto(reported, Vetoes::HEALTH, true).unwrap();
    assert!([Ok(idle), Ok(other)].contains(&pool.pick(&by(LEAST))));
}

#[test]
fn least_requests_may_let_the_unreported_compete() {
    let unreported_compete = Tuning { unreported_compete: true, ..Tuning::default() };
    let picks = |workers: &[_]| {
        let (pool, ids) = pool_with(workers);
        tune(&pool, unreported_compete);
        picks_of(&pool, &ids, LEAST)
    };
    assert_eq!(picks(&[(0, None), (1, Some(0)), (2, None)]), [10_000, 0, 0]);
    assert_eq!(picks(&[(2, None), (1, Some(9)), (1, Some(8))]), [0, 0, 10_000]);
    // Tokens break a tie only if all in it have a load.
    assert_fits(
        &picks(&[(1, None), (1, Some(9)), (1, Some(8)), (2, None)]),
        &[1. / 3., 1. / 3., 1. / 3., 0.],
    );

    let config = PoolConfig { tuning: unreported_compete, ..PoolConfig::default() };
    assert!(Pool::new(config).unwrap().tuning().unreported_compete);
}

// What holds beside the table.

#[test]
fn one_eligible_worker_is_it() {
    for policy in Policy::ALL {
        for choices in [2, 3, 255] {
            let (pool, workers) = pool_with(&[(0, Some(0)), (1000, None), (0, Some(0))]);
            tune(&pool, Tuning { choices, ..Tuning::default() });
            for not in [workers[0], workers[2]] {
                pool.veto(not, Vetoes::HEALTH, true).unwrap();
            }
            assert_eq!(picks_of(&pool, &workers, policy), [0, 10_000, 0]);
        }
    }
}

#[test]
fn two_draws_over_two_workers_are_both() {
    for policy in [TOKENS, REQUESTS] {
        assert_eq!(picks(policy, &[(1, Some(1)), (0, Some(0))]), [0, 10_000]);
        assert_eq!(picks(policy, &[(0, Some(0)), (1, Some(1))]), [10_000, 0]);
    }
}

/// Of n workers in a strict order the i-th best wins with the chance of all d draws being it or
/// worse, it among them: C(n − i, d − 1) / C(n, d).
#[test]
fn choices_are_distinct_draws() {
    fn choose(n: u32, k: u32) -> f64 {
        (0..k).map(|at| f64::from(n - at) / f64::from(k - at)).product()
    }
    for policy in [TOKENS, REQUESTS] {
        for (n, choices) in [(5, 2), (5, 3), (5, 4), (5, 5), (5, 6), (5, 255), (8, 4), (3, 3)] {
            let workers: Vec<_> = (0..n).map(|at| (at, Some(u64::from(at)))).collect();
            let (pool, ids) = pool_with(&workers);
            tune(&pool, Tuning { choices, ..Tuning::default() });
            let d = choices.min(n);
            let chance =
                |best| if best + d > n { 0.0 } else { choose(n - 1 - best, d - 1) / choose(n, d) };
            let chances: Vec<_> = (0..n).map(chance).collect();
            assert_fits(&picks_of(&pool, &ids, policy), &chances);
        }
    }
}

#[test]
fn choices_compare_tokens_only_if_every_drawn_worker_has_a_load() {
    let three = Tuning { choices: 3, ..Tuning::default() };
    let picks = |policy, workers: &[_]| {
        let (pool, ids) = pool_with(workers);
        tune(&pool, three);
        picks_of(&pool, &ids, policy)
    };
    assert_eq!(picks(TOKENS, &[(5, Some(1)), (4, Some(2)), (3, Some(3))]), [10_000, 0, 0]);
    assert_eq!(picks(TOKENS, &[(5, Some(1)), (4, Some(2)), (9, None)]), [0, 10_000, 0]);
    assert_eq!(picks(REQUESTS, &[(5, Some(1)), (5, Some(2)), (5, Some(3))]), [10_000, 0, 0]);
    assert_fits(&picks(REQUESTS, &[(5, Some(1)), (5, Some(2)), (6, None)]), &[0.5, 0.5, 0.0]);
}

#[test]
fn weights_divide_requests_and_tokens() {
    let picks = |policy, workers: &[_], weights: [u32; 2]| {
        let (pool, ids) = pool_with(workers);
        ids.iter().zip(weights).for_each(|(&worker, weight)| update(&pool, worker, weight));
        picks_of(&pool, &ids, policy)
    };
    const A: [u64; 2] = [10_000, 0];
    const B: [u64; 2] = [0, 10_000];
    for policy in [LEAST, REQUESTS, TOKENS] {
        // (5 + 1) / 3 against (2 + 1) / 1, and the next one up against the same.
        assert_eq!(picks(policy, &[(5, None), (2, None)], [3, 1]), A);
        assert_uniform(&picks(policy, &[(8, None), (2, None)], [3, 1]));
        assert_eq!(picks(policy, &[(9, None), (2, None)], [3, 1]), B);
        // Even then idle, a small one may have to wait: 1 / 1 against 2 / 3.
        assert_eq!(picks(policy, &[(1, None), (0, None)], [3, 1]), A);
    }
    for (policy, requests) in [(TOKENS, [9, 0]), (REQUESTS, [8, 2]), (LEAST, [8, 2])] {
        let with = |a, b| [(requests[0], Some(a)), (requests[1], Some(b))];
        assert_eq!(picks(policy, &with(29, 10), [3, 1]), A);
        assert_eq!(picks(policy, &with(31, 10), [3, 1]), B);
    }
    // Equal by weight to the last token, where 53 bits of a float would not tell.
    let big = 1 << 61;
    for (more, expected) in [(0, A), (1, B)] {
        assert_eq!(
            picks(TOKENS, &[(0, Some(2 * big + more)), (1, Some(3 * big))], [2, 3]),
            expected
        );
    }
    assert_eq!(picks(TOKENS, &[(0, Some(u64::MAX - 1)), (0, Some(1))], [1_000_000, 1]), B);
}

#[test]
fn equal_weights_are_as_none() {
    let run = |weight, policy| {
        let (pool, workers) =
            pool_with(&[(3, Some(9)), (0, None), (3, Some(8)), (1, Some(8)), (0, None)]);
        workers.iter().for_each(|&worker| update(&pool, worker, weight));
        while pool.pick(&by(Policy::RoundRobin)).unwrap().slot() != 0 {}
        let mut picker = pool.picker(5).unwrap();
        (0..1000).map(|_| picker.dispatch(&by(policy)).unwrap().worker().slot()).collect::<Vec<_>>()
    };
    for policy in Policy::ALL {
        assert_eq!(run(1, policy), run(7, policy));
        assert_eq!(run(1, policy), run(1_000_000, policy));
    }
}

/// Also where the weights are not taken for equal only because of one that is vetoed, or excluded.
#[test]
fn weighted_comparison_of_equal_weights_is_the_same() {
    let run = |outsider: u32, policy| {
        let (pool, workers) =
            pool_with(&[(3, Some(9)), (0, None), (3, Some(8)), (1, Some(8)), (0, None)]);
        update(&pool, workers[4], outsider);
        while pool.pick(&by(Policy::RoundRobin)).unwrap().slot() != 0 {}
        let mut picker = pool.picker(5).unwrap();
        let request = Request { excluded: &workers[4..], ..by(policy) };
        (0..1000).map(|_| picker.dispatch(&request).unwrap().worker().slot()).collect::<Vec<_>>()
    };
    for policy in Policy::ALL {
        assert_eq!(run(1, policy), run(7, policy));
    }
}

#[test]
fn weight_zero_takes_no_new_requests() {
    for policy in Policy::ALL {
        let (pool, workers) = pool_with(&[(0, Some(0)), (9, Some(9)), (9, Some(9))]);
        update(&pool, workers[0], 0);
        let picks = picks_of(&pool, &workers, policy);
        assert!(picks[0] == 0 && picks[1] > 4000 && picks[2] > 4000);
        update(&pool, workers[0], 1);
        assert!(picks_of(&pool, &workers, policy)[0] > 3000);
    }
}

#[test]
fn round_robin_and_random_ignore_other_weights() {
    for (policy, exact) in [(Policy::RoundRobin, true), (Policy::Random, false)] {
        let (pool, workers) = pool_of(4);
        for (&worker, weight) in workers.iter().zip([1, 10, 1_000_000, 2]) {
            update(&pool, worker, weight);
        }
        let picks = picks_of(&pool, &workers, policy);
        assert_uniform(&picks);
        assert!(!exact || picks == [2500; 4]);
    }
}

#[test]
fn caps_bind_dispatches_alone() {
    for policy in Policy::ALL {
        let (pool, workers) = pool_of(2);
        let cap = WorkerUpdate { max_in_flight: Some(3), ..WorkerUpdate::default() };
        pool.update(workers[0], cap).unwrap();
        // The capped one is the better by far.
        hold(&pool, workers[1], 10);
        let mut picker = pool.picker(2).unwrap();
        let chosen = tally(&workers, 30, || picker.dispatch(&by(policy)).unwrap().worker());
        assert_eq!(chosen, [3, 27]);
        hold(&pool, workers[1], 100);
        let picks = tally(&workers, 100, || picker.pick(&by(policy)).unwrap());
        assert!(picks[0] > 0);
    }
}

#[test]
fn values_out_of_range_are_refused_in_words() {
    let words = |result: Result<(), Error>, value: &str, allowed: &str| match result {
        Err(error @ Error::Invalid(_)) => {
            let message = error.to_string();
            assert!(message.contains(value) && message.contains(allowed), "{message}");
        }
        other => panic!("{other:?}"),
    };
    let (pool, workers) = pool_of(1);
    for choices in [0, 1, 256, u32::MAX] {
        let tuning = Tuning { choices, ..Tuning::default() };
        words(pool.tune(tuning), &choices.to_string(), "2 to 255");
        let config = PoolConfig { tuning, ..PoolConfig::default() };
        words(Pool::new(config).map(drop), &choices.to_string(), "2 to 255");
    }
    for capacity in [0, 65_536, u32::MAX] {
        let config = PoolConfig { capacity, ..PoolConfig::default() };
        words(Pool::new(config).map(drop), &capacity.to_string(), "1 to 65535");
    }
    let add = |config| pool.add(9, config).map(drop);
    let default = WorkerConfig::default();
    words(add(WorkerConfig { weight: 1_000_001, ..default }), "1000001", "0 to 1000000");
    words(add(WorkerConfig { max_in_flight: 1 << 20, ..default }), "1048576", "1048575");
    let long = "x".repeat(256);
    words(add(WorkerConfig { label: &long, ..default }), "256", "255");
    words(add(WorkerConfig { label: "a\0b", ..default }), "a\\0b", "255");
    let update = WorkerUpdate { label: Some(&long), ..WorkerUpdate::default() };
    words(pool.update(workers[0], update), "256", "255");
    assert_eq!((pool.tuning(), pool.totals().unwrap().workers), (Tuning::default(), 1));
    // And the ends of the ranges are not.
    let label = &long[1..];
    add(WorkerConfig { weight: 1_000_000, max_in_flight: (1 << 20) - 1, label, ..default })
        .unwrap();
    assert_eq!(&*stats_of(&pool, pool.find(9).unwrap()).unwrap().label, label);
    pool.tune(Tuning { choices: 255, request_tokens: u32::MAX, ..Tuning::default() }).unwrap();
}

#[test]
fn the_default_is_least_requests() {
    assert_eq!(Policy::default(), LEAST);
    let (pool, workers) = pool_with(&[(1, None), (0, None), (2, None)]);
    assert_eq!(pool.tuning(), Tuning { policy: LEAST, choices: 2, ..Tuning::default() });
    for _ in 0..1000 {
        assert_eq!(pool.pick(&Request::default()), Ok(workers[1]));
    }
}

#[test]
fn a_request_beats_the_tuning_and_tuning_switches() {
    let (pool, workers) = pool_with(&[(1, Some(5)), (0, Some(9))]);
    let [light, idle] = workers[..] else { unreachable!() };
    assert_eq!(pool.pick(&Request::default()), Ok(idle));
    tune(&pool, Tuning { policy: TOKENS, ..Tuning::default() });
    assert_eq!(pool.pick(&Request::default()), Ok(light));
    assert_eq!(pool.pick(&by(LEAST)), Ok(idle));
    assert_eq!(pool.pick(&by(REQUESTS)), Ok(idle));
    let config = PoolConfig { tuning: pool.tuning(), ..PoolConfig::default() };
    assert_eq!(Pool::new(config).unwrap().tuning().policy, TOKENS);
}

#[test]
fn policy_names() {
    let names =
        ["round_robin", "random", "power_of_two:tokens", "power_of_two:requests", "least_requests"];
    for (policy, name) in Policy::ALL.into_iter().zip(names) {
        assert_eq!((policy.name(), policy.to_string().as_str()), (name, name));
        assert_eq!(name.parse(), Ok(policy));
    }
    assert_eq!("power_of_two".parse(), Ok(TOKENS));
    assert_eq!(format!("{LEAST:>16}"), "  least_requests");
}

/// FNV-1a of the label as given, by its published test values.
#[test]
fn keys_are_stable() {
    for (label, expected) in [
        ("", 0xcbf2_9ce4_8422_2325),
        ("a", 0xaf63_dc4c_8601_ec8c),
        ("foobar", 0x8594_4171_f739_67e8),
    ] {
        assert_eq!(key(label), expected);
    }
    assert_ne!(key("host:1"), key("Host:1"));
}

/// A process can't change its environment beside other threads, so this test is also its own
/// child: it prints what it has found there.
#[test]
fn the_environment_selects_the_metric() {
    const CHILD: &str = "EVENKEEL_TEST_OF_ENVIRONMENT";
    if env::var_os(CHILD).is_some() {
        // Nothing else reads it.
        assert_eq!(Pool::new(PoolConfig::default()).unwrap().tuning().policy, LEAST);
        assert_eq!("power_of_two".parse(), Ok(TOKENS));
        match Policy::from_env() {
            Ok(policy) => println!("found: {policy}"),
            Err(error) => println!("found: {error}"),
        }
        return;
    }
    assert_eq!(METRIC_VARIABLE, "SGLANG_ROUTER_P2C_LOAD_METRIC");
    let found_with = |value: Option<&OsStr>| {
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "the_environment_selects_the_metric", "--nocapture"]);
        child.env_remove(METRIC_VARIABLE).env(CHILD, "1");
        child.envs(value.map(|value| (METRIC_VARIABLE, value)));
        let output = child.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let output = String::from_utf8(output.stdout).unwrap();
        let (_, found) = output.split_once("found: ").expect("one line of the child's");
        found.lines().next().unwrap().to_owned()
    };
    for (value, policy) in [
        (None, TOKENS),
        (Some("tokens"), TOKENS),
        (Some("requests"), REQUESTS),
        (Some("least_requests"), LEAST),
    ] {
        assert_eq!(found_with(value.map(OsStr::new)), policy.name());
    }
    for value in [
        "",
        "Tokens",
        " tokens",
        "tokens ",
        "token",
        "least-requests",
        "round_robin",
        "power_of_two:tokens",
    ] {
        let message = found_with(Some(OsStr::new(value)));
        for word in [&format!("{value:?}"), METRIC_VARIABLE, "tokens, requests, least_requests"] {
            assert!(message.contains(word), "{message}");
        }
    }
    let message = found_with(Some(&OsString::from_vec(vec![b'x', 0xFF])));
    assert!(message.contains("xFF") && message.contains(METRIC_VARIABLE), "{message}");
}

// The behaviours that the reference's own tests check.

/// Of 10, 5 and 0 in flight: the idlest most often, the busiest least.
#[test]
fn reference_power_of_two_prefers_the_idlest() {
    for policy in [TOKENS, REQUESTS] {
        let picks = picks(policy, &[(10, None), (5, None), (0, None)]);
        assert_fits(&picks, &[0.0, 1.0 / 3.0, 2.0 / 3.0]);
    }
}

#[test]
fn reference_the_lighter_of_two() {
    assert_eq!(picks(TOKENS, &[(0, Some(100)), (0, Some(10))]), [0, 10_000]);
}

#[test]
fn reference_one_worker() {
    for policy in Policy::ALL {
        assert_eq!(picks(policy, &[(3, Some(100))]), [10_000]);
        assert_eq!(picks(policy, &[(3, None)]), [10_000]);
    }
}

#[test]
fn reference_tokens_known_on_one_side_only() {
    assert_eq!(picks(TOKENS, &[(5, Some(1)), (2, None)]), [0, 10_000]);
    assert_eq!(picks(TOKENS, &[(2, None), (5, Some(1))]), [10_000, 0]);
    assert_eq!(picks(TOKENS, &[(2, Some(1000)), (5, None)]), [10_000, 0]);
    assert_eq!(picks(TOKENS, &[(5, None), (2, Some(1000))]), [0, 10_000]);
}

#[test]
fn reference_idle_with_50_000_tokens_against_5_requests_unreported() {
    assert_eq!(picks(TOKENS, &[(0, Some(50_000)), (5, None)]), [10_000, 0]);
}

#[test]
fn reference_fewer_tokens_win_with_more_requests() {
    assert_eq!(picks(TOKENS, &[(1, Some(1000)), (9, Some(10))]), [0, 10_000]);
}

#[test]
fn reference_metric_requests() {
    assert_eq!(picks(REQUESTS, &[(5, Some(10)), (2, Some(1000))]), [0, 10_000]);
}

#[test]
fn reference_least_requests_of_four() {
    let workers = [(0, None), (5, Some(1)), (1, Some(1000)), (3, Some(1))];
    assert_eq!(picks(LEAST, &workers), [0, 0, 10_000, 0]);
}

#[test]
fn reference_round_robin() {
    let (pool, workers) = pool_of(3);
    let next = || pool.pick(&by(Policy::RoundRobin)).unwrap().slot();
    while next() != 2 {}
    assert_eq!([(); 5].map(|()| next()), [0, 1, 2, 0, 1]);
    while next() != 2 {}
    pool.veto(workers[1], Vetoes::HEALTH, true).unwrap();
    assert_eq!([(); 4].map(|()| next()), [0, 2, 0, 2]);
}

#[test]
fn reference_none_healthy() {
    let (pool, workers) = pool_of(3);
    for &worker in &workers {
        pool.veto(worker, Vetoes::HEALTH, true).unwrap();
    }
    for policy in Policy::ALL {
        assert_eq!(pool.pick(&by(policy)), Err(Error::Empty));
    }
}

#[test]
fn reference_100_concurrent_begins_and_ends() {
    let (pool, workers) = pool_of(1);
    let barrier = Barrier::new(101);
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                barrier.wait();
                let ticket = pool.begin(workers[0], 3).unwrap();
                barrier.wait();
                barrier.wait();
                pool.finish(ticket).unwrap();
            });
        }
        barrier.wait();
        barrier.wait();
        assert_eq!(counts(&pool), [100]);
        assert_eq!(stats_of(&pool, workers[0]).unwrap().tokens, 300);
        barrier.wait();
    });
    let stats = stats_of(&pool, workers[0]).unwrap();
    assert_eq!((stats.in_flight, stats.tokens, stats.finished), (0, 0, 100));
}

#[test]
fn reference_an_end_at_zero_stays_at_zero() {
    let (pool, workers) = pool_of(1);
    for _ in 0..10 {
        assert_eq!(pool.finish_worker(workers[0], 5), Err(Error::Stale));
        assert_eq!(counts(&pool), [0]);
    }
}

/// A response body, which holds its request until it is dropped.
struct Body {
    chunks: std::vec::IntoIter<u8>,
    _in_flight: InFlight<'static>,
}

impl Iterator for Body {
    type Item = u8;
    fn next(&mut self) -> Option<u8> {
        self.chunks.next()
    }
}

#[test]
fn reference_a_stream_dropped_unread_half_read_or_by_the_clients_leaving() {
    let (pool, _) = pool_of(1);
    let respond = || {
        let in_flight = pool.guard_owned(pool.dispatch(&Request::default()).unwrap());
        Body { chunks: vec![0; 10].into_iter(), _in_flight: in_flight }
    };
    drop(respond());
    assert_eq!(counts(&pool), [0]);

    let mut half_read = respond();
    assert_eq!(half_read.by_ref().take(5).count(), 5);
    assert_eq!(counts(&pool), [1]);
    drop(half_read);
    assert_eq!(counts(&pool), [0]);

    // It is counted to the end of the response, not only while there is something to read.
    let mut read = respond();
    assert_eq!(read.by_ref().count(), 10);
    assert_eq!(counts(&pool), [1]);
    drop(read);
    assert_eq!(counts(&pool), [0]);

    let (send, receive) = std::sync::mpsc::channel();
    send.send(respond()).unwrap();
    assert_eq!(counts(&pool), [1]);
    // The client is gone, with what was under way to it.
    drop(receive);
    assert_eq!(counts(&pool), [0]);
    let totals = pool.totals().unwrap();
    assert_eq!((totals.finished, totals.anomalies), (4, 0));
}
