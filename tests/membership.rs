//! Cases 10 to 17 and 46: who is who, while workers come, go and come back.

mod common;

use common::*;
use evenkeel::{
    Error, Load, Policy, Pool, PoolConfig, Request, Ticket, Vetoes, WorkerConfig, WorkerId,
    WorkerState, WorkerUpdate,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const FRESH: WorkerConfig<'_> =
    WorkerConfig { weight: 1, max_in_flight: 0, vetoes: Vetoes::NONE, fresh: true, label: "" };

fn small_pool(capacity: u32) -> Pool {
    Pool::new(PoolConfig { capacity, ..PoolConfig::default() }).unwrap()
}

fn anomalies(pool: &Pool) -> u64 {
    pool.totals().unwrap().anomalies
}

fn stale(ended: Result<(), evenkeel::Stale>) -> Ticket {
    ended.expect_err("stale").ticket
}

#[test]
fn case_10_fresh_worker_counts_from_zero() {
    let pool = small_pool(2);
    let old = add(&pool, 7);
    let first = pool.begin(old, 100).unwrap();
    pool.remove(old).unwrap();
    let new = pool.add(7, FRESH).unwrap();
    assert_ne!(old, new);
    let second = pool.dispatch(&Request { tokens: 5, ..Request::default() }).unwrap();
    assert_eq!(second.worker(), new);
    assert_eq!((in_flight(&pool, old), in_flight(&pool, new)), (1, 1));
    pool.finish(first).unwrap();
    assert_eq!((in_flight(&pool, new), stats_of(&pool, old)), (1, None));
    assert_eq!(stats_of(&pool, new).unwrap().tokens, 5);
    pool.finish(second).unwrap();
    assert_eq!((in_flight(&pool, new), anomalies(&pool)), (0, 0));
}

/// Each of 70,000 workers after it in its slot is out of an old ticket's reach, though its tag
/// comes round 34 times, and whether the key is the same or another.
#[test]
fn case_10_old_ticket_reaches_no_successor_in_70_000_cycles() {
    let pool = small_pool(1);
    let old = add(&pool, 0);
    let mut ticket = pool.begin(old, 10).unwrap();
    pool.abandon(old).unwrap();
    for cycle in 0..70_000 {
        let new = pool.add(if cycle % 2 == 0 { 0 } else { cycle }, FRESH).unwrap();
        assert!(new.slot() == old.slot() && new != old);
        let own = pool.dispatch(&Request { tokens: 10, ..Request::default() }).unwrap();
        ticket = stale(pool.finish(ticket));
        assert_eq!(pool.grow(&mut ticket, 1), Err(Error::Stale));
        for target in [new, old] {
            assert_eq!(pool.retarget(&mut ticket, target), Err(Error::Stale));
        }
        assert_eq!(pool.finish_worker(old, 10), Err(Error::Stale));
        assert_eq!(pool.begin(old, 10), Err(Error::Unknown { worker: old }));
        if cycle % 64 == 0 {
            let stats = stats_of(&pool, new).unwrap();
            assert_eq!((stats.in_flight, stats.tokens, stats.finished), (1, 10, 0));
        }
        pool.finish(own).unwrap();
        pool.remove(new).unwrap();
    }
    assert_eq!((ticket.worker(), ticket.tokens()), (old, 10));
    let totals = pool.totals().unwrap();
    assert_eq!((totals.in_flight, totals.finished, totals.abandoned), (0, 70_000, 1));
    assert_eq!(totals.anomalies, 5 * 70_000);
}

/// Choices race with the reuse of the very slots that they choose. (The pause of a picker between
/// choice and exchange over a whole round of the tag can't be forced from here: model R4.)
#[test]
fn case_10_dispatch_beside_reuse_counts_on_its_own_worker() {
    let pool = small_pool(2);
    add(&pool, 0);
    let (done, line) = (AtomicBool::new(false), StartingLine::new(Policy::ALL.len() + 1));
    thread::scope(|scope| {
        let dispatchers = Policy::ALL.map(|policy| {
            let (pool, done, line) = (&pool, &done, &line);
            scope.spawn(move || {
                let mut picker = pool.picker(0).unwrap();
                let mut ended = 0;
                line.wait();
                while !done.load(Ordering::Relaxed) {
                    let ticket = picker.dispatch(&by(policy)).expect("worker 0 stays");
                    pool.finish(ticket).expect("its worker drains");
                    ended += 1;
                }
                ended
            })
        });
        let until = Until(&done);
        line.wait();
        for key in 1..=20_000 {
            // Full while the last one still drains.
            let worker = loop {
                match pool.add(key, FRESH) {
                    Ok(worker) => break worker,
                    Err(error) => assert_eq!(error, Error::Full { capacity: 2 }),
                }
                assert!(!dispatchers.iter().any(|thread| thread.is_finished()));
            };
            pool.remove(worker).unwrap();
        }
        drop(until);
        let ended: u64 = dispatchers.map(|thread| thread.join().unwrap()).iter().sum();
        let totals = pool.totals().unwrap();
        assert_eq!((totals.finished, totals.in_flight, totals.anomalies), (ended, 0, 0));
    });
}

#[test]
fn case_11_revived_worker_keeps_its_requests() {
    let pool = small_pool(2);
    let old = WorkerConfig { weight: 3, max_in_flight: 9, label: "a:1", ..Default::default() };
    let worker = pool.add(7, old).unwrap();
    report(&pool, &[(worker, 50)]);
    let first = pool.begin(worker, 100).unwrap();
    pool.remove(worker).unwrap();

    let new =
        WorkerConfig { weight: 2, vetoes: Vetoes::HEALTH, label: "b:2", ..Default::default() };
    assert_eq!(pool.add(7, new), Ok(worker));
    let stats = stats_of(&pool, worker).unwrap();
    assert_eq!((stats.state, stats.in_flight, stats.tokens), (WorkerState::Active, 1, 100));
    assert_eq!((stats.weight, stats.max_in_flight, stats.vetoes), (2, 0, Vetoes::HEALTH));
    assert_eq!((&*stats.label, stats.load), ("b:2", None));

    pool.veto(worker, Vetoes::HEALTH, false).unwrap();
    let second = pool.dispatch(&Request::default()).unwrap();
    assert_eq!((second.worker(), in_flight(&pool, worker)), (worker, 2));
    pool.finish(first).unwrap();
    pool.finish(second).unwrap();
    assert_eq!((in_flight(&pool, worker), anomalies(&pool)), (0, 0));
    assert_eq!(pool.finish_worker(worker, 0), Err(Error::Stale));
    assert_eq!(in_flight(&pool, worker), 0);
}

/// The last request ends while its worker is added again: either it is revived or new, and either
/// way it ends at 0.
#[test]
fn case_11_revival_beside_the_last_finish() {
    let pool = small_pool(1);
    let mut worker = add(&pool, 7);
    let mut revived = 0;
    for _ in 0..3000 {
        let ticket = pool.begin(worker, 3).unwrap();
        pool.remove(worker).unwrap();
        let again = thread::scope(|scope| {
            scope.spawn(|| pool.finish(ticket).unwrap());
            add(&pool, 7)
        });
        revived += u32::from(again == worker);
        worker = again;
        let stats = stats_of(&pool, worker).unwrap();
        assert_eq!((stats.in_flight, stats.tokens), (0, 0));
    }
    assert!(revived > 0);
    assert_eq!((anomalies(&pool), pool.totals().unwrap().finished), (0, 3000));
}

/// By whichever way it comes back; `fresh` is new by each of them.
#[test]
fn case_11_every_way_back() {
    let add = |pool: &Pool, config| pool.add(7, config).unwrap();
    let ensure = |pool: &Pool, config| pool.ensure(7, config).unwrap();
    let set_members = |pool: &Pool, config| {
        pool.set_members(&[(7, Some(config))]).unwrap();
        pool.find(7).unwrap()
    };
    for way in [add, ensure, set_members] {
        let (pool, _) = pool_of(0);
        let worker = way(&pool, WorkerConfig::default());
        hold(&pool, worker, 1);
        pool.remove(worker).unwrap();
        assert_eq!(way(&pool, WorkerConfig::default()), worker);
        assert_eq!(counts(&pool), [1]);
        pool.remove(worker).unwrap();
        let fresh = way(&pool, FRESH);
        assert!(fresh != worker && in_flight(&pool, fresh) == 0 && in_flight(&pool, worker) == 1);
        // Without a request left there is nothing to come back to.
        pool.remove(fresh).unwrap();
        pool.finish_worker(worker, 0).unwrap();
        let new = way(&pool, WorkerConfig::default());
        assert!(new != worker && new != fresh);
    }
}

/// Of several draining workers of a key the last one comes back.
#[test]
fn case_11_revives_the_latest_of_a_key() {
    let pool = small_pool(8);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let worker = pool.add(7, FRESH).unwrap();
            hold(&pool, worker, 1);
            pool.remove(worker).unwrap();
            worker
        })
        .collect();
    pool.finish_worker(workers[3], 0).unwrap();
    assert_eq!(pool.add(7, WorkerConfig::default()), Ok(workers[2]));
    assert_eq!(pool.totals().unwrap().draining, 2);
}

