//! Loom models: every benign race of docs/benign-races.md with its bound, and every named edge.
//!
//! Loom runs a model once for each way in which its threads and the memory may behave. What it
//! runs is the core itself, in the sizes that [`crate::sync`] has for it.

use crate::id::next_generation;
use crate::region::record;
use crate::snapshot::{self, View};
use crate::sync::{AtomicU64, Ordering, try_lock, unlock};
use crate::ticket::end_shared;
use crate::word::Word;
use crate::worker::{Config, Slot};
use crate::{
    Error, Load, Picker, Policy, Pool, PoolConfig, Request, Tuning, Vetoes, WorkerConfig, WorkerId,
};
use loom::cell::UnsafeCell;
use loom::thread::{self, JoinHandle};
use std::sync::{Arc, Mutex};

/// Runs all executions of a model, or those with at most this many preemptions.
fn model(preemptions: impl Into<Option<usize>>, run: impl Fn() + Send + Sync + 'static) {
    let executions = Counter::default();
    let mut builder = loom::model::Builder::new();
    builder.max_threads = 3;
    builder.max_branches = 10_000;
    builder.preemption_bound = preemptions.into();
    // A model that stops early passes in silence, so no environment variable may ask for it.
    builder.max_permutations = None;
    builder.max_duration = None;
    builder.check({
        let executions = executions.clone();
        move || {
            executions.add();
            run();
        }
    });
    println!("{} executions", executions.get());
}

/// Counts over all executions of a model. They share nothing else.
#[derive(Clone, Default)]
struct Counter(Arc<Mutex<u64>>);

impl Counter {
    fn add(&self) {
        *self.0.lock().unwrap() += 1;
    }

    fn add_if(&self, happened: bool) {
        if happened {
            self.add();
        }
    }

    fn get(&self) -> u64 {
        *self.0.lock().unwrap()
    }

    /// The race that the model is about did happen.
    fn assert_reached(&self) {
        assert!(self.get() > 0, "no execution got there");
    }
}

/// What the threads of a model take turns on, before each call to the pool.
///
/// Loom remembers one access of each word. So it overlooks that a write races with another
/// thread's read if the writer has read the word in between (tokio-rs/loom issues 166 and 392), as
/// every exchange here does. Calls that all write one word first are run in every order, and from
/// the other order loom finds the same race.
#[derive(Clone, Default)]
struct Turns(Arc<AtomicU64>);

impl Turns {
    fn take(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn spawn<R: 'static>(&self, run: impl FnOnce(&Self) -> R + 'static) -> JoinHandle<R> {
        let turns = self.clone();
        thread::spawn(move || {
            turns.take();
            run(&turns)
        })
    }
}

fn pool<const N: usize>(capacity: u32) -> (Pool, [WorkerId; N]) {
    let pool = Pool::new(PoolConfig { capacity, ..PoolConfig::default() }).unwrap();
    let workers = std::array::from_fn(|key| pool.add(key as u64, PLAIN).unwrap());
    (pool, workers)
}

const PLAIN: WorkerConfig<'static> =
    WorkerConfig { weight: 1, max_in_flight: 0, vetoes: Vetoes::NONE, fresh: false, label: "" };

fn capped(max_in_flight: u32) -> WorkerConfig<'static> {
    WorkerConfig { max_in_flight, ..PLAIN }
}

fn word(pool: &Pool, worker: WorkerId) -> Word {
    Slot::of(pool.region(), worker.slot()).unwrap().word()
}

fn in_flight(pool: &Pool, worker: WorkerId) -> u32 {
    word(pool, worker).in_flight()
}

fn generation(pool: &Pool, worker: WorkerId) -> u64 {
    Slot::of(pool.region(), worker.slot()).unwrap().generation()
}

fn load(worker: WorkerId, tokens: u64) -> Load {
    Load { worker, tokens, running: None, waiting: None, timestamp: None }
}

fn by(policy: Policy) -> Request<'static> {
    Request { policy: Some(policy), ..Request::default() }
}

/// Leaves no choice but this worker.
fn only(worker: &WorkerId) -> Request<'_> {
    Request { candidates: Some(std::slice::from_ref(worker)), ..Request::default() }
}

// The benign races.

