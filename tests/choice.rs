//! Cases 18 to 28: who is chosen. Random choices are of pickers with fixed seeds.

mod common;

use common::*;
use evenkeel::{
    Error, Policy, Pool, PoolConfig, Request, Tuning, Vetoes, WorkerConfig, WorkerId, WorkerUpdate,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::collections::HashSet;
use std::thread;

const POWER_OF_TWO: [Policy; 2] = [Policy::PowerOfTwoTokens, Policy::PowerOfTwoRequests];

fn add_all(pool: &Pool, workers: u64) {
    for key in 0..workers {
        add(pool, key);
    }
}

fn capped(pool: &Pool, key: u64, max_in_flight: u32) -> WorkerId {
    pool.add(key, WorkerConfig { max_in_flight, ..WorkerConfig::default() }).unwrap()
}

#[test]
fn case_18_the_busier_of_two_gets_nothing() {
    let (pool, workers) = pool_of(2);
    let mut picker = pool.picker(18).unwrap();
    hold(&pool, workers[0], 1000);
    for policy in POWER_OF_TWO {
        let picks = tally(&workers, 10_000, || picker.pick(&by(policy)).unwrap());
        assert_eq!(picks, [0, 10_000]);
    }
}

#[test]
fn case_18_the_worst_of_three_gets_nothing() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(18);
    for worst in 0..3 {
        let (pool, workers) = pool_of(3);
        let mut picker = pool.picker(rng.next_u64()).unwrap();
        for (at, &worker) in workers.iter().enumerate() {
            hold(&pool, worker, if at == worst { 50 } else { 10 * at as u32 });
        }
        for policy in POWER_OF_TWO {
            let picks = tally(&workers, 10_000, || picker.pick(&by(policy)).unwrap());
            assert_eq!(picks[worst], 0);
        }
        // Of polled tokens too, whatever the requests.
        let tokens = |at: usize| if at == worst { 50 } else { 40 - 10 * at as u64 };
        report(&pool, &[0, 1, 2].map(|at| (workers[at], tokens(at))));
        let best = if worst == 2 { 1 } else { 2 };
        let picks = tally(&workers, 10_000, || picker.pick(&by(POWER_OF_TWO[0])).unwrap());
        assert!(picks[worst] == 0 && picks[best] > 6000, "{picks:?}");
    }
}

/// A pair that is busier than all others shows itself: one of the two is chosen only if both were
/// drawn, and if they tie, it is the first drawn. Each pair in either order has the same chance.
fn assert_pairs_equally_likely(pool: &Pool, workers: &[WorkerId], request: Request<'_>, seed: u64) {
    const PICKS: u64 = 40_000;
    let n = workers.len();
    let chance = 1.0 / (n * (n - 1)) as f64;
    let mut picker = pool.picker(seed).unwrap();
    let mut statistic = 0.0;
    let mut degrees = 0;
    for a in 0..n {
        for b in a + 1..n {
            hold(pool, workers[a], 1);
            hold(pool, workers[b], 1);
            let picks = tally(workers, PICKS as usize, || picker.pick(&request).unwrap());
            for worker in [a, b] {
                pool.finish_worker(workers[worker], 0).unwrap();
            }
            let rest = PICKS - picks[a] - picks[b];
            for (seen, chance) in
                [(picks[a], chance), (picks[b], chance), (rest, 1.0 - 2.0 * chance)]
            {
                let expected = PICKS as f64 * chance;
                statistic += (seen as f64 - expected).powi(2) / expected;
            }
            degrees += 2;
        }
    }
    assert_chi_square(statistic, degrees);
}

#[test]
fn case_19_all_pairs_are_equally_likely() {
    for policy in POWER_OF_TWO {
        for n in [3, 5, 8] {
            let (pool, workers) = pool_of(n);
            assert_pairs_equally_likely(&pool, &workers, by(policy), 19);
        }
    }
}