#[test]
fn case_12_begin_on_what_was_picked_and_then_replaced() {
    let (pool, workers) = pool_of(3);
    let [a, b, c] = workers[..] else { unreachable!() };
    let request = Request { candidates: Some(&[b]), ..Request::default() };
    assert_eq!(pool.pick(&request), Ok(b));
    pool.remove(b).unwrap();
    let d = add(&pool, 3);
    assert_eq!(d.slot(), b.slot());

    let unknown = Error::Unknown { worker: b };
    assert_eq!(pool.begin(b, 5), Err(unknown.clone()));
    assert_eq!(pool.dispatch(&request), Err(Error::Empty));
    let mut ticket = pool.begin(a, 5).unwrap();
    assert_eq!(pool.retarget(&mut ticket, b), Err(unknown));
    assert_eq!(ticket.worker(), a);
    pool.finish(ticket).unwrap();
    assert_eq!([a, d, c].map(|worker| in_flight(&pool, worker)), [0, 0, 0]);
    assert_eq!(anomalies(&pool), 0);
}

/// Nothing that was meant for a worker that is gone, or draining, reaches one that is active.
#[test]
fn case_12_old_ids_change_nothing() {
    let pool = small_pool(2);
    let gone = add(&pool, 0);
    pool.remove(gone).unwrap();
    let new = add(&pool, 1);
    assert_eq!(new.slot(), gone.slot());
    let draining = add(&pool, 2);
    hold(&pool, draining, 1);
    pool.remove(draining).unwrap();
    let before = stats_of(&pool, new);

    for old in [gone, draining] {
        let unknown = Err(Error::Unknown { worker: old });
        let update = WorkerUpdate { weight: Some(9), ..WorkerUpdate::default() };
        assert_eq!(pool.update(old, update), unknown);
        assert_eq!(pool.veto(old, Vetoes::HOST, true), unknown);
        assert_eq!(pool.remove(old), unknown);
        assert_eq!(pool.publish(&[load(old, 5)]), Ok(1));
        assert_eq!(pool.begin(old, 0).map(drop), unknown);
    }
    assert_eq!(pool.abandon(gone), Err(Error::Unknown { worker: gone }));
    assert_eq!(pool.find(0), Err(Error::UnknownKey { key: 0 }));
    assert_eq!(pool.find(2), Err(Error::UnknownKey { key: 2 }));
    assert_eq!(stats_of(&pool, new), before);
}

