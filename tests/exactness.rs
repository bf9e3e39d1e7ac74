//! What is exact whatever the threads do: the spread under least_requests, caps, tickets, totals.

mod common;

use common::*;
use evenkeel::{
    Error, Policy, Pool, PoolConfig, Request, Ticket, Vetoes, WorkerConfig, WorkerId, WorkerState,
    WorkerUpdate,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

const LEAST: Policy = Policy::LeastRequests;
const THREADS: usize = 16;

/// Watches workers of which max − min ≤ 1 must hold at every moment, until these threads have
/// ended. While counts only grow, a count that is read is then at most one less than any that was
/// read before, of whatever worker.
fn watch_spread(pool: &Pool, workers: &[WorkerId], threads: &[thread::ScopedJoinHandle<'_, ()>]) {
    let mut most = 0;
    let mut ended = false;
    while !ended {
        ended = threads.iter().all(|thread| thread.is_finished());
        for stats in pool.stats().unwrap() {
            if workers.contains(&stats.worker) {
                assert!(stats.in_flight + 1 >= most, "{} beside {most}", stats.in_flight);
                most = most.max(stats.in_flight);
            }
        }
    }
}

fn spread(pool: &Pool, workers: &[WorkerId]) -> u32 {
    let counts = workers.iter().map(|&worker| in_flight(pool, worker));
    counts.clone().max().unwrap() - counts.min().unwrap()
}

/// 16 threads make 100,000 dispatches over 64 workers, while `beside` runs again and again.
fn dispatch_100_000(pool: &Pool, workers: &[WorkerId], mut beside: impl FnMut() + Send) {
    let done = AtomicBool::new(false);
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        let until = Until(&done);
        let dispatchers = [(); THREADS].map(|()| {
            scope.spawn(|| {
                let mut picker = pool.picker(0).unwrap();
                barrier.wait();
                for _ in 0..100_000 / THREADS {
                    let _ = picker.dispatch(&by(LEAST)).unwrap();
                }
            })
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                beside();
            }
        });
        watch_spread(pool, workers, &dispatchers);
        drop(until);
    });
    let mut counts = counts(pool);
    counts.sort_unstable();
    assert_eq!(counts, [[1562; 32], [1563; 32]].concat());
}

#[test]
fn least_requests_stays_within_one() {
    let (pool, workers) = pool_of(64);
    dispatch_100_000(&pool, &workers, thread::yield_now);
}

/// Reports of all workers, which tie in tokens now and then, again and again.
fn publisher(pool: &Pool, workers: &[WorkerId]) -> impl FnMut() {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    move || {
        let tokens = workers.iter().map(|&worker| (worker, rng.next_u64() % 4));
        report(pool, &tokens.collect::<Vec<_>>());
    }
}

#[test]
fn least_requests_stays_within_one_beside_a_publisher_at_1_khz() {
    let (pool, workers) = pool_of(64);
    let mut publish = publisher(&pool, &workers);
    publish();
    dispatch_100_000(&pool, &workers, || {
        publish();
        thread::sleep(Duration::from_millis(1));
    });
}

#[test]
fn least_requests_stays_within_one_beside_a_restless_publisher() {
    let (pool, workers) = pool_of(64);
    let mut publish = publisher(&pool, &workers);
    publish();
    dispatch_100_000(&pool, &workers, publish);
}