#[test]
fn r1_two_picks_at_once_may_return_one_worker() {
    let same = Counter::default();
    let apart = Counter::default();
    let (seen_same, seen_apart) = (same.clone(), apart.clone());
    model(None, move || {
        let (pool, workers) = pool::<2>(2);
        let begin_picked = |pool: &Pool, mut picker: Picker| {
            let worker = picker.pick(&Request::default()).unwrap();
            let _ = pool.begin(worker, 0).unwrap();
            worker
        };
        // The same draws, so that they break a tie alike.
        let pickers = [1, 1].map(|seed| pool.picker(seed).unwrap());
        let [one, other] = pickers;
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| begin_picked(&pool, one)
        });
        turns.take();
        let chosen = [begin_picked(&pool, other), thread.join().unwrap()];
        for worker in workers {
            let times = chosen.iter().filter(|&&chosen| chosen == worker).count();
            assert_eq!(in_flight(&pool, worker) as usize, times);
        }
        seen_same.add_if(chosen[0] == chosen[1]);
        seen_apart.add_if(chosen[0] != chosen[1]);
    });
    same.assert_reached();
    apart.assert_reached();
}

#[test]
fn r2_a_choice_may_compare_a_count_that_a_finish_has_lowered() {
    let lowered = Counter::default();
    let seen = lowered.clone();
    model(None, move || {
        let (pool, [a, b]) = pool(2);
        let [on_a, _] = [a, b].map(|worker| pool.begin(worker, 0).unwrap());
        let mut picker = pool.picker(TIES_TO_SECOND).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| pool.finish(on_a).unwrap()
        });
        turns.take();
        let _ = picker.dispatch(&Request::default()).unwrap();
        thread.join().unwrap();
        let counts = [a, b].map(|worker| in_flight(&pool, worker));
        // One further apart than without the finish.
        assert!(counts == [1, 1] || counts == [0, 2], "{counts:?}");
        seen.add_if(counts == [0, 2]);
    });
    lowered.assert_reached();
}

/// With this seed a picker's first tie of two goes to the second.
const TIES_TO_SECOND: u64 = 2;

#[test]
fn r3_a_pick_may_pair_a_worker_with_another_reports_load() {
    let mixed = Counter::default();
    let seen = mixed.clone();
    overlapping_publishes(move |picker, request, [a, b]| {
        let chosen = picker.pick(request).unwrap();
        assert!(chosen == a || chosen == b);
        seen.add_if(chosen == b);
    });
    mixed.assert_reached();
}

#[test]
fn r3_a_dispatch_uses_one_report_as_a_whole() {
    overlapping_publishes(|picker, request, [a, _]| {
        assert_eq!(picker.dispatch(request).unwrap().worker(), a);
    });
}

/// Makes a choice by reports in each of which worker a has fewer tokens than b.
fn overlapping_publishes(
    choose: impl Fn(&mut Picker, &Request<'_>, [WorkerId; 2]) + Send + Sync + 'static,
) {
    model(2, move || {
        let (pool, [a, b]) = pool(2);
        let report = move |n: u64| [load(a, 10 * n), load(b, 10 * n + 5)];
        pool.publish(&report(0)).unwrap();
        let mut picker = pool.picker(1).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn(move |_| {
            for n in 1..4 {
                pool.publish(&report(n)).unwrap();
            }
        });
        turns.take();
        // With a list: without, a pick has one try more, which these publishes can't overtake too.
        let nobody = [WorkerId::from_raw(1)];
        let policy = Some(Policy::PowerOfTwoTokens);
        let by_tokens = Request { policy, excluded: &nobody, ..Request::default() };
        choose(&mut picker, &by_tokens, [a, b]);
        thread.join().unwrap();
    });
}

#[test]
fn r4_a_pick_may_return_a_worker_that_is_removed_meanwhile() {
    let removed = Counter::default();
    let seen = removed.clone();
    model(None, move || {
        let (pool, [a]) = pool(1);
        let mut picker = pool.picker(1).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| pool.remove(a).unwrap()
        });
        turns.take();
        match picker.pick(&Request::default()) {
            Ok(chosen) => {
                assert_eq!(chosen, a);
                seen.add_if(word(&pool, a).is_closed());
            }
            Err(error) => assert_eq!(error, Error::Empty),
        }
        thread.join().unwrap();
    });
    removed.assert_reached();
}