#[test]
fn case_13_a_key_added_twice_has_one_share() {
    let (pool, workers) = pool_of(2);
    let config = WorkerConfig { weight: 5, ..WorkerConfig::default() };
    assert_eq!(pool.add(0, config), Err(Error::Exists { key: 0 }));
    assert_eq!(pool.add(0, FRESH), Err(Error::Exists { key: 0 }));
    let stats = pool.stats().unwrap();
    assert_eq!((stats.len(), stats[0].weight), (2, 1));
    let mut picker = pool.picker(13).unwrap();
    assert_uniform(&tally(&workers, 10_000, || picker.pick(&by(Policy::Random)).unwrap()));

    assert_eq!(pool.ensure(0, None), Ok(workers[0]));
    assert_eq!(stats_of(&pool, workers[0]), Some(stats[0]));
    let config = WorkerConfig {
        weight: 5,
        max_in_flight: 3,
        label: "a:1",
        vetoes: Vetoes::HOST,
        fresh: true,
    };
    for _ in 0..2 {
        assert_eq!(pool.ensure(0, config), Ok(workers[0]));
        let stats = stats_of(&pool, workers[0]).unwrap();
        assert_eq!((stats.weight, stats.max_in_flight, &*stats.label), (5, 3, "a:1"));
        assert_eq!(stats.vetoes, Vetoes::NONE, "set on adding alone");
    }
    let added = pool.ensure(9, config).unwrap();
    assert_eq!(stats_of(&pool, added).unwrap().vetoes, Vetoes::HOST);
    assert_eq!(pool.find(9), Ok(added));
}

