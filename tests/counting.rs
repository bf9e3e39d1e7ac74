//! Cases 1 to 9, 47 and 48: requests and tokens are counted from dispatch to finish, once.

mod common;

use common::*;
use evenkeel::{
    Error, InFlight, MAX_IN_FLIGHT, Policy, Pool, Request, Ticket, WorkerConfig, WorkerId,
};
use std::pin::Pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};
use std::thread;

fn anomalies(pool: &Pool) -> u64 {
    pool.totals().unwrap().anomalies
}

fn tokens(pool: &Pool, worker: WorkerId) -> u32 {
    stats_of(pool, worker).expect("known").tokens
}

#[test]
fn case_01_finish_without_dispatch() {
    let (pool, workers) = pool_of(3);
    for tokens in [0, 1, u32::MAX] {
        assert_eq!(pool.finish_worker(workers[0], tokens), Err(Error::Stale));
    }
    assert_eq!(anomalies(&pool), 3);
    assert_eq!(counts(&pool), [0, 0, 0]);

    let mut picker = pool.picker(1).unwrap();
    let served = tally(&workers, 3000, || {
        let ticket = picker.dispatch(&by(Policy::LeastRequests)).unwrap();
        let worker = ticket.worker();
        pool.finish(ticket).unwrap();
        worker
    });
    assert_uniform(&served);
    assert_eq!(counts(&pool), [0, 0, 0]);
    assert_eq!((pool.totals().unwrap().finished, anomalies(&pool)), (3000, 3));
}

/// In Rust a second finish of a ticket does not compile, since finishing takes it: here is what
/// that rests on. The C functions, where a ticket is plain data, have their own test.
#[test]
fn case_02_a_ticket_is_neither_copied_nor_cloned() {
    trait NotClone<Reason> {
        fn holds() {}
    }
    struct ItIsClone;
    impl<T> NotClone<()> for T {}
    impl<T: Clone> NotClone<ItIsClone> for T {}
    // Ambiguous, an error, if it were `Clone`; what is `Copy` is `Clone`.
    <Ticket as NotClone<_>>::holds();
    <InFlight<'static> as NotClone<_>>::holds();
}