#[test]
fn r4_no_dispatch_lands_on_a_worker_once_remove_has_returned() {
    model(None, || {
        let (pool, [a]) = pool(1);
        let mut picker = pool.picker(1).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn(move |_| picker.dispatch(&Request::default()).is_ok());
        turns.take();
        pool.remove(a).unwrap();
        let counted = in_flight(&pool, a);
        assert_eq!(u32::from(thread.join().unwrap()), counted);
        assert_eq!(in_flight(&pool, a), counted);
    });
}

#[test]
fn r4_a_dispatch_counts_a_successor_for_an_instant_at_most() {
    let counted = Counter::default();
    let seen = counted.clone();
    model(3, move || {
        let (pool, [a]) = pool(1);
        let mut picker = pool.picker(1).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn(move |_| picker.dispatch(&only(&a)));
        // The tag has one bit, so the second to come after a has a's.
        let successor = [1, 2].into_iter().try_fold(a, |worker, key| {
            turns.take();
            pool.remove(worker).unwrap();
            turns.take();
            pool.add(key, PLAIN)
        });
        if let Ok(successor) = successor {
            seen.add_if(in_flight(&pool, successor) == 1);
        }
        match thread.join().unwrap() {
            Ok(ticket) => {
                assert_eq!(ticket.worker(), a);
                assert_eq!(generation(&pool, a), a.generation());
                assert_eq!(in_flight(&pool, a), 1);
            }
            Err(error) => {
                assert_eq!(error, Error::Empty);
                assert_eq!(in_flight(&pool, a), 0);
            }
        }
    });
    counted.assert_reached();
}

#[test]
fn r5_a_finish_after_remove_lands_on_the_draining_worker() {
    model(None, || {
        let (pool, [a]) = pool(1);
        let ticket = pool.begin(a, 7).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| pool.finish(ticket).unwrap()
        });
        turns.take();
        pool.remove(a).unwrap();
        turns.take();
        let successor = pool.add(1, PLAIN);
        thread.join().unwrap();
        assert_eq!(in_flight(&pool, a), 0);
        let totals = pool.totals().unwrap();
        assert_eq!((totals.draining, totals.finished, totals.anomalies), (0, 1, 0));
        match successor {
            Ok(_) => assert_eq!(pool.stats().unwrap()[0].finished, 0),
            Err(error) => assert_eq!(error, Error::Full { capacity: 1 }),
        }
    });
}

#[test]
fn r6_of_two_threads_that_finish_one_ticket_one_succeeds() {
    model(None, || {
        let (pool, [a]) = pool(1);
        let [_, ticket] = [3, 4].map(|tokens| pool.begin(a, tokens).unwrap());
        let shared = Arc::new(AtomicU64::new(ticket.worker().raw()));
        let turns = Turns::default();
        let finish = |pool: &Pool, shared: &AtomicU64| end_shared(pool.region(), shared, 4).is_ok();
        let thread = turns.spawn({
            let (pool, shared) = (pool.clone(), shared.clone());
            move |_| finish(&pool, &shared)
        });
        turns.take();
        let one = finish(&pool, &shared);
        assert_ne!(one, thread.join().unwrap());
        assert_eq!(shared.load(Ordering::Relaxed), 0);
        assert_eq!((word(&pool, a).in_flight(), word(&pool, a).tokens()), (1, 3));
        let totals = pool.totals().unwrap();
        assert_eq!((totals.finished, totals.anomalies), (1, 1));
    });
}

#[test]
fn r7_a_dispatch_is_in_a_polls_mark_or_after_it() {
    let [marked, after] = [(); 2].map(|()| Counter::default());
    let (seen_marked, seen_after) = (marked.clone(), after.clone());
    model(None, move || {
        let (pool, [a]) = pool(1);
        let mut picker = pool.picker(1).unwrap();
        let mut poll = pool.poll(None);
        let turns = Turns::default();
        let thread = turns.spawn(move |_| {
            let _ = picker.dispatch(&Request { tokens: 5, ..Request::default() }).unwrap();
        });
        turns.take();
        poll.begin().unwrap();
        poll.publish(&[load(a, 100)]).unwrap();
        thread.join().unwrap();
        let live = pool.stats().unwrap()[0].live_tokens;
        assert!(live == 100 || live == 105, "{live}");
        seen_marked.add_if(live == 100);
        seen_after.add_if(live == 105);
    });
    marked.assert_reached();
    after.assert_reached();
}