#[test]
fn case_13_threads_that_add_one_key_get_one_worker() {
    let pool = small_pool(16);
    for key in 0..500 {
        let results: Vec<_> = thread::scope(|scope| {
            let adding = [(); 4].map(|()| scope.spawn(|| pool.add(key, WorkerConfig::default())));
            adding.map(|thread| thread.join().unwrap()).into()
        });
        let added: Vec<_> = results.iter().flatten().collect();
        assert_eq!(added.len(), 1);
        assert_eq!(pool.find(key).as_ref(), Ok(added[0]));
        assert_eq!(pool.totals().unwrap().workers, 1);
        pool.remove(*added[0]).unwrap();
    }
}

/// No dispatch succeeds on a worker once `remove` has returned, wherever the dispatch began.
#[test]
fn case_13_nothing_lands_after_remove_returned() {
    let pool = small_pool(64);
    add(&pool, 0);
    let (done, line) = (AtomicBool::new(false), StartingLine::new(Policy::ALL.len() + 1));
    let removed = AtomicU64::new(0);
    thread::scope(|scope| {
        let dispatchers = Policy::ALL.map(|policy| {
            let (pool, done, line, removed) = (&pool, &done, &line, &removed);
            scope.spawn(move || {
                line.wait();
                while !done.load(Ordering::Relaxed) {
                    let gone = removed.load(Ordering::Acquire);
                    let ticket = pool.dispatch(&by(policy)).expect("worker 0 stays");
                    assert_ne!(ticket.worker().raw(), gone);
                    pool.finish(ticket).unwrap();
                }
            })
        });
        let _until = Until(&done);
        line.wait();
        for key in 1..=4000 {
            let worker = pool.add(key, FRESH).unwrap();
            if key % 64 == 0 {
                thread::yield_now();
            }
            pool.remove(worker).unwrap();
            removed.store(worker.raw(), Ordering::Release);
            // From here on its requests only become fewer.
            let mut last = u32::MAX;
            while let Some(stats) = stats_of(&pool, worker) {
                assert!(stats.in_flight <= last && stats.state == WorkerState::Draining);
                assert!(!dispatchers.iter().any(|thread| thread.is_finished()));
                last = stats.in_flight;
            }
        }
    });
    assert_eq!((counts(&pool), anomalies(&pool)), (vec![0], 0));
}