/// Also where some that may not be drawn stand before, between and behind them, whatever keeps
/// them out, few or many.
#[test]
fn case_19_all_pairs_among_others() {
    for n in [3, 5, 8] {
        for others in [2, 4, 2 * n] {
            let (pool, all) = pool_of(n + others);
            let (mut others, mut workers) = (Vec::new(), Vec::new());
            for (at, &worker) in all.iter().enumerate() {
                let side = if at % 2 == 0 && others.len() < all.len() - n {
                    &mut others
                } else {
                    &mut workers
                };
                side.push(worker);
            }
            others.extend(workers.drain(n..));
            workers.reverse();

            let request = by(Policy::PowerOfTwoRequests);
            let candidates = Request { candidates: Some(&workers), ..request };
            assert_pairs_equally_likely(&pool, &workers, candidates, 191);
            let excluded = Request { excluded: &others, ..request };
            assert_pairs_equally_likely(&pool, &workers, excluded, 192);
            for &other in &others {
                pool.veto(other, Vetoes::HOST, true).unwrap();
            }
            assert_pairs_equally_likely(&pool, &workers, request, 193);
        }
    }
}

/// Whoever ties for the best under least_requests is equally likely, wherever it stands.
fn assert_tied_equally_likely(pool: &Pool, tied: &[WorkerId], request: Request<'_>, seed: u64) {
    let mut picker = pool.picker(seed).unwrap();
    let times = (400 * tied.len()).max(10_000);
    assert_uniform(&tally(tied, times, || picker.pick(&request).unwrap()));
    let dispatches = tally(tied, times, || {
        let ticket = picker.dispatch(&request).unwrap();
        let worker = ticket.worker();
        pool.finish(ticket).unwrap();
        worker
    });
    assert_uniform(&dispatches);
}

#[test]
fn case_20_ties_are_uniform() {
    for n in [2, 3, 7, 100, 200] {
        let (pool, workers) = pool_of(n);
        let request = by(Policy::LeastRequests);
        assert_tied_equally_likely(&pool, &workers, request, 20);
        report(&pool, &workers.iter().map(|&worker| (worker, 5)).collect::<Vec<_>>());
        assert_tied_equally_likely(&pool, &workers, request, 21);
        pool.tune(Tuning { unreported_compete: true, ..Tuning::default() }).unwrap();
        assert_tied_equally_likely(&pool, &workers, request, 22);
    }
}

/// Two tied among five, the others worse by requests, tokens or for want of a load, or not
/// eligible: with gaps between them or none.
#[test]
fn case_20_two_tied_among_five() {
    for a in 0..5 {
        for b in a + 1..5 {
            for kind in 0..6 {
                let (pool, workers) = pool_of(5);
                let tied = [workers[a], workers[b]];
                let others = workers.iter().copied().filter(|worker| !tied.contains(worker));
                let others: Vec<_> = others.collect();
                let mut request = by(Policy::LeastRequests);
                match kind {
                    0 => others.iter().for_each(|&other| hold(&pool, other, 1)),
                    1 => {
                        let tokens = |&worker| (worker, 10 + u64::from(others.contains(&worker)));
                        report(&pool, &workers.iter().map(tokens).collect::<Vec<_>>());
                    }
                    2 => report(&pool, &tied.map(|worker| (worker, 10))),
                    3 => others.iter().for_each(|&other| pool.remove(other).unwrap()),
                    4 => request.excluded = &others,
                    _ => {
                        for &worker in &workers {
                            hold(&pool, worker, 5 + u32::from(others.contains(&worker)));
                        }
                    }
                }
                assert_tied_equally_likely(&pool, &tied, request, 20);
            }
        }
    }
}

/// A scan keeps the tied in sets of 64; those before the first of them tie too, but for something
/// worse.
#[test]
fn case_20_tied_in_several_sets_of_64() {
    for tied in [[3, 63, 64, 65, 127, 130, 199].as_slice(), &[64, 199], &[127, 128]] {
        let (pool, workers) = pool_of(200);
        let tied: Vec<_> = tied.iter().map(|&at| workers[at]).collect();
        for &worker in workers.iter().filter(|worker| !tied.contains(worker)) {
            hold(&pool, worker, 1);
        }
        assert_tied_equally_likely(&pool, &tied, by(Policy::LeastRequests), 20);
        pool.tune(Tuning { unreported_compete: true, ..Tuning::default() }).unwrap();
        assert_tied_equally_likely(&pool, &tied, by(Policy::LeastRequests), 21);
    }
}