#[test]
fn r8_of_two_reports_the_one_whose_poll_began_later_stays_whole() {
    model(2, || {
        let (pool, [a, b]) = pool(2);
        let report = move |n: u32| {
            let of = |worker| Load {
                worker,
                tokens: u64::from(n) * 10,
                running: Some(n),
                waiting: Some(n),
                timestamp: Some(n.into()),
            };
            [of(a), of(b)]
        };
        let [mut earlier, mut later] = [(); 2].map(|()| pool.poll(None));
        earlier.begin().unwrap();
        let _ = pool.begin(a, 5).unwrap();
        later.begin().unwrap();
        let turns = Turns::default();
        let publisher = turns.spawn(move |_| earlier.publish(&report(1)).unwrap());
        let chooser = turns.spawn({
            let pool = pool.clone();
            move |_| {
                let view = View::newest(pool.region());
                let tokens = [0, 1].map(|position| view.tokens(position));
                assert!(!view.is_whole() || tokens[0] == tokens[1], "{tokens:?}");
            }
        });
        turns.take();
        assert_eq!(later.publish(&report(2)), Ok(0));
        publisher.join().unwrap();
        chooser.join().unwrap();
        for stats in pool.stats().unwrap() {
            let load = stats.load.unwrap();
            assert_eq!((load.tokens, load.running, load.waiting), (20, Some(2), Some(2)));
            assert_eq!((load.timestamp, stats.live_tokens), (Some(2), 20));
        }
    });
}

#[test]
fn r9_of_two_dispatches_for_the_last_place_one_gets_it() {
    for policy in [Policy::LeastRequests, Policy::Balanced, Policy::ConsistentHashing] {
        r9_by(policy);
    }
}

fn r9_by(policy: Policy) {
    model(None, move || {
        let (pool, []) = pool(1);
        let a = pool.add(0, capped(2)).unwrap();
        let _ = pool.begin(a, 0).unwrap();
        let mut picker = pool.picker(1).unwrap();
        let turns = Turns::default();
        let dispatch = turns.spawn(move |_| picker.dispatch(&by(policy)).map(drop));
        let begin = turns.spawn({
            let pool = pool.clone();
            move |_| pool.begin(a, 0).map(drop)
        });
        assert!(in_flight(&pool, a) <= 2);
        let both = [dispatch.join().unwrap(), begin.join().unwrap()];
        assert!(both == [Ok(()), Err(Error::Saturated)] || both == [Err(Error::Saturated), Ok(())]);
        assert_eq!(in_flight(&pool, a), 2);
    });
}

#[test]
fn r10_live_tokens_err_by_what_began_and_ended_before_the_engines_sample() {
    let [high, low] = [(); 2].map(|()| Counter::default());
    let (seen_high, seen_low) = (high.clone(), low.clone());
    model(None, move || {
        let (pool, [a]) = pool(1);
        let ended = pool.begin(a, 3).unwrap();
        let engine = Arc::new(AtomicU64::new(103));
        let mut poll = pool.poll(None);
        let turns = Turns::default();
        let thread = turns.spawn({
            let (pool, engine) = (pool.clone(), engine.clone());
            move |turns| {
                let _ = pool.begin(a, 5).unwrap();
                engine.fetch_add(5, Ordering::Relaxed);
                turns.take();
                engine.fetch_sub(3, Ordering::Relaxed);
                pool.finish(ended).unwrap();
            }
        });
        turns.take();
        poll.begin().unwrap();
        turns.take();
        let sample = engine.load(Ordering::Relaxed);
        poll.publish(&[load(a, sample)]).unwrap();
        thread.join().unwrap();
        let truth = engine.load(Ordering::Relaxed) as i64;
        let error = pool.stats().unwrap()[0].live_tokens as i64 - truth;
        assert!((-8..=5).contains(&error), "{error}");
        seen_high.add_if(error > 0);
        seen_low.add_if(error < 0);
    });
    high.assert_reached();
    low.assert_reached();
}

// What is exact.

#[test]
fn dispatches_by_least_requests_stay_within_one() {
    dispatches_stay_within_one(by(Policy::LeastRequests));
}