#[test]
fn case_14_new_keys_reuse_slots() {
    let pool = small_pool(4);
    let stay = add(&pool, u64::MAX);
    let before = heap();
    for key in 0..100_000 {
        let worker = add(&pool, key);
        assert_eq!(worker.slot(), 1);
        if key % 3 == 0 {
            pool.finish(pool.dispatch(&by(Policy::RoundRobin)).unwrap()).unwrap();
        }
        pool.remove(worker).unwrap();
    }
    assert_eq!(heap(), before);
    assert_eq!(pool.find(u64::MAX), Ok(stay));
    assert_eq!(pool.totals().unwrap().workers, 1);
}

#[test]
fn case_14_between_no_worker_and_one() {
    let pool = small_pool(1);
    let before = heap();
    for round in 0..100_000 {
        let worker = match round % 2 {
            0 => pool.ensure(7, None).unwrap(),
            _ => {
                pool.set_members(&[(7, None)]).unwrap();
                pool.find(7).unwrap()
            }
        };
        assert_eq!(pool.pick(&Request::default()), Ok(worker));
        match round % 3 {
            0 => pool.set_members(&[]).unwrap(),
            1 => pool.remove(worker).unwrap(),
            _ => pool.abandon(worker).unwrap(),
        }
        assert_eq!(pool.pick(&Request::default()), Err(Error::Empty));
    }
    assert_eq!(heap(), before);
    let totals = pool.totals().unwrap();
    assert_eq!((totals.workers, totals.draining, totals.abandoned), (0, 0, 0));
}

/// `empty` is odd while there may be no worker: a choice that begins and ends at one even number
/// overlapped no such moment.
#[test]
fn case_15_empty_only_when_there_was_no_worker() {
    let pool = small_pool(4);
    let empty = AtomicU64::new(1);
    let (done, line) = (AtomicBool::new(false), StartingLine::new(5));
    thread::scope(|scope| {
        let choosing = [0, 1, 2, 3].map(|thread| {
            let (pool, empty, done, line) = (&pool, &empty, &done, &line);
            scope.spawn(move || {
                line.wait();
                let mut round = thread;
                while !done.load(Ordering::Relaxed) {
                    round += 1;
                    let request = by(Policy::ALL[round % 5]);
                    let before = empty.load(Ordering::SeqCst);
                    let chosen = match thread % 2 {
                        0 => pool.pick(&request).map(drop),
                        _ => pool.dispatch(&request).map(|ticket| pool.finish(ticket).unwrap()),
                    };
                    let after = empty.load(Ordering::SeqCst);
                    if let Err(error) = chosen {
                        assert_eq!(error, Error::Empty);
                        assert!(before % 2 == 1 || before != after, "there was a worker");
                    }
                }
            })
        });
        let _until = Until(&done);
        line.wait();
        for round in 0..10_000 {
            // From none to two and back, by way of the first, of the second, or of a third that
            // takes the place of both in one change.
            let first = add(&pool, round);
            empty.fetch_add(1, Ordering::SeqCst);
            let second = add(&pool, round + 1);
            match round % 3 {
                0 => pool.remove(first).unwrap(),
                1 => pool.remove(second).unwrap(),
                _ => pool.set_members(&[(round + 2, None)]).unwrap(),
            }
            if round % 64 == 0 {
                thread::yield_now();
            }
            empty.fetch_add(1, Ordering::SeqCst);
            pool.set_members(&[]).unwrap();
            // Whatever still drains makes room.
            while pool.totals().unwrap().draining > 1 {
                assert!(!choosing.iter().any(|thread| thread.is_finished()));
                thread::yield_now();
            }
        }
    });
    assert_eq!((counts(&pool), anomalies(&pool)), (vec![], 0));
}

/// A monitor sets and lifts its veto at each poll.
#[test]
fn a_veto_that_changes_nothing_writes_no_view() {
    let (pool, workers) = pool_of(2);
    let version = || pool.totals().unwrap().version;
    let start = version();
    pool.veto(workers[0], Vetoes::HEALTH, false).unwrap();
    assert_eq!(version(), start);
    pool.veto(workers[0], Vetoes::HEALTH, true).unwrap();
    let vetoed = version();
    assert!(vetoed > start);
    pool.veto(workers[0], Vetoes::HEALTH, true).unwrap();
    assert_eq!(version(), vetoed);
    assert_eq!(pool.pick(&by(Policy::LeastRequests)), Ok(workers[1]));
}