/// Two threads end the one request of a worker: one success, one `Stale`.
#[test]
fn case_02_two_threads_end_one_request() {
    const ROUNDS: u32 = 20_000;
    let (pool, workers) = pool_of(2);
    let _other = pool.begin(workers[1], 5).unwrap();
    let line = StartingLine::new(2);
    let ended: u32 = thread::scope(|scope| {
        let threads = [true, false].map(|begins| {
            let (pool, worker, line) = (&pool, workers[0], &line);
            scope.spawn(move || {
                let _until = Until(&line.left);
                let mut ended = 0;
                for _ in 0..ROUNDS {
                    if begins {
                        hold(pool, worker, 1);
                    }
                    line.wait();
                    match pool.finish_worker(worker, 0) {
                        Ok(()) => ended += 1,
                        Err(error) => assert_eq!(error, Error::Stale),
                    }
                    line.wait();
                }
                ended
            })
        });
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert_eq!((ended, anomalies(&pool)), (ROUNDS, ROUNDS.into()));
    assert_eq!(counts(&pool), [0, 1]);
    assert_eq!((tokens(&pool, workers[0]), tokens(&pool, workers[1])), (0, 5));
}

#[test]
fn case_02_a_ticket_of_another_pool_is_stale() {
    let (here, ours) = pool_of(2);
    let (there, theirs) = pool_of(2);
    let mut ticket = here.begin(ours[0], 10).unwrap();
    let sibling = there.begin(theirs[0], 10).unwrap();

    assert_eq!(there.grow(&mut ticket, 1), Err(Error::Stale));
    assert_eq!(there.retarget(&mut ticket, theirs[1]), Err(Error::Stale));
    assert_eq!(there.finish_worker(ours[0], 10), Err(Error::Stale));
    let ticket = there.finish(ticket).unwrap_err().ticket;
    drop(there.guard(ticket));
    assert_eq!(anomalies(&there), 5);
    assert_eq!((counts(&there), tokens(&there, theirs[0])), (vec![1, 0], 10));
    assert_eq!((counts(&here), tokens(&here, ours[0])), (vec![1, 0], 10));
    there.finish(sibling).unwrap();
    assert_eq!((counts(&there), anomalies(&here)), (vec![0, 0], 0));
}

#[test]
fn case_02_a_stale_ticket_comes_back_as_it_was() {
    let (here, ours) = pool_of(1);
    let (there, _) = pool_of(1);
    let ticket = here.begin(ours[0], 10).unwrap();
    let ticket = there.finish(ticket).unwrap_err().ticket;
    assert_eq!((ticket.worker(), ticket.tokens()), (ours[0], 10));
    here.finish(ticket).unwrap();
    assert_eq!((counts(&here), tokens(&here, ours[0]), anomalies(&here)), (vec![0], 0, 0));
}

/// Holds a request across an await that never ends.
struct Response(#[expect(dead_code, reason = "held for its drop")] InFlight<'static>);

impl Future for Response {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

#[test]
fn case_03_guard_dropped_at_an_await() {
    let (pool, _) = pool_of(1);
    for policy in Policy::ALL {
        let handler = async {
            let guard = pool.guard_owned(pool.dispatch(&by(policy)).unwrap());
            Response(guard).await;
            unreachable!("the client leaves first");
        };
        let mut handler = Box::pin(handler);
        assert!(handler.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(counts(&pool), [1]);
        drop(handler);
        assert_eq!(counts(&pool), [0]);
    }
    assert_eq!((pool.totals().unwrap().finished, anomalies(&pool)), (Policy::ALL.len() as u64, 0));
}

#[test]
fn case_03_guard_dropped_by_unwinding() {
    let (pool, _) = pool_of(1);
    let unwound = thread::scope(|scope| {
        let handler = scope.spawn(|| {
            let _borrowed = pool.guard(pool.dispatch(&by(Policy::Random)).unwrap());
            let _owned = pool.guard_owned(pool.dispatch(&by(Policy::Random)).unwrap());
            assert_eq!(counts(&pool), [2]);
            std::panic::resume_unwind(Box::new(()));
        });
        handler.join()
    });
    assert!(unwound.is_err());
    assert_eq!(counts(&pool), [0]);
    assert_eq!((pool.totals().unwrap().finished, anomalies(&pool)), (2, 0));
}

#[test]
fn case_03_guard_moved_to_another_thread() {
    let (pool, _) = pool_of(1);
    let picker = pool.picker(1).unwrap();
    let owned = pool.guard_owned(pool.dispatch(&Request::default()).unwrap());
    let of_picker = picker.guard_owned(pool.dispatch(&Request::default()).unwrap());
    thread::spawn(move || drop((owned, of_picker))).join().unwrap();
    assert_eq!(counts(&pool), [0]);
    assert_eq!((pool.totals().unwrap().finished, anomalies(&pool)), (2, 0));
}

#[test]
fn case_03_guard_ends_once_and_where_it_last_was() {
    let (pool, workers) = pool_of(2);
    let mut guard = pool.guard(pool.begin(workers[0], 10).unwrap());
    guard.grow(5).unwrap();
    guard.retarget(workers[1]).unwrap();
    assert_eq!((guard.worker(), guard.tokens()), (workers[1], 15));
    assert_eq!((counts(&pool), tokens(&pool, workers[1])), (vec![0, 1], 15));
    guard.finish().unwrap();
    assert_eq!(counts(&pool), [0, 0]);

    let ticket = pool.guard(pool.begin(workers[0], 0).unwrap()).into_ticket();
    assert_eq!(counts(&pool), [1, 0]);
    pool.finish(ticket).unwrap();
    assert_eq!((pool.totals().unwrap().finished, anomalies(&pool)), (2, 0));
}

#[test]
fn case_04_ticket_finished_on_another_thread_after_its_own_exited() {
    let (pool, _) = pool_of(3);
    for policy in Policy::ALL {
        let tickets = thread::scope(|scope| {
            let begun = scope.spawn(|| {
                let mut picker = pool.picker(0).unwrap();
                let own = picker.dispatch(&by(policy)).unwrap();
                [own, pool.dispatch(&by(policy)).unwrap()]
            });
            begun.join().unwrap()
        });
        assert_eq!(counts(&pool).iter().sum::<u32>(), 2);
        thread::scope(|scope| {
            scope.spawn(|| tickets.map(|ticket| pool.finish(ticket).unwrap()));
        });
        assert_eq!(counts(&pool), [0, 0, 0]);
    }
    assert_eq!(
        (pool.totals().unwrap().finished, anomalies(&pool)),
        (2 * Policy::ALL.len() as u64, 0)
    );
}

#[test]
fn case_05_retry_excludes_the_failed_worker_and_gives_up() {
    let (pool, _) = pool_of(2);
    let mut picker = pool.picker(5).unwrap();
    for policy in Policy::ALL {
        let first = picker.dispatch(&by(policy)).unwrap();
        let mut failed = vec![first.worker()];
        pool.finish(first).unwrap();
        let second = picker.dispatch(&Request { excluded: &failed, ..by(policy) }).unwrap();
        assert_ne!(second.worker(), failed[0]);
        failed.push(second.worker());
        pool.finish(second).unwrap();
        let third = picker.dispatch(&Request { excluded: &failed, ..by(policy) });
        assert_eq!(third, Err(Error::Empty));
        assert_eq!(counts(&pool), [0, 0]);
    }
    assert_eq!(anomalies(&pool), 0);
}

/// In Rust no ticket is ever empty: that state is what an absent one is made of.
#[test]
fn case_06_worker_zero_ends_nothing() {
    assert_eq!(size_of::<Option<Ticket>>(), size_of::<Ticket>());
    let (pool, workers) = pool_of(1);
    hold(&pool, workers[0], 1);
    assert_eq!(pool.finish_worker(WorkerId::from_raw(0), 0), Err(Error::Stale));
    assert_eq!((counts(&pool), anomalies(&pool)), (vec![1], 1));
}

#[test]
fn case_06_more_ends_than_requests() {
    let (pool, workers) = pool_of(2);
    hold(&pool, workers[0], 3);
    hold(&pool, workers[1], 3);
    let ends: Vec<_> = (0..5).map(|_| pool.finish_worker(workers[0], 0)).collect();
    assert_eq!(ends, [Ok(()), Ok(()), Ok(()), Err(Error::Stale), Err(Error::Stale)]);
    assert_eq!((counts(&pool), anomalies(&pool)), (vec![0, 3], 2));
    let stats = stats_of(&pool, workers[0]).unwrap();
    assert_eq!((stats.finished, stats.tokens), (3, 0));
}

/// Tokens beyond those in flight borrow nothing from the count or the tag above them.
#[test]
fn case_06_tokens_that_do_not_match() {
    for claimed in [31, 1 << 20, u32::MAX] {
        let (pool, workers) = pool_of(1);
        let worker = workers[0];
        let small = pool.begin(worker, 10).unwrap();
        let large = pool.begin(worker, 20).unwrap();

        assert_eq!(pool.finish_worker(worker, claimed), Ok(()));
        assert_eq!((counts(&pool), tokens(&pool, worker), anomalies(&pool)), (vec![1], 0, 1));
        // The second ticket claims what the first end took; the third is one end too many.
        pool.finish(large).unwrap();
        assert_eq!((counts(&pool), tokens(&pool, worker), anomalies(&pool)), (vec![0], 0, 2));
        assert!(pool.finish(small).is_err());
        assert_eq!((counts(&pool), anomalies(&pool)), (vec![0], 3));

        // The tag and the closed bit are as they were: the worker still takes requests.
        let ticket = pool.dispatch(&Request { tokens: 7, ..Request::default() }).unwrap();
        assert_eq!((ticket.worker(), counts(&pool), tokens(&pool, worker)), (worker, vec![1], 7));
        pool.finish(ticket).unwrap();
        assert_eq!((counts(&pool), anomalies(&pool)), (vec![0], 3));
    }
}

#[test]
fn case_06_nothing_in_flight_has_no_tokens() {
    let (pool, workers) = pool_of(1);
    let tickets = [100, 200].map(|tokens| pool.begin(workers[0], tokens).unwrap());
    for _ in tickets {
        pool.finish_worker(workers[0], 1).unwrap();
    }
    // The first end left 299 of what its sibling may still claim; the last can't.
    assert_eq!((counts(&pool), tokens(&pool, workers[0])), (vec![0], 0));
    assert_eq!(anomalies(&pool), 1);
}

#[test]
fn case_07_a_request_that_runs_for_hours_stays_counted() {
    let config = evenkeel::PoolConfig { load_max_age_ms: 1, ..Default::default() };
    let pool = Pool::new(config).unwrap();
    let (long, other) = (add(&pool, 0), add(&pool, 1));
    let ticket = pool.begin(long, 1234).unwrap();
    let mut picker = pool.picker(7).unwrap();
    for round in 0..10_000 {
        report(&pool, &[(long, round), (other, 0)]);
        for policy in Policy::ALL {
            let ticket = picker.dispatch(&by(policy)).unwrap();
            pool.finish(ticket).unwrap();
        }
        if round % 100 == 0 {
            let guest = add(&pool, 2);
            pool.veto(long, evenkeel::Vetoes::HEALTH, round % 200 == 0).unwrap();
            pool.remove(guest).unwrap();
        }
        if round % 1000 == 0 {
            thread::sleep(std::time::Duration::from_millis(3));
        }
    }
    assert_eq!((counts(&pool), tokens(&pool, long)), (vec![1, 0], 1234));
    pool.finish(ticket).unwrap();
    assert_eq!((counts(&pool), anomalies(&pool)), (vec![0, 0], 0));
}

#[test]
fn case_08_concurrent_dispatches_spread_within_one() {
    for _ in 0..20 {
        let (pool, _) = pool_of(3);
        let barrier = Barrier::new(100);
        thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    barrier.wait();
                    let _ = pool.dispatch(&Request::default()).unwrap();
                });
            }
        });
        let mut counts = counts(&pool);
        counts.sort_unstable();
        assert_eq!(counts, [33, 33, 34]);
    }
}