#[test]
fn dispatches_by_least_tokens_stay_within_the_tokens_of_one() {
    dispatches_stay_within_one(Request { tokens: 7, ..by(Policy::LeastTokens) });
}

#[test]
fn dispatches_by_balanced_stay_within_the_cost_of_one() {
    dispatches_stay_within_one(Request { tokens: 7, ..by(Policy::Balanced) });
}

/// One thread adds up the counts, and then the other has its requests counted: the bound of before
/// is reached by both workers.
#[test]
fn dispatches_by_consistent_hashing_stay_within_the_bound() {
    model(2, || {
        let (pool, [a, b]) = pool(2);
        pool.tune(Tuning { hash_load_factor: 100, ..Tuning::default() }).unwrap();
        let turns = Turns::default();
        let threads = [1, 3].map(|requests| {
            let mut picker = pool.picker(1).unwrap();
            turns.spawn(move |_| {
                for _ in 0..requests {
                    let _ = picker.dispatch(&by(Policy::ConsistentHashing)).unwrap();
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!([a, b].map(|worker| in_flight(&pool, worker)), [2, 2]);
    });
}

fn dispatches_stay_within_one(request: Request<'static>) {
    model(2, move || {
        let (pool, [a, b]) = pool(2);
        pool.tune(Tuning { request_tokens: 5, ..Tuning::default() }).unwrap();
        let turns = Turns::default();
        let threads = [1, 1].map(|seed| {
            let mut picker = pool.picker(seed).unwrap();
            turns.spawn(move |_| drop(picker.dispatch(&request).unwrap()))
        });
        // Counts that only grow and are the same before and after were so in between.
        let seen = [a, b, a].map(|worker| in_flight(&pool, worker));
        assert!(seen[0] != seen[2] || seen[0].abs_diff(seen[1]) <= 1, "{seen:?}");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!([a, b].map(|worker| in_flight(&pool, worker)), [1, 1]);
    });
}

#[test]
fn a_finish_and_an_abandon_count_a_request_once_and_no_successors() {
    model(3, || {
        let (pool, [a]) = pool(1);
        let ticket = pool.begin(a, 7).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| pool.finish(ticket).is_ok()
        });
        turns.take();
        pool.abandon(a).unwrap();
        turns.take();
        let b = pool.add(1, PLAIN).unwrap();
        let _ = pool.begin(b, 0).unwrap();
        let finished = u64::from(thread.join().unwrap());
        let totals = pool.totals().unwrap();
        assert_eq!((totals.finished, totals.abandoned), (finished, 1 - finished));
        assert_eq!(totals.anomalies, 1 - finished);
        assert_eq!(in_flight(&pool, b), 1);
    });
}

#[test]
fn a_dispatch_and_an_abandon_count_a_request_once_and_no_successors() {
    model(3, || {
        let (pool, [a]) = pool(1);
        let mut picker = pool.picker(1).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn(move |_| picker.dispatch(&only(&a)).is_ok());
        turns.take();
        pool.abandon(a).unwrap();
        turns.take();
        let b = pool.add(1, PLAIN).unwrap();
        let _ = pool.begin(b, 0).unwrap();
        let dispatched = thread.join().unwrap();
        assert!(!dispatched || pool.totals().unwrap().abandoned == 1);
        assert_eq!(in_flight(&pool, b), 1);
    });
}

/// The twin of R4: the tag has one bit, so a's second successor has the tag of its ticket.
#[test]
fn a_stale_finish_takes_a_successors_request_only_if_the_tag_went_round_meanwhile() {
    let taken = Counter::default();
    let seen = taken.clone();
    model(3, move || {
        let (pool, [a]) = pool(1);
        let ticket = pool.begin(a, 0).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| pool.finish(ticket).is_ok()
        });
        let mut last = a;
        for key in [1, 2] {
            turns.take();
            pool.abandon(last).unwrap();
            turns.take();
            last = pool.add(key, PLAIN).unwrap();
        }
        let successors = pool.begin(last, 0).unwrap();
        let finished = thread.join().unwrap();
        let totals = pool.totals().unwrap();
        let took = finished && totals.abandoned == 1;
        seen.add_if(took);
        assert_eq!(in_flight(&pool, last), u32::from(!took));
        assert_eq!(pool.finish(successors).is_ok(), !took);
        assert_eq!(in_flight(&pool, last), 0);
    });
    taken.assert_reached();
}

#[test]
fn a_retarget_is_on_both_workers_for_a_moment_and_never_on_none() {
    let both = Counter::default();
    let seen = both.clone();
    model(None, move || {
        let (pool, [a, b]) = pool(2);
        let mut ticket = pool.begin(a, 7).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| pool.retarget(&mut ticket, b).map(|()| ticket.worker())
        });
        turns.take();
        let counts = [a, b].map(|worker| in_flight(&pool, worker));
        assert!(counts[0] + counts[1] >= 1);
        seen.add_if(counts == [1, 1]);
        assert_eq!(thread.join().unwrap(), Ok(b));
        assert_eq!([a, b].map(|worker| word(&pool, worker).tokens()), [0, 7]);
        assert_eq!(pool.totals().unwrap().finished, 0);
    });
    both.assert_reached();
}