/// Of ten workers under round_robin nobody gets above 1.2 times the mean, though something changes
/// every three picks: an eleventh comes and goes; one is replaced; one goes and comes back at the
/// next change; one is vetoed until then; the list is set again.
#[test]
fn case_21_round_robin_under_changes() {
    for kind in 0..5 {
        let pool = Pool::new(PoolConfig { capacity: 12, ..PoolConfig::default() }).unwrap();
        add_all(&pool, 10);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(21);
        let mut away = None;
        let mut picks = [0; 11];
        for round in 0..3000 {
            let key = rng.next_u64() % 10;
            match (kind, away) {
                (0, _) if round % 2 == 0 => _ = add(&pool, 10),
                (0, _) => pool.remove(pool.find(10).unwrap()).unwrap(),
                (1, _) => {
                    pool.remove(pool.find(key).unwrap()).unwrap();
                    add(&pool, key);
                }
                (2, Some(key)) => _ = add(&pool, key),
                (2, None) => pool.remove(pool.find(key).unwrap()).unwrap(),
                (3, Some(key)) => {
                    pool.veto(pool.find(key).unwrap(), Vetoes::HEALTH, false).unwrap()
                }
                (3, None) => pool.veto(pool.find(key).unwrap(), Vetoes::HEALTH, true).unwrap(),
                _ => {
                    let list: Vec<_> = (0..10).map(|at| ((at + key) % 10, None)).collect();
                    pool.set_members(&list).unwrap();
                }
            }
            away = if away.is_none() && matches!(kind, 2 | 3) { Some(key) } else { None };
            for _ in 0..3 {
                let worker = pool.pick(&by(Policy::RoundRobin)).unwrap();
                let key =
                    pool.stats().unwrap().iter().find(|stats| stats.worker == worker).unwrap().key;
                picks[key as usize] += 1;
            }
        }
        let mean = 9000 / 10;
        assert!(picks.iter().all(|&picks| picks * 10 <= mean * 12), "kind {kind}: {picks:?}");
    }
}

#[test]
fn case_21_a_new_pool_starts_anywhere() {
    let first = |seed| {
        let config = PoolConfig { capacity: 10, seed, ..PoolConfig::default() };
        let pool = Pool::new(config).unwrap();
        add_all(&pool, 10);
        pool.pick(&by(Policy::RoundRobin)).unwrap().slot()
    };
    let mut starts = [0; 10];
    (1..=5000).for_each(|seed| starts[first(seed)] += 1);
    assert_uniform(&starts);
    assert_eq!(first(7), first(7));
    // Without a seed it starts anywhere too: all of 100 in one place has a chance of 1e-99.
    assert!((0..100).map(|_| first(0)).collect::<HashSet<_>>().len() > 1);
}

/// What follows the last choice is known: the eligible workers in the order of their slots, from
/// the first beyond the last one's, round and round.
fn assert_cycles_on(pool: &Pool, last: WorkerId, eligible: &[WorkerId]) {
    let mut cycle = eligible.to_vec();
    cycle.sort_by_key(|worker| worker.slot());
    let start = cycle.partition_point(|worker| worker.slot() <= last.slot());
    cycle.rotate_left(start % eligible.len());
    for &expected in cycle.iter().cycle().take(2 * cycle.len() + 1) {
        assert_eq!(pool.pick(&by(Policy::RoundRobin)), Ok(expected));
    }
}

#[test]
fn case_22_the_cursors_worker_is_no_more() {
    for n in [3, 5, 7] {
        for at in 0..n {
            for kind in 0..6 {
                let (pool, mut workers) = pool_of(n);
                let last = workers[at];
                while pool.pick(&by(Policy::RoundRobin)) != Ok(last) {}
                match kind {
                    0 => pool.remove(workers.remove(at)).unwrap(),
                    1 => pool.veto(workers.remove(at), Vetoes::HEALTH, true).unwrap(),
                    2 => {
                        let none = WorkerUpdate { weight: Some(0), ..WorkerUpdate::default() };
                        pool.update(workers.remove(at), none).unwrap();
                    }
                    3 => {
                        pool.remove(last).unwrap();
                        workers[at] = add(&pool, 99);
                    }
                    // Beyond the last one: only those before it are left, or only the first.
                    4 => workers.drain(at.max(1)..).for_each(|gone| pool.remove(gone).unwrap()),
                    _ => {
                        hold(&pool, last, 1);
                        pool.abandon(workers.remove(at)).unwrap();
                    }
                }
                assert_cycles_on(&pool, last, &workers);
            }
        }
    }
}