#[test]
fn case_09_cap_of_10_under_16_threads() {
    for policy in Policy::ALL {
        let (pool, workers) = pool_of(0);
        assert!(workers.is_empty());
        let config = WorkerConfig { max_in_flight: 10, ..WorkerConfig::default() };
        let worker = pool.add(0, config).unwrap();
        let barrier = Barrier::new(17);
        let tickets: Vec<Ticket> = thread::scope(|scope| {
            let dispatchers: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        let tries = (0..1000).map(|_| pool.dispatch(&by(policy)));
                        let refused = |error: &Error| assert_eq!(*error, Error::Saturated);
                        tries
                            .filter_map(|tried| tried.inspect_err(refused).ok())
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            barrier.wait();
            while !dispatchers.iter().all(|thread| thread.is_finished()) {
                assert!(in_flight(&pool, worker) <= 10);
            }
            dispatchers.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!((tickets.len(), counts(&pool)), (10, vec![10]));
        assert_eq!(pool.totals().unwrap().saturated, 16_000 - 10);

        for ticket in tickets {
            pool.finish(ticket).unwrap();
            assert!(pool.dispatch(&by(policy)).is_ok());
            assert_eq!(pool.dispatch(&by(policy)), Err(Error::Saturated));
            assert_eq!(counts(&pool), [10]);
        }
    }
}

#[test]
fn case_47_what_lives_outlasts_its_pool() {
    let (pool, _) = pool_of(0);
    let one = WorkerConfig { max_in_flight: 1, ..WorkerConfig::default() };
    let workers = [0, 1].map(|key| pool.add(key, one).unwrap());
    let mut picker = pool.picker(1).unwrap();
    let mut poll = pool.poll(None);
    let guard = pool.guard_owned(pool.begin(workers[0], 10).unwrap());
    let dispatched = picker.dispatch(&Request::default()).unwrap();
    let of_picker = picker.guard_owned(dispatched);
    drop(pool);

    assert_eq!(of_picker.worker(), workers[1]);
    assert_eq!(picker.dispatch(&Request::default()), Err(Error::Saturated));
    drop(of_picker);
    let again = picker.dispatch(&Request::default()).unwrap();
    assert_eq!(again.worker(), workers[1]);

    poll.begin().unwrap();
    assert_eq!(poll.publish(&[load(workers[0], 5), load(workers[1], 500)]), Ok(0));
    assert_eq!(picker.pick(&by(Policy::PowerOfTwoTokens)), Ok(workers[0]));
    drop((picker, poll));
    // The last that holds the pool ends its request in it.
    guard.finish().unwrap();
}

#[test]
fn case_48_most_requests_in_flight() {
    let (pool, workers) = pool_of(1);
    let full = workers[0];
    hold(&pool, full, MAX_IN_FLIGHT);
    assert_eq!(pool.begin(full, 0), Err(Error::Overflow));
    assert_eq!(pool.begin(full, 1), Err(Error::Overflow));
    for policy in Policy::ALL {
        assert_eq!(pool.dispatch(&by(policy)), Err(Error::Overflow));
    }
    assert_eq!((counts(&pool), tokens(&pool, full)), (vec![MAX_IN_FLIGHT], 0));

    let other = add(&pool, 1);
    let mut ticket = pool.begin(other, 9).unwrap();
    assert_eq!(pool.retarget(&mut ticket, full), Err(Error::Overflow));
    assert_eq!((ticket.worker(), ticket.tokens()), (other, 9));
    for policy in Policy::ALL {
        match pool.dispatch(&by(policy)) {
            Ok(ticket) => pool.finish(ticket).unwrap(),
            // Who doesn't compare requests may choose the full one.
            Err(error) => {
                assert_eq!(error, Error::Overflow);
                assert!([Policy::RoundRobin, Policy::Random].contains(&policy));
            }
        }
        assert_eq!(counts(&pool), [MAX_IN_FLIGHT, 1]);
    }

    // Tag and closed bit are as they were.
    pool.finish_worker(full, 0).unwrap();
    let ticket = pool.begin(full, 3).unwrap();
    pool.finish(ticket).unwrap();
    pool.remove(full).unwrap();
    for _ in 1..MAX_IN_FLIGHT {
        pool.finish_worker(full, 0).unwrap();
    }
    assert_eq!((stats_of(&pool, full), anomalies(&pool)), (None, 0));
}

/// A cap that happens to be the most that fits is still a cap.
#[test]
fn case_48_largest_cap() {
    let (pool, _) = pool_of(0);
    let config = WorkerConfig { max_in_flight: MAX_IN_FLIGHT, ..WorkerConfig::default() };
    let full = pool.add(0, config).unwrap();
    hold(&pool, full, MAX_IN_FLIGHT);
    assert_eq!(pool.begin(full, 0), Err(Error::Saturated));
    for policy in Policy::ALL {
        assert_eq!(pool.dispatch(&by(policy)), Err(Error::Saturated));
    }
    assert_eq!(counts(&pool), [MAX_IN_FLIGHT]);
}

#[test]
fn case_48_most_tokens_in_flight() {
    let (pool, workers) = pool_of(2);
    let [full, other] = workers[..] else { unreachable!() };
    let mut most = pool.begin(full, u32::MAX - 10).unwrap();
    let mut ten = pool.begin(full, 10).unwrap();
    let before = || (counts(&pool), tokens(&pool, full), tokens(&pool, other));
    let full_now = (vec![2, 0], u32::MAX, 0);
    assert_eq!(before(), full_now);

    assert_eq!(pool.begin(full, 1), Err(Error::Overflow));
    for policy in Policy::ALL {
        let request = Request { tokens: 1, candidates: Some(&[full]), ..by(policy) };
        assert_eq!(pool.dispatch(&request), Err(Error::Overflow));
    }
    assert_eq!(pool.grow(&mut ten, 1), Err(Error::Overflow));
    assert_eq!(pool.grow(&mut most, 11), Err(Error::Overflow));
    assert_eq!((ten.tokens(), most.tokens()), (10, u32::MAX - 10));
    assert_eq!(before(), full_now);

    // One without tokens fits, as does the same number elsewhere.
    let none = pool.begin(full, 0).unwrap();
    pool.finish(none).unwrap();
    let mut away = pool.begin(other, u32::MAX).unwrap();
    assert_eq!(pool.retarget(&mut away, full), Err(Error::Overflow));
    assert_eq!((away.worker(), away.tokens()), (other, u32::MAX));
    pool.finish(ten).unwrap();
    assert_eq!(before(), (vec![1, 1], u32::MAX - 10, u32::MAX));
    pool.finish(most).unwrap();
    pool.retarget(&mut away, full).unwrap();
    assert_eq!(before(), (vec![1, 0], u32::MAX, 0));
    pool.finish(away).unwrap();
    assert_eq!((before(), anomalies(&pool)), ((vec![0, 0], 0, 0), 0));
}

/// A worker without room for a request's tokens, or for one more request, is passed over while
/// another has room.
#[test]
fn case_48_a_full_worker_does_not_stop_the_others() {
    for policy in Policy::ALL {
        let pool = Pool::new(evenkeel::PoolConfig { seed: 1, ..Default::default() }).unwrap();
        let full_of_tokens = pool.add(0, WorkerConfig::default()).unwrap();
        let full_of_requests = pool.add(1, WorkerConfig::default()).unwrap();
        let free = pool.add(2, WorkerConfig::default()).unwrap();
        let _stays = pool.begin(full_of_tokens, u32::MAX).unwrap();
        for _ in 0..evenkeel::MAX_IN_FLIGHT {
            let _stays = pool.begin(full_of_requests, 0).unwrap();
        }
        let request = Request { policy: Some(policy), tokens: 1, ..Request::default() };
        for _ in 0..100 {
            assert_eq!(pool.dispatch(&request).unwrap().worker(), free, "{policy}");
        }
        let others = Request { excluded: &[free], ..request };
        assert_eq!(pool.dispatch(&others), Err(Error::Overflow), "{policy}");
        assert_eq!(pool.totals().unwrap().anomalies, 0);
    }
}