#[test]
fn a_retarget_and_an_abandon_leave_the_request_on_one_worker_or_none() {
    model(3, || {
        let (pool, [a, b]) = pool(2);
        let mut ticket = pool.begin(a, 7).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| {
                let moved = pool.retarget(&mut ticket, b);
                assert_eq!(ticket.worker(), if moved.is_ok() { b } else { a });
                moved.is_ok()
            }
        });
        turns.take();
        pool.abandon(a).unwrap();
        turns.take();
        let c = pool.add(2, PLAIN).unwrap();
        assert_eq!(c.slot(), a.slot());
        let moved = thread.join().unwrap();
        assert_eq!([b, c].map(|worker| in_flight(&pool, worker)), [u32::from(moved), 0]);
        let totals = pool.totals().unwrap();
        assert_eq!((totals.abandoned, totals.anomalies), (u64::from(!moved), u64::from(!moved)));
    });
}

#[test]
fn a_worker_added_again_at_its_last_finish_is_revived_or_new() {
    let [revived, new] = [(); 2].map(|()| Counter::default());
    let (seen_revived, seen_new) = (revived.clone(), new.clone());
    model(None, move || {
        let (pool, [a]) = pool(1);
        let ticket = pool.begin(a, 7).unwrap();
        pool.remove(a).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| pool.finish(ticket).unwrap()
        });
        turns.take();
        let again = pool.add(0, PLAIN).unwrap();
        thread.join().unwrap();
        seen_revived.add_if(again == a);
        seen_new.add_if(again != a);
        let stats = pool.stats().unwrap()[0];
        assert_eq!((stats.worker, stats.in_flight, stats.tokens), (again, 0, 0));
        assert_eq!(stats.finished, u64::from(again == a));
        assert_eq!(pool.picker(1).unwrap().pick(&Request::default()), Ok(again));
    });
    revived.assert_reached();
    new.assert_reached();
}

// The edges.

/// Publishes a view whose one worker has this weight, as many tokens, and their mark.
fn publish_triple(pool: &Pool, worker: WorkerId, n: u32) {
    let weight = WorkerConfig { weight: n, ..PLAIN };
    Slot::of(pool.region(), worker.slot()).unwrap().set_config(Config::of(&weight));
    for field in [record::LOAD_TOKENS, record::LOAD_MARK] {
        pool.region().record(worker.slot())[field].store(n.into(), Ordering::Relaxed);
    }
    snapshot::publish(pool.region(), 0);
}

/// What a choice reads of such a view.
fn read_triple(view: &View<'_>, worker: WorkerId) -> [u64; 3] {
    assert!(view.len() == 1 && view.id(0) == worker);
    [view.weight(0), view.tokens(0), view.marks()[0].load(Ordering::Relaxed)]
}

#[test]
fn e1_a_choice_sees_all_of_the_view_whose_version_it_sees() {
    model(None, || {
        let (pool, [a]) = pool(1);
        publish_triple(&pool, a, 1);
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| publish_triple(&pool, a, 2)
        });
        turns.take();
        let view = View::newest(pool.region());
        let read = read_triple(&view, a);
        assert!(view.is_whole());
        assert!(read == [1; 3] || read == [2; 3], "{read:?}");
        thread.join().unwrap();
    });
}