/// Any changes at all.
#[test]
fn case_22_cursor_under_random_changes() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(22);
    let pool = Pool::new(PoolConfig { capacity: 20, ..PoolConfig::default() }).unwrap();
    let mut workers = vec![add(&pool, 0)];
    let mut last = pool.pick(&by(Policy::RoundRobin)).unwrap();
    for key in 1..5000 {
        let at = rng.next_u64() as usize % workers.len();
        if workers.len() == 20 || (workers.len() > 1 && rng.next_u64().is_multiple_of(2)) {
            pool.remove(workers.swap_remove(at)).unwrap();
        } else {
            workers.push(add(&pool, key));
        }
        assert_cycles_on(&pool, last, &workers);
        last = pool.pick(&by(Policy::RoundRobin)).unwrap();
    }
}

fn choices(mut pick: impl FnMut(&Request<'_>) -> Result<WorkerId, Error>) -> Vec<usize> {
    (0..32).map(|_| pick(&by(Policy::Random)).unwrap().slot()).collect()
}

/// The chance that two of them agree by accident is 64^-32 a pair.
#[test]
fn case_23_first_choices_differ() {
    let (pool, _) = pool_of(64);
    let (other, _) = pool_of(64);
    let seeded = |seed| {
        let pool = Pool::new(PoolConfig { seed, ..PoolConfig::default() }).unwrap();
        add_all(&pool, 64);
        pool
    };
    let mut all = Vec::new();
    for pool in [&pool, &other, &seeded(5), &seeded(6)] {
        all.push(choices(|request| pool.pick(request)));
        for _ in 0..2 {
            let mut picker = pool.picker(0).unwrap();
            all.push(choices(|request| picker.pick(request)));
            // A thread's own generator never comes from a seed.
            let own = || choices(|request| pool.pick(request));
            all.push(thread::scope(|scope| scope.spawn(own).join().unwrap()));
        }
    }
    for seed in [1, 2, 3, u64::MAX] {
        let mut picker = pool.picker(seed).unwrap();
        all.push(choices(|request| picker.pick(request)));
    }
    let different: HashSet<_> = all.iter().collect();
    assert_eq!(different.len(), all.len());
}

#[test]
fn case_23_with_a_seed_they_repeat() {
    for policy in Policy::ALL {
        let run = || {
            let pool = Pool::new(PoolConfig { seed: 23, ..PoolConfig::default() }).unwrap();
            add_all(&pool, 64);
            let mut pickers = [0, 0, 77].map(|seed| pool.picker(seed).unwrap());
            let chosen = |at: usize| {
                let ticket = pickers[at % 3].dispatch(&by(policy)).unwrap();
                ticket.worker().slot()
            };
            (0..300).map(chosen).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn case_24_candidates_out_of_order_with_duplicates_and_stale_ids() {
    let (pool, workers) = pool_of(5);
    let [a, b, c, d, gone] = workers[..] else { unreachable!() };
    pool.remove(gone).unwrap();
    let successor = add(&pool, 5);
    assert_eq!(successor.slot(), gone.slot());
    let mut picker = pool.picker(24).unwrap();
    let candidates = [c, gone, a, c, WorkerId::from_raw(0), c, WorkerId::from_raw(u64::MAX), gone];
    for policy in Policy::ALL {
        let mut hash = 0;
        let chosen = tally(&[a, c], 10_000, || {
            hash += 1;
            let request = Request { candidates: Some(&candidates), hash, ..by(policy) };
            let before = [a, b, c, d, successor].map(|worker| in_flight(&pool, worker));
            let ticket = picker.dispatch(&request).unwrap();
            for (worker, before) in [a, b, c, d, successor].into_iter().zip(before) {
                let own = u32::from(worker == ticket.worker());
                assert_eq!(in_flight(&pool, worker), before + own);
            }
            let worker = ticket.worker();
            pool.finish(ticket).unwrap();
            worker
        });
        // A duplicate is no second chance.
        assert_uniform(&chosen);
    }
}

/// What outsiders hold, report, weigh or cap decides nothing among the candidates.
#[test]
fn case_24_outsiders_change_nothing() {
    let run = |outsiders: bool, policy| {
        let (pool, mut workers) = pool_of(6);
        let [b, e] = [workers.remove(1), workers.remove(3)];
        for (&worker, requests) in workers.iter().zip([1, 0, 2, 1]) {
            hold(&pool, worker, requests);
        }
        if outsiders {
            let config = |weight, cap| WorkerUpdate {
                weight: Some(weight),
                max_in_flight: Some(cap),
                ..WorkerUpdate::default()
            };
            hold(&pool, b, 100_000);
            pool.update(e, config(1_000_000, 1)).unwrap();
            // The only ones with a load: least_requests would let nobody else compete.
            report(&pool, &[(b, u64::MAX - 1), (e, 0)]);
        }
        let mut picker = pool.picker(24).unwrap();
        while pool.pick(&by(Policy::RoundRobin)) != Ok(workers[0]) {}
        let by_candidates = Request { candidates: Some(&workers), ..by(policy) };
        let by_exclusion = Request { excluded: &[b, e], ..by(policy) };
        let requests = [by_candidates, by_exclusion];
        (0..400)
            .map(|at| picker.dispatch(&requests[at % 2]).unwrap().worker().slot())
            .collect::<Vec<_>>()
    };
    for policy in Policy::ALL {
        assert_eq!(run(false, policy), run(true, policy), "{policy}");
    }
}

/// However the others are kept out, and though the one that is left holds the most requests and
/// reports the most tokens.
#[test]
fn case_25_always_the_only_one_left() {
    for policy in Policy::ALL {
        for (kind, left) in (0..20).map(|at| (at % 5, [0, 31, 62, 63][at / 5])) {
            let (pool, mut others) = pool_of(64);
            let only = [others.swap_remove(left)];
            hold(&pool, only[0], 1000);
            report(&pool, &[(only[0], u64::MAX - 1), (others[0], 0), (others[20], 0)]);
            let mut request = by(policy);
            match kind {
                0 => request.excluded = &others,
                1 => request.candidates = Some(&only),
                _ => {}
            }
            for &other in &others {
                let update = match kind {
                    2 => WorkerUpdate { weight: Some(0), ..WorkerUpdate::default() },
                    3 => WorkerUpdate { max_in_flight: Some(1), ..WorkerUpdate::default() },
                    _ => WorkerUpdate::default(),
                };
                pool.update(other, update).unwrap();
                pool.veto(other, Vetoes::OPERATOR, kind == 4).unwrap();
                hold(&pool, other, 1);
            }
            let mut picker = pool.picker(25).unwrap();
            for _ in 0..50 {
                assert_eq!(picker.dispatch(&request).unwrap().worker(), only[0]);
                if kind != 3 {
                    assert_eq!(picker.pick(&request), Ok(only[0]));
                }
            }
        }
    }
}

/// A pool of the largest size, and all of it excluded but one.
#[test]
fn case_25_the_only_one_left_of_65_535() {
    let config = PoolConfig { capacity: 65_535, ..PoolConfig::default() };
    let pool = Pool::new(config).unwrap();
    pool.set_members(&(0..65_535).map(|key| (key, None)).collect::<Vec<_>>()).unwrap();
    assert_eq!(pool.add(65_535, WorkerConfig::default()), Err(Error::Full { capacity: 65_535 }));
    let workers: Vec<_> = pool.stats().unwrap().iter().map(|stats| stats.worker).collect();
    let mut picker = pool.picker(25).unwrap();
    for left in [0, 1023, 1024, 65_534] {
        let mut others = workers.clone();
        let worker = others.swap_remove(left);
        for policy in Policy::ALL {
            let request = Request { excluded: &others, ..by(policy) };
            assert_eq!(picker.dispatch(&request).unwrap().worker(), worker);
            let request = Request { candidates: Some(&[worker]), ..by(policy) };
            assert_eq!(picker.pick(&request), Ok(worker));
        }
    }
}

#[test]
fn case_25_two_vetoes_and_one_lifted() {
    let (pool, workers) = pool_of(2);
    let [vetoed, other] = workers[..] else { unreachable!() };
    let mut picker = pool.picker(25).unwrap();
    pool.veto(vetoed, Vetoes::HOST | Vetoes::HEALTH, true).unwrap();
    let mut picks = |vetoes, on, policy| {
        pool.veto(vetoed, vetoes, on).unwrap();
        tally(&workers, 100, || picker.pick(&by(policy)).unwrap())
    };
    for policy in Policy::ALL {
        assert_eq!(picks(Vetoes::HOST, true, policy), [0, 100]);
        assert_eq!(picks(Vetoes::HOST, false, policy), [0, 100]);
        // Lifting what isn't there, or setting one twice, counts nothing up or down.
        assert_eq!(picks(Vetoes::OPERATOR, false, policy), [0, 100]);
        assert_eq!(picks(Vetoes::HEALTH, true, policy), [0, 100]);
        assert!(picks(Vetoes::HEALTH, false, policy)[0] > 0);
        assert_eq!(picks(Vetoes::HEALTH, true, policy), [0, 100]);
        // Other changes leave vetoes as they are.
        let update = WorkerUpdate { weight: Some(1), ..WorkerUpdate::default() };
        pool.update(vetoed, update).unwrap();
        assert_eq!(picks(Vetoes::NONE, true, policy), [0, 100]);
    }
    assert_eq!(stats_of(&pool, other).unwrap().vetoes, Vetoes::NONE);
}

#[test]
fn case_26_nobody_to_choose() {
    let (pool, workers) = pool_of(3);
    let [a, b, gone] = workers[..] else { unreachable!() };
    pool.remove(gone).unwrap();
    let (none, _) = pool_of(0);
    let assert_empty = |pool: &Pool, request: Request<'_>| {
        assert_eq!(pool.pick(&request), Err(Error::Empty));
        assert_eq!(pool.dispatch(&request), Err(Error::Empty));
        let mut picker = pool.picker(26).unwrap();
        assert_eq!(picker.pick(&request), Err(Error::Empty));
        assert_eq!(picker.dispatch(&request), Err(Error::Empty));
    };
    let last = pool.pick(&by(Policy::RoundRobin)).unwrap();
    let other = if last == a { b } else { a };
    for policy in Policy::ALL {
        let request = by(policy);
        assert_empty(&none, request);
        assert_empty(&pool, Request { candidates: Some(&[]), ..request });
        assert_empty(&pool, Request { candidates: Some(&[gone, gone]), ..request });
        assert_empty(&pool, Request { excluded: &[b, a, b], ..request });
        assert_empty(&pool, Request { excluded: &[gone, b, gone, gone, gone, a], ..request });
        assert_empty(&pool, Request { candidates: Some(&[a]), excluded: &[a], ..request });
    }
    for (worker, veto) in [(a, Vetoes::HOST), (b, Vetoes::OPERATOR)] {
        pool.veto(worker, veto, true).unwrap();
    }
    for policy in Policy::ALL {
        assert_empty(&pool, by(policy));
    }
    for (worker, veto) in [(a, Vetoes::HOST), (b, Vetoes::OPERATOR)] {
        pool.veto(worker, veto, false).unwrap();
    }
    // No count moved, and not the cursor either.
    assert_eq!((counts(&pool), pool.totals().unwrap().saturated), (vec![0, 0], 0));
    assert_eq!(pool.pick(&by(Policy::RoundRobin)), Ok(other));
}

/// Saturated is who would be eligible but for the cap, nobody else; picks are not bound by caps.
#[test]
fn case_26_all_at_their_caps() {
    let (pool, _) = pool_of(0);
    let [a, b, vetoed] = [0, 1, 2].map(|key| capped(&pool, key, 2));
    for worker in [a, b, vetoed] {
        hold(&pool, worker, 2);
    }
    pool.veto(vetoed, Vetoes::HOST, true).unwrap();
    let mut refused = 0;
    for policy in Policy::ALL {
        let request = by(policy);
        for request in [
            request,
            Request { excluded: &[a], ..request },
            Request { candidates: Some(&[b, vetoed]), ..request },
        ] {
            assert_eq!(pool.dispatch(&request), Err(Error::Saturated));
            assert!(pool.pick(&request).is_ok());
            refused += 1;
        }
        assert_eq!(pool.begin(a, 0), Err(Error::Saturated));
        for request in [
            Request { excluded: &[a, b], ..request },
            Request { candidates: Some(&[vetoed]), ..request },
        ] {
            assert_eq!(pool.dispatch(&request), Err(Error::Empty));
        }
    }
    assert_eq!((counts(&pool), pool.totals().unwrap().saturated), (vec![2, 2, 2], refused));
}

#[test]
fn case_26_a_lowered_cap_waits_for_the_requests() {
    let (pool, workers) = pool_of(1);
    let cap = |cap| WorkerUpdate { max_in_flight: Some(cap), ..WorkerUpdate::default() };
    hold(&pool, workers[0], 5);
    pool.update(workers[0], cap(3)).unwrap();
    for in_flight in (3..=5).rev() {
        assert_eq!(counts(&pool), [in_flight]);
        assert_eq!(pool.dispatch(&Request::default()), Err(Error::Saturated));
        pool.finish_worker(workers[0], 0).unwrap();
    }
    assert!(pool.dispatch(&Request::default()).is_ok());
    assert_eq!(pool.dispatch(&Request::default()), Err(Error::Saturated));
    pool.update(workers[0], cap(0)).unwrap();
    assert!(pool.dispatch(&Request::default()).is_ok());
}

fn weighted(pool: &Pool, weights: &[u32]) -> Vec<WorkerId> {
    let add = |(key, &weight): (u64, &u32)| {
        pool.add(key, WorkerConfig { weight, ..WorkerConfig::default() }).unwrap()
    };
    (0..).zip(weights).map(add).collect()
}

/// Arrivals only: of all arrivals so far nobody lacks a whole request of its share, and whenever
/// shares are whole, everybody has just that.
#[test]
fn case_27_weights_share_arrivals() {
    for weights in [[3, 1].as_slice(), &[1, 2, 3, 4], &[70, 7, 0, 1]] {
        let (pool, _) = pool_of(0);
        weighted(&pool, weights);
        let mut picker = pool.picker(27).unwrap();
        let sum: u32 = weights.iter().sum();
        for arrived in 1..=4000 {
            let _ = picker.dispatch(&by(Policy::LeastRequests)).unwrap();
            for (count, &weight) in counts(&pool).into_iter().zip(weights) {
                assert!((count + 1) * sum > arrived * weight, "{:?}", counts(&pool));
                assert!(arrived % sum != 0 || count == arrived / sum * weight);
            }
        }
    }
    let (pool, _) = pool_of(0);
    weighted(&pool, &[3, 1]);
    (0..4000).for_each(|_| drop(pool.dispatch(&Request::default()).unwrap()));
    assert_eq!(counts(&pool), [3000, 1000]);
}

/// The small one gets its one of 1,000,001, and no arithmetic wraps on the way.
#[test]
fn case_27_weights_1_and_1_000_000() {
    let (pool, _) = pool_of(0);
    weighted(&pool, &[1, 1_000_000]);
    let mut picker = pool.picker(27).unwrap();
    for _ in 0..999_999 {
        let _ = picker.dispatch(&by(Policy::LeastRequests)).unwrap();
    }
    assert_eq!(counts(&pool), [0, 999_999]);
    for _ in 0..2 {
        let _ = picker.dispatch(&by(Policy::LeastRequests)).unwrap();
    }
    assert_eq!(counts(&pool), [1, 1_000_000]);
    // The largest of everything, weighed against the least.
    report(
        &pool,
        &pool.stats().unwrap().iter().map(|one| (one.worker, u64::MAX - 1)).collect::<Vec<_>>(),
    );
    for policy in POWER_OF_TWO {
        assert_eq!(picker.pick(&by(policy)).unwrap().slot(), 1);
    }
}

#[test]
fn case_27_all_weights_zero() {
    let (pool, _) = pool_of(0);
    let workers = weighted(&pool, &[0, 0]);
    for policy in Policy::ALL {
        assert_eq!(pool.pick(&by(policy)), Err(Error::Empty));
        assert_eq!(pool.dispatch(&by(policy)), Err(Error::Empty));
    }
    // Chosen elsewhere, a request may still begin there: only the cap binds it.
    hold(&pool, workers[0], 1);
    assert_eq!(counts(&pool), [1, 0]);
}

#[test]
fn case_27_a_bad_weight_changes_nothing_and_stops_nothing() {
    let (pool, workers) = pool_of(2);
    let before = pool.stats();
    let update = |weight| WorkerUpdate { weight: Some(weight), ..WorkerUpdate::default() };
    let bad = WorkerConfig { weight: 1_000_001, label: "x:1", ..WorkerConfig::default() };
    for weight in [1_000_001, u32::MAX] {
        assert!(matches!(pool.update(workers[0], update(weight)), Err(Error::Invalid(_))));
    }
    assert!(matches!(pool.add(9, bad), Err(Error::Invalid(_))));
    assert!(matches!(pool.ensure(0, bad), Err(Error::Invalid(_))));
    assert!(matches!(pool.set_members(&[(0, None), (1, Some(bad))]), Err(Error::Invalid(_))));
    assert_eq!(pool.stats(), before);

    pool.update(workers[1], update(1_000_000)).unwrap();
    pool.update(workers[0], update(0)).unwrap();
    assert_eq!(
        pool.stats().unwrap().iter().map(|one| one.weight).collect::<Vec<_>>(),
        [0, 1_000_000]
    );
    assert_eq!(pool.pick(&Request::default()), Ok(workers[1]));
}

/// Saturated means that nobody is below the cap. Here one is, who has no room for the tokens.
#[test]
fn case_48_no_room_beside_a_full_one() {
    for policy in Policy::ALL {
        let (pool, workers) = pool_of(2);
        let cap = WorkerUpdate { max_in_flight: Some(2), ..WorkerUpdate::default() };
        for &worker in &workers {
            pool.update(worker, cap).unwrap();
        }
        hold(&pool, workers[0], 2);
        let _heavy = pool.begin(workers[1], u32::MAX).unwrap();
        let refused = pool.dispatch(&Request { tokens: 1, ..by(policy) });
        assert_eq!((refused, pool.totals().unwrap().saturated), (Err(Error::Overflow), 0));
        let _light = pool.dispatch(&by(policy)).unwrap();
        let refused = pool.dispatch(&Request { tokens: 1, ..by(policy) });
        assert_eq!((refused, pool.totals().unwrap().saturated), (Err(Error::Saturated), 1));
    }
}

#[test]
fn case_28_policy_numbers() {
    for number in [0, 9, 9999, u32::MAX, 1 << 8 | 1, 1 << 16 | 1] {
        assert_eq!(Policy::from_number(number), None);
    }
    assert_eq!([1, 2, 3, 4, 5, 6, 7, 8].map(Policy::from_number), Policy::ALL.map(Some));
}

#[test]
fn case_28_policy_names() {
    for name in [
        "",
        " ",
        "least-requests",
        " Least_Requests",
        "least_requests ",
        "Least_Requests",
        "LEAST_REQUESTS",
        "least_requests\0",
        "least_request",
        "least_requests:tokens",
        "roundrobin",
        "power_of_two:",
        "power_of_two:token",
        "power_of_two: tokens",
        "power_of_two:least_requests",
        "tokens",
        "requests",
        "5",
        "default",
        "ｒandom",
    ] {
        let error = name.parse::<Policy>().expect_err(name);
        assert!(matches!(error, Error::Invalid(_)));
        // It says what it got and what it takes.
        let message = error.to_string();
        assert!(message.contains(&format!("{name:?}")), "{message}");
        assert!(Policy::ALL.iter().all(|policy| message.contains(policy.name())), "{message}");
    }
}