/// At rest after each of many rounds in which two threads dispatch at the same moment over few
/// workers, where they are most in each other's way. Every other round begins with one in flight.
#[test]
fn least_requests_rounds_end_within_one() {
    let capped = WorkerConfig { max_in_flight: 100, ..WorkerConfig::default() };
    for (n, config) in [2, 3].into_iter().flat_map(|n| [(n, WorkerConfig::default()), (n, capped)])
    {
        let (pool, _) = pool_of(0);
        let workers: Vec<_> = (0..n).map(|key| pool.add(key, config).unwrap()).collect();
        let line = StartingLine::new(2);
        thread::scope(|scope| {
            for thread in 0..2 {
                let (pool, workers, line) = (&pool, &workers, &line);
                scope.spawn(move || {
                    let _until = Until(&line.left);
                    let mut picker = pool.picker(0).unwrap();
                    let mut kept = None;
                    for _ in 0..5000 {
                        line.wait();
                        let request = Request { tokens: thread, ..by(LEAST) };
                        let [first, second] = [(); 2].map(|()| picker.dispatch(&request).unwrap());
                        line.wait();
                        assert!(thread > 0 || spread(pool, workers) <= 1, "{:?}", counts(pool));
                        line.wait();
                        pool.finish(second).unwrap();
                        if thread == 0 && kept.is_none() {
                            kept = Some(first);
                        } else {
                            pool.finish(first).unwrap();
                            kept.take().map_or(Ok(()), |ticket| pool.finish(ticket)).unwrap();
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn least_requests_90_threads_on_3_workers() {
    for _ in 0..20 {
        let (pool, _) = pool_of(3);
        let barrier = Barrier::new(90);
        thread::scope(|scope| {
            for _ in 0..90 {
                scope.spawn(|| {
                    barrier.wait();
                    let _ = pool.dispatch(&by(LEAST)).unwrap();
                });
            }
        });
        assert_eq!(counts(&pool), [30, 30, 30]);
    }
}

/// Some workers that compete in every view and candidate list, starting within one of each other,
/// stay so whoever else comes, goes, has another weight, is vetoed or is a candidate now and then;
/// whatever the tokens; whether tokens grow and reports come meanwhile.
#[test]
fn least_requests_stays_within_one_among_outsiders() {
    for reported in [false, true] {
        let (pool, workers) = pool_of(12);
        let (core, often) = (&workers[..8], workers[8]);
        for (at, &worker) in core.iter().enumerate() {
            hold(&pool, worker, 4 + at as u32 % 2);
        }
        let publish = |tokens| {
            let of_core = core.iter().map(|&worker| (worker, tokens));
            report(&pool, &of_core.chain([(often, tokens)]).collect::<Vec<_>>());
        };
        if reported {
            publish(1);
        }
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let until = Until(&done);
            let dispatchers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (pool, workers) = (&pool, &workers);
                    scope.spawn(move || {
                        let mut rng = Xoshiro256PlusPlus::seed_from_u64(thread as u64);
                        let mut picker = pool.picker(0).unwrap();
                        for _ in 0..3000 {
                            let mut request =
                                Request { tokens: rng.next_u64() as u32 % 1000, ..by(LEAST) };
                            let from = rng.next_u64() as usize % 2;
                            match thread % 4 {
                                0 => request.candidates = Some(&workers[..8 + from]),
                                1 => request.excluded = &workers[9 + from..10 + from],
                                2 => request.excluded = &workers[8..],
                                _ => {}
                            }
                            let mut ticket = picker.dispatch(&request).unwrap();
                            // Guests are abandoned.
                            if core.contains(&ticket.worker()) {
                                pool.grow(&mut ticket, 1).unwrap();
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(0);
                let mut key = 100;
                while !done.load(Ordering::Relaxed) {
                    key += 1;
                    let weight = 1 + rng.next_u64() as u32 % 3;
                    let guest = pool.add(key, WorkerConfig { weight, ..WorkerConfig::default() });
                    pool.veto(workers[9], Vetoes::HOST, key % 3 == 0).unwrap();
                    let weight = WorkerUpdate { weight: Some(weight), ..WorkerUpdate::default() };
                    pool.update(workers[10], weight).unwrap();
                    if reported {
                        publish(key);
                    }
                    pool.abandon(guest.unwrap()).unwrap();
                }
            });
            watch_spread(&pool, core, &dispatchers);
            drop(until);
        });
        assert!(spread(&pool, core) <= 1);
        assert_eq!(pool.totals().unwrap().anomalies, 0);
    }
}

/// Each dispatch takes a place of the cursor's own: 16 threads make whole rounds.
#[test]
fn round_robin_dispatches_are_spread_evenly() {
    let (pool, _) = pool_of(7);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..7 * 5000 {
                    let _ = pool.dispatch(&by(Policy::RoundRobin)).unwrap();
                }
            });
        }
    });
    assert_eq!(counts(&pool), [5000 * THREADS as u32; 7]);
}

/// However a request gets there: by any policy, chosen elsewhere, or moved.
#[test]
fn a_cap_of_10_is_never_exceeded() {
    let (pool, _) = pool_of(0);
    let ten = WorkerConfig { max_in_flight: 10, ..WorkerConfig::default() };
    let capped = [0, 1].map(|key| pool.add(key, ten).unwrap());
    let elsewhere = [add(&pool, 2)];
    // How many requests of each are surely in flight, by slot.
    let held = [(); 2].map(|()| AtomicU32::new(0));
    let most = AtomicU32::new(0);
    let begin = |worker: WorkerId| {
        let held = held[worker.slot()].fetch_add(1, Ordering::Relaxed) + 1;
        most.fetch_max(held, Ordering::Relaxed);
        assert!(held <= 10);
    };
    let finish = |ticket: Ticket| {
        held[ticket.worker().slot()].fetch_sub(1, Ordering::Relaxed);
        pool.finish(ticket).unwrap();
    };
    let move_to = |worker: WorkerId| {
        let mut ticket = pool.begin(elsewhere[0], 0).unwrap();
        match pool.retarget(&mut ticket, worker) {
            Ok(()) => Ok(ticket),
            Err(error) => {
                pool.finish(ticket).map_or_else(|stale| Err(stale.into()), |()| Err(error))
            }
        }
    };
    thread::scope(|scope| {
        let spawn = |seed| {
            let (pool, begin, finish, move_to) = (&pool, &begin, &finish, &move_to);
            scope.spawn(move || {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
                let mut picker = pool.picker(0).unwrap();
                let mut tickets = Vec::new();
                for _ in 0..5000 {
                    let random = rng.next_u64() as usize;
                    let worker = capped[random % 2];
                    let policy = Policy::ALL[random / 2 % 5];
                    let got = match random / 16 % 4 {
                        0 if !tickets.is_empty() => {
                            finish(tickets.swap_remove(random / 64 % tickets.len()));
                            continue;
                        }
                        1 => pool.begin(worker, 0),
                        2 => move_to(worker),
                        _ => picker.dispatch(&Request { excluded: &elsewhere, ..by(policy) }),
                    };
                    match got {
                        Ok(ticket) => {
                            begin(ticket.worker());
                            tickets.push(ticket);
                        }
                        Err(error) => assert_eq!(error, Error::Saturated),
                    }
                }
                tickets.into_iter().for_each(finish);
            })
        };
        let threads: Vec<_> = (0..THREADS as u64).map(spawn).collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            assert!(capped.iter().all(|&worker| in_flight(&pool, worker) <= 10));
        }
    });
    assert_eq!(most.into_inner(), 10);
    assert_eq!((counts(&pool), pool.totals().unwrap().anomalies), (vec![0, 0, 0], 0));
}

/// Of those that want the last place exactly one gets it, again and again.
#[test]
fn the_last_place_goes_to_one() {
    let (pool, _) = pool_of(0);
    let config = WorkerConfig { max_in_flight: 2, ..WorkerConfig::default() };
    let worker = pool.add(0, config).unwrap();
    hold(&pool, worker, 1);
    for policy in Policy::ALL {
        let held = AtomicU32::new(0);
        let gone = thread::scope(|scope| {
            let threads = [(); 4].map(|()| {
                scope.spawn(|| {
                    let mut picker = pool.picker(0).unwrap();
                    let mut gone = 0;
                    for round in 0..250_000 {
                        let got = match round % 8 {
                            7 => pool.begin(worker, 0),
                            _ => picker.dispatch(&by(policy)),
                        };
                        match got {
                            Ok(ticket) => {
                                assert_eq!(held.fetch_add(1, Ordering::Relaxed), 0);
                                std::hint::spin_loop();
                                held.fetch_sub(1, Ordering::Relaxed);
                                pool.finish(ticket).unwrap();
                                gone += 1;
                            }
                            Err(error) => assert_eq!(error, Error::Saturated),
                        }
                    }
                    gone
                })
            });
            threads.map(|thread| thread.join().unwrap()).iter().sum::<u32>()
        });
        assert!(gone > 0);
        assert_eq!(counts(&pool), [1]);
    }
}

/// A ticket ends once: as a finish, or as abandoned with its worker and then stale. Successors in
/// the slot keep their own counts, of which this thread holds one all the time.
#[test]
fn tickets_end_once_beside_abandon() {
    let pool = Pool::new(PoolConfig { capacity: 2, ..PoolConfig::default() }).unwrap();
    add(&pool, 0);
    let (done, line) = (AtomicBool::new(false), StartingLine::new(5));
    let (mut finished, mut stale, mut abandoned) = (0, 0, 0);
    thread::scope(|scope| {
        let policies = [LEAST, Policy::Random, Policy::PowerOfTwoRequests, Policy::RoundRobin];
        let dispatchers = policies.map(|policy| {
            let (pool, done, line) = (&pool, &done, &line);
            scope.spawn(move || {
                let mut picker = pool.picker(0).unwrap();
                let (mut finished, mut stale) = (0, 0);
                line.wait();
                while !done.load(Ordering::Relaxed) {
                    match pool.finish(picker.dispatch(&by(policy)).unwrap()) {
                        Ok(()) => finished += 1,
                        Err(_) => stale += 1,
                    }
                }
                (finished, stale)
            })
        });
        let until = Until(&done);
        line.wait();
        for key in 1..=100_000 {
            let worker = add(&pool, key);
            let own = pool.begin(worker, 0).unwrap();
            assert!(in_flight(&pool, worker) >= 1);
            if key % 2 == 0 {
                pool.finish(own).unwrap();
                finished += 1;
            } else {
                abandoned += 1;
            }
            pool.abandon(worker).unwrap();
        }
        drop(until);
        for thread in dispatchers {
            let of_thread = thread.join().unwrap();
            finished += of_thread.0;
            stale += of_thread.1;
        }
    });
    let totals = pool.totals().unwrap();
    assert_eq!((totals.finished, totals.anomalies), (finished, stale));
    assert_eq!(totals.abandoned, stale + abandoned);
    assert_eq!((counts(&pool), totals.in_flight), (vec![0], 0));
}

/// A retarget takes nothing from and adds nothing to the sum.
#[test]
fn retargets_keep_the_sum() {
    let (pool, workers) = pool_of(4);
    thread::scope(|scope| {
        for thread in 0..8 {
            let (pool, workers) = (&pool, &workers);
            scope.spawn(move || {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(thread);
                let mut ticket = pool.begin(workers[0], 10).unwrap();
                for _ in 0..20_000 {
                    pool.retarget(&mut ticket, workers[rng.next_u64() as usize % 4]).unwrap();
                }
                pool.retarget(&mut ticket, workers[thread as usize % 4]).unwrap();
                assert_eq!(ticket.tokens(), 10);
            });
        }
    });
    let stats = pool.stats().unwrap();
    assert!(stats.iter().all(|one| (one.in_flight, one.tokens, one.finished) == (2, 20, 0)));
    assert_eq!(pool.totals().unwrap().anomalies, 0);
}

/// Requests on a worker that leaves end on it as always, while new ones go elsewhere; all together
/// add up, for each worker and in the totals, which never go down.
#[test]
fn counts_add_up_and_totals_never_decrease() {
    let pool = Pool::new(PoolConfig { capacity: 64, ..PoolConfig::default() }).unwrap();
    let stay = [0, 1, 2].map(|key| add(&pool, key));
    let (done, line) = (AtomicBool::new(false), StartingLine::new(9));
    let mut tickets = Vec::new();
    // Begun and finished, by worker.
    let mut tally = HashMap::<WorkerId, (u64, u64)>::new();
    thread::scope(|scope| {
        let spawn = |seed| {
            let (pool, done, line) = (&pool, &done, &line);
            scope.spawn(move || {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
                let (mut begun, mut finished, mut tickets) = (Vec::new(), Vec::new(), Vec::new());
                line.wait();
                while !done.load(Ordering::Relaxed) {
                    let random = rng.next_u64() as usize;
                    if random.is_multiple_of(2) && tickets.len() < 50 {
                        let request = Request { tokens: 3, ..by(Policy::ALL[random / 2 % 5]) };
                        let ticket: Ticket = pool.dispatch(&request).unwrap();
                        begun.push(ticket.worker());
                        tickets.push(ticket);
                    } else if !tickets.is_empty() {
                        let ticket = tickets.swap_remove(random / 2 % tickets.len());
                        finished.push(ticket.worker());
                        pool.finish(ticket).unwrap();
                    }
                }
                (begun, finished, tickets)
            })
        };
        let threads: Vec<_> = (0..8).map(spawn).collect();
        let until = Until(&done);
        line.wait();
        let mut last = pool.totals().unwrap();
        for key in 3..2000 {
            // None if all the others drain.
            let guest = pool.add(key, WorkerConfig::default()).ok();
            if key % 64 == 0 {
                thread::yield_now();
            }
            guest.map_or(Ok(()), |guest| pool.remove(guest)).unwrap();
            let totals = pool.totals().unwrap();
            assert!(totals.finished >= last.finished && totals.version >= last.version);
            assert_eq!((totals.abandoned, totals.anomalies), (0, 0));
            last = totals;
        }
        drop(until);
        for thread in threads {
            let (begun, finished, left) = thread.join().unwrap();
            begun.into_iter().for_each(|worker| tally.entry(worker).or_default().0 += 1);
            finished.into_iter().for_each(|worker| tally.entry(worker).or_default().1 += 1);
            tickets.extend(left);
        }
    });

    let (stats, totals) = (pool.stats().unwrap(), pool.totals().unwrap());
    assert_eq!(totals.finished, tally.values().map(|(_, finished)| finished).sum());
    assert_eq!(totals.in_flight, tickets.len() as u64);
    for one in &stats {
        let (begun, finished) = tally.remove(&one.worker).unwrap_or_default();
        assert_eq!((one.finished, u64::from(one.in_flight)), (finished, begun - finished));
        assert_eq!(one.tokens, 3 * one.in_flight);
        assert_eq!(one.state == WorkerState::Active, stay.contains(&one.worker));
    }
    // Whoever is not in the statistics any more has ended all of its requests.
    assert!(tally.values().all(|(begun, finished)| begun == finished));
    tickets.into_iter().for_each(|ticket| pool.finish(ticket).unwrap());
    let totals = pool.totals().unwrap();
    assert_eq!((totals.workers, totals.draining, totals.in_flight, totals.anomalies), (3, 0, 0, 0));
}