/// Round_robin choices, one for each worker, from wherever the cursor is.
fn round(pool: &Pool, workers: usize) -> Vec<WorkerId> {
    (0..workers).map(|_| pool.pick(&by(Policy::RoundRobin)).unwrap()).collect()
}

#[test]
fn case_16_set_members_with_the_same_list() {
    let (pool, workers) = pool_of(5);
    for (worker, requests) in workers.iter().zip(0..) {
        hold(&pool, *worker, requests);
    }
    pool.veto(workers[4], Vetoes::OPERATOR, true).unwrap();
    report(&pool, &[(workers[1], 10), (workers[2], 20)]);
    let mut poll = pool.poll(Some(&workers[1..2]));
    poll.begin().unwrap();
    let cycle = round(&pool, 4);

    let ageless = |pool: &Pool| {
        let mut stats = pool.stats().unwrap();
        stats.iter_mut().filter_map(|stats| stats.load.as_mut()).for_each(|load| load.age_ms = 0);
        stats
    };
    let before = (ageless(&pool), pool.totals().unwrap());
    let same: [(u64, Option<WorkerConfig<'_>>); 5] =
        [(3, None), (0, Some(WorkerConfig::default())), (4, None), (2, None), (1, None)];
    for _ in 0..3 {
        pool.set_members(&same).unwrap();
        assert_eq!((ageless(&pool), pool.totals().unwrap()), before);
    }
    assert_eq!(round(&pool, 4), cycle);
    assert_eq!(poll.publish(&[load(workers[1], 30)]), Ok(0));
}

#[test]
fn case_16_set_members_with_one_key_replaced() {
    let (pool, workers) = pool_of(5);
    for &worker in &workers {
        hold(&pool, worker, 2);
    }
    report(&pool, &workers.iter().map(|&worker| (worker, 10)).collect::<Vec<_>>());
    while pool.pick(&by(Policy::RoundRobin)) != Ok(workers[3]) {}
    let before = pool.stats().unwrap();
    let version = pool.totals().unwrap().version;

    pool.set_members(&[(9, None), (4, None), (0, None), (1, None), (3, None)]).unwrap();
    let new = pool.find(9).unwrap();
    assert_eq!(pool.totals().unwrap().version, version + 1);
    for kept in [0, 1, 3, 4] {
        let after = stats_of(&pool, workers[kept]).unwrap();
        assert_eq!((after.worker, after.state), (workers[kept], WorkerState::Active));
        assert_eq!(after.load.unwrap().tokens, 10);
        assert_eq!(
            (after.in_flight, after.tokens, after.live_tokens),
            (before[kept].in_flight, before[kept].tokens, before[kept].live_tokens)
        );
    }
    assert_eq!(stats_of(&pool, workers[2]).unwrap().state, WorkerState::Draining);
    assert_eq!(round(&pool, 5), [4, 5, 0, 1, 3].map(|at| *workers.get(at).unwrap_or(&new)));
}

#[test]
fn case_16_set_members_that_fails_changes_nothing() {
    let pool = small_pool(4);
    let workers = [0, 1, 2].map(|key| add(&pool, key));
    hold(&pool, workers[2], 1);
    let before = (pool.stats(), pool.totals());
    let bad = |config| (9, Some(config));
    let heavy = bad(WorkerConfig { weight: 1_000_001, ..WorkerConfig::default() });
    let wide = bad(WorkerConfig { max_in_flight: 1 << 20, ..WorkerConfig::default() });
    for members in [
        [(5, None), (1, None), heavy].as_slice(),
        &[(5, None), wide],
        &[(0, None), (5, None), (0, None)],
        // One would fit, but not both, though two others would leave: their slots aren't vacant yet.
        &[(0, None), (8, None), (9, None)],
    ] {
        assert!(matches!(
            pool.set_members(members),
            Err(Error::Invalid(_) | Error::Full { capacity: 4 })
        ));
        assert_eq!((pool.stats(), pool.totals()), before);
    }
}

#[test]
fn case_16_abandon_frees_the_slot_of_forgotten_tickets() {
    let pool = small_pool(2);
    for draining in [false, true] {
        let worker = add(&pool, 7);
        let tickets: Vec<_> = (0..3).map(|_| pool.begin(worker, 10).unwrap()).collect();
        if draining {
            pool.remove(worker).unwrap();
        }
        let before = pool.totals().unwrap();
        pool.abandon(worker).unwrap();
        assert_eq!(stats_of(&pool, worker), None);
        assert_eq!(pool.abandon(worker), Err(Error::Unknown { worker }));
        let after = pool.totals().unwrap();
        assert_eq!((after.abandoned, after.in_flight), (before.abandoned + 3, 0));

        let [first, second, third] = tickets.try_into().unwrap();
        assert_eq!(stale(pool.finish(first)).worker(), worker);
        let next = add(&pool, 7);
        assert!(next.slot() == worker.slot() && next != worker);
        hold(&pool, next, 1);
        drop(pool.guard(second));
        assert_eq!(stale(pool.finish(third)).worker(), worker);
        assert_eq!(in_flight(&pool, next), 1);
        let late = pool.totals().unwrap();
        assert_eq!((late.anomalies, late.finished), (before.anomalies + 3, before.finished));
        pool.finish_worker(next, 0).unwrap();
        pool.remove(next).unwrap();
    }
}

#[test]
fn case_17_removed_worker_drains() {
    let (pool, workers) = pool_of(2);
    let ticket = pool.begin(workers[0], 10).unwrap();
    pool.remove(workers[0]).unwrap();
    let stats = stats_of(&pool, workers[0]).unwrap();
    assert_eq!((stats.state, stats.in_flight, stats.tokens), (WorkerState::Draining, 1, 10));
    let totals = pool.totals().unwrap();
    assert_eq!((totals.workers, totals.draining, totals.in_flight), (1, 1, 1));
    pool.finish(ticket).unwrap();
    assert_eq!(stats_of(&pool, workers[0]), None);
    let totals = pool.totals().unwrap();
    assert_eq!((totals.workers, totals.draining, totals.in_flight), (1, 0, 0));
    assert_eq!(totals.finished, 1);
}

/// What a request may do while its worker drains.
#[test]
fn case_17_draining_worker_takes_no_more() {
    let (pool, workers) = pool_of(2);
    let [leaving, staying] = workers[..] else { unreachable!() };
    let mut ticket = pool.begin(leaving, 10).unwrap();
    let mut guest = pool.begin(staying, 1).unwrap();
    pool.remove(leaving).unwrap();
    pool.grow(&mut ticket, 5).unwrap();
    assert_eq!(stats_of(&pool, leaving).unwrap().tokens, 15);
    assert_eq!(pool.retarget(&mut guest, leaving), Err(Error::Unknown { worker: leaving }));
    for policy in Policy::ALL {
        let request = Request { candidates: Some(&[leaving]), ..by(policy) };
        assert_eq!(pool.pick(&request), Err(Error::Empty));
    }
    pool.retarget(&mut ticket, staying).unwrap();
    assert_eq!(stats_of(&pool, leaving), None);
    let stats = stats_of(&pool, staying).unwrap();
    assert_eq!((stats.in_flight, stats.tokens), (2, 16));
    assert_eq!((anomalies(&pool), pool.totals().unwrap().finished), (0, 0));
}

/// Ids with random bytes, and real ones with some of their bytes replaced: no count moves, and
/// every worker goes on as it was. (Forged tickets are for C: in Rust nothing makes one.)
#[test]
fn case_46_forged_ids() {
    let (pool, workers) = pool_of(3);
    let tickets: Vec<_> = workers.iter().map(|&worker| pool.begin(worker, 100).unwrap()).collect();
    let mut moving = pool.begin(workers[0], 7).unwrap();
    let config = |pool: &Pool| {
        let stats = pool.stats().unwrap();
        stats
            .into_iter()
            .map(|stats| (stats.vetoes, stats.weight, stats.max_in_flight, stats.load))
            .collect::<Vec<_>>()
    };
    let before = config(&pool);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(46);
    for _ in 0..20_000 {
        let random = rng.next_u64();
        let kept = rng.next_u64() as u8;
        let mask = (0..8)
            .filter(|byte| kept >> byte & 1 != 0)
            .fold(0, |mask, byte| mask | 0xFF << (byte * 8));
        let real = workers[random as usize % 3].raw();
        let forged = WorkerId::from_raw(real & mask | random & !mask);
        if workers.contains(&forged) {
            continue;
        }
        let unknown = Err(Error::Unknown { worker: forged });
        assert_eq!(pool.finish_worker(forged, random as u32), Err(Error::Stale));
        assert_eq!(pool.begin(forged, random as u32).map(drop), unknown);
        assert_eq!(pool.retarget(&mut moving, forged), unknown);
        assert_eq!(
            pool.update(forged, WorkerUpdate { weight: Some(0), ..Default::default() }),
            unknown
        );
        assert_eq!(pool.veto(forged, Vetoes::HOST, true), unknown);
        assert_eq!(pool.remove(forged), unknown);
        assert_eq!(pool.abandon(forged), unknown);
        let request = Request { candidates: Some(&[forged, forged]), ..Request::default() };
        assert_eq!(pool.dispatch(&request), Err(Error::Empty));
        let request = Request { excluded: &[forged], ..Request::default() };
        assert!(workers.contains(&pool.pick(&request).unwrap()));
    }
    let loads: Vec<Load> = (0..100).map(|_| load(WorkerId::from_raw(rng.next_u64()), 5)).collect();
    assert_eq!(pool.publish(&loads), Ok(100));
    let forged: Vec<_> = loads.iter().map(|load| load.worker).collect();
    let mut poll = pool.poll(Some(&forged));
    poll.begin().unwrap();
    assert_eq!(poll.publish(&loads), Ok(100));

    assert_eq!((counts(&pool), config(&pool)), (vec![2, 1, 1], before));
    pool.finish(moving).unwrap();
    for ticket in tickets {
        pool.finish(ticket).unwrap();
    }
    for stats in pool.stats().unwrap() {
        assert_eq!((stats.in_flight, stats.tokens), (0, 0));
    }
}

#[test]
fn a_request_does_not_move_to_the_draining_worker_that_it_is_on() {
    let pool = Pool::new(PoolConfig::default()).unwrap();
    let worker = pool.add(0, WorkerConfig::default()).unwrap();
    let mut ticket = pool.begin(worker, 1).unwrap();
    assert_eq!(pool.retarget(&mut ticket, worker), Ok(()));
    pool.remove(worker).unwrap();
    assert_eq!(pool.retarget(&mut ticket, worker), Err(Error::Unknown { worker }));
    pool.finish(ticket).unwrap();
}

/// Ids come from the operating system, never from a seed.
#[test]
fn case_02_pools_of_one_seed_do_not_know_each_others_tickets() {
    let [one, other] =
        [(); 2].map(|()| Pool::new(PoolConfig { seed: 7, ..PoolConfig::default() }).unwrap());
    for pool in [&one, &other] {
        let worker = pool.add(0, WorkerConfig::default()).unwrap();
        let _stays = pool.begin(worker, 0).unwrap();
    }
    let ticket = one.dispatch(&Request::default()).unwrap();
    let stale = other.finish(ticket).unwrap_err();
    assert_eq!(other.totals().unwrap().in_flight, 1);
    one.finish(stale.ticket).unwrap();
}