#[test]
fn e2_a_view_that_is_overwritten_while_it_is_read_does_not_pass_for_whole() {
    let torn = Counter::default();
    let seen = torn.clone();
    model(3, move || {
        let (pool, [a]) = pool(1);
        publish_triple(&pool, a, 1);
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| (2..5).for_each(|n| publish_triple(&pool, a, n))
        });
        turns.take();
        let view = View::newest(pool.region());
        let read = read_triple(&view, a);
        let is_of_one = read.iter().all(|&word| word == read[0]);
        assert!(!view.is_whole() || is_of_one, "{read:?}");
        seen.add_if(!is_of_one);
        thread.join().unwrap();
    });
    torn.assert_reached();
}

#[test]
fn e3_who_sees_a_worker_open_sees_its_cap() {
    model(None, || {
        let (pool, [a]) = pool(1);
        pool.remove(a).unwrap();
        // The id that the slot's next worker will have, as a host may learn it without a fence.
        let b = WorkerId::new(a.slot(), next_generation(a.generation()));
        begin_twice_while(&pool, b, |pool| assert_eq!(pool.add(1, capped(1)), Ok(b)), 1);
    });
}

#[test]
fn e3_who_sees_a_worker_revived_sees_its_new_cap() {
    model(None, || {
        let (pool, [a]) = pool(1);
        let _ = pool.begin(a, 0).unwrap();
        pool.remove(a).unwrap();
        begin_twice_while(&pool, a, |pool| assert_eq!(pool.add(0, capped(2)), Ok(a)), 2);
    });
}

fn begin_twice_while(pool: &Pool, worker: WorkerId, change: impl FnOnce(&Pool), cap: u32) {
    let turns = Turns::default();
    let thread = turns.spawn({
        let pool = pool.clone();
        move |_| [(); 2].map(|()| pool.begin(worker, 0))
    });
    turns.take();
    change(pool);
    for refused in thread.join().unwrap().into_iter().filter_map(Result::err) {
        assert!(matches!(refused, Error::Saturated | Error::Unknown { .. }));
    }
    assert!(in_flight(pool, worker) <= cap);
}

#[test]
fn e4_who_reuses_a_slot_comes_after_its_last_finish() {
    let reused = Counter::default();
    let seen = reused.clone();
    model(None, move || {
        let (pool, [a]) = pool(1);
        let ticket = pool.begin(a, 0).unwrap();
        pool.remove(a).unwrap();
        // The host's own object for whatever worker has the slot.
        let object = Arc::new(UnsafeCell::new(()));
        let turns = Turns::default();
        let thread = turns.spawn({
            let (pool, object) = (pool.clone(), object.clone());
            move |_| {
                object.with_mut(drop);
                pool.finish(ticket).unwrap();
            }
        });
        turns.take();
        if pool.add(1, PLAIN).is_ok() {
            object.with_mut(drop);
            seen.add();
        }
        thread.join().unwrap();
    });
    reused.assert_reached();
}

#[test]
fn e5_an_owner_of_the_lock_comes_after_the_last_one() {
    let handed_over = Counter::default();
    let seen = handed_over.clone();
    model(None, move || {
        let lock = Arc::new(AtomicU64::new(0));
        let written = Arc::new(UnsafeCell::new(()));
        let write = |lock: &AtomicU64, written: &UnsafeCell<()>| {
            let locked = try_lock(lock, 1).is_some();
            if locked {
                written.with_mut(drop);
                unlock(lock, 0);
            }
            locked
        };
        let turns = Turns::default();
        let thread = turns.spawn({
            let (lock, written) = (lock.clone(), written.clone());
            move |_| write(&lock, &written)
        });
        turns.take();
        let one = write(&lock, &written);
        let other = thread.join().unwrap();
        assert!(one || other);
        seen.add_if(one && other);
    });
    handed_over.assert_reached();
}

#[test]
fn e6_a_worker_replaced_by_another_never_leaves_a_choice_without_one() {
    model(3, || {
        let (pool, [a]) = pool(2);
        let mut picker = pool.picker(1).unwrap();
        let turns = Turns::default();
        let thread = turns.spawn({
            let pool = pool.clone();
            move |_| pool.set_members(&[(1, None)]).unwrap()
        });
        turns.take();
        let ticket = picker.dispatch(&Request::default()).unwrap();
        thread.join().unwrap();
        let b = pool.find(1).unwrap();
        assert!(ticket.worker() == a || ticket.worker() == b);
        assert_eq!(in_flight(&pool, ticket.worker()), 1);
    });
}
