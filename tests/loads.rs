//! Cases 29 to 36: what engines report, and what is counted since.

mod common;

use common::*;
use evenkeel::{Error, Load, Policy, Pool, PoolConfig, Request, WorkerConfig, WorkerId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const LEAST: Policy = Policy::LeastRequests;

fn tokens(pool: &Pool, worker: WorkerId) -> Option<u64> {
    stats_of(pool, worker).expect("known").load.map(|load| load.tokens)
}

fn live_tokens(pool: &Pool, worker: WorkerId) -> u64 {
    stats_of(pool, worker).expect("known").live_tokens
}

fn rejected(pool: &Pool) -> u64 {
    pool.totals().unwrap().rejected_loads
}

fn stamped(worker: WorkerId, tokens: u64, timestamp: u64) -> Load {
    Load { timestamp: Some(timestamp), ..load(worker, tokens) }
}

/// More than the ages below, by far: choices read a clock of the last timer tick, which a busy machine
/// delays.
const TOO_LONG: Duration = Duration::from_millis(150);

#[test]
fn case_29_none_is_not_zero() {
    let (pool, workers) = pool_of(3);
    let [a, b, c] = workers[..] else { unreachable!() };
    hold(&pool, b, 5);
    hold(&pool, c, 5);
    report(&pool, &[(b, 0), (c, 100)]);
    let mut picker = pool.picker(29).unwrap();
    let mut picks = || tally(&workers, 1000, || picker.pick(&by(LEAST)).unwrap());
    // a is idle, but nobody knows what else it does; at a reported 0 one does.
    assert_eq!(picks(), [0, 1000, 0]);
    report(&pool, &[(c, 100)]);
    assert_eq!(picks(), [0, 0, 1000]);
    report(&pool, &[]);
    assert_eq!(picks(), [1000, 0, 0]);
    report(&pool, &[(a, u64::MAX - 1), (b, 0)]);
    assert_eq!(picks(), [1000, 0, 0]);
    assert_eq!([a, b, c].map(|worker| tokens(&pool, worker)), [Some(u64::MAX - 1), Some(0), None]);
}

/// While only some have a load, the idle one without gets nothing, dispatch after dispatch.
#[test]
fn case_29_the_unreported_wait() {
    let (pool, workers) = pool_of(3);
    report(&pool, &[(workers[1], 0), (workers[2], 100)]);
    for _ in 0..1000 {
        let _ = pool.dispatch(&by(LEAST)).unwrap();
    }
    assert_eq!(counts(&pool), [0, 500, 500]);
}

#[test]
fn case_30_absent_from_the_next_report() {
    let (pool, workers) = pool_of(2);
    report(&pool, &[(workers[0], 0), (workers[1], 50)]);
    report(&pool, &[(workers[1], 50)]);
    assert_eq!((tokens(&pool, workers[0]), tokens(&pool, workers[1])), (None, Some(50)));

    let mut poll = pool.poll(None);
    for covered in [[0].as_slice(), &[0, 1], &[1], &[]] {
        poll.begin().unwrap();
        let loads: Vec<_> = covered.iter().map(|&at| load(workers[at], 7)).collect();
        assert_eq!(poll.publish(&loads), Ok(0));
        for (at, &worker) in workers.iter().enumerate() {
            assert_eq!(tokens(&pool, worker), covered.contains(&at).then_some(7));
        }
    }
}

#[test]
fn case_31_tokens_are_never_compared_with_requests() {
    let (pool, workers) = pool_of(2);
    let [a, b] = workers[..] else { unreachable!() };
    hold(&pool, a, 5);
    hold(&pool, b, 50);
    report(&pool, &[(a, 50_000)]);
    let mut picker = pool.picker(31).unwrap();
    let mut picks = || {
        let request = by(Policy::PowerOfTwoTokens);
        tally(&workers, 1000, || picker.pick(&request).unwrap())
    };
    assert_eq!(picks(), [1000, 0]);
    report(&pool, &[(b, 1)]);
    assert_eq!(picks(), [1000, 0]);
    report(&pool, &[(a, 50_000), (b, 1)]);
    assert_eq!(picks(), [0, 1000]);
}

#[test]
fn case_32_bad_entries_are_rejected_one_by_one() {
    let (pool, workers) = pool_of(4);
    let [a, b, c, gone] = workers[..] else { unreachable!() };
    pool.remove(gone).unwrap();
    report(&pool, &[(a, 1), (b, 2), (c, 3)]);
    let loads = [
        load(a, 10),
        load(b, u64::MAX),
        load(gone, 20),
        load(a, 11),
        load(WorkerId::from_raw(0), 30),
        load(c, 40),
        load(WorkerId::from_raw(u64::MAX), 50),
        load(c, u64::MAX),
    ];
    assert_eq!(pool.publish(&loads), Ok(6));
    // The first of duplicates stays; what is no number is no load, and not the old one either.
    assert_eq!([a, b, c].map(|worker| tokens(&pool, worker)), [Some(10), None, Some(40)]);

    let mut poll = pool.poll(Some(&[b, gone, b]));
    poll.begin().unwrap();
    let loads = [load(a, 60), load(b, 70), load(c, 80), load(b, 71), load(gone, 90)];
    assert_eq!(poll.publish(&loads), Ok(4));
    assert_eq!([a, b, c].map(|worker| tokens(&pool, worker)), [Some(10), Some(70), Some(40)]);
    assert_eq!(rejected(&pool), 6 + 4);
}

#[test]
fn case_32_an_empty_report_clears_its_own() {
    let (pool, workers) = pool_of(4);
    report(&pool, &workers.iter().map(|&worker| (worker, 9)).collect::<Vec<_>>());
    let loads = || workers.iter().map(|&worker| tokens(&pool, worker)).collect::<Vec<_>>();
    let mut poll = pool.poll(Some(&workers[1..3]));
    poll.begin().unwrap();
    assert_eq!(poll.publish(&[]), Ok(0));
    assert_eq!(loads(), [Some(9), None, None, Some(9)]);
    assert_eq!(pool.publish(&[]), Ok(0));
    assert_eq!(loads(), [None; 4]);
    // One that covers nobody clears nobody.
    report(&pool, &[(workers[0], 9)]);
    let mut poll = pool.poll(Some(&[]));
    poll.begin().unwrap();
    assert_eq!(poll.publish(&[load(workers[0], 1)]), Ok(1));
    assert_eq!(loads(), [Some(9), None, None, None]);
}

/// What choices do by it is told apart by a busy worker that alone had a load.
#[test]
fn case_33_too_old_is_none() {
    let config = PoolConfig { load_max_age_ms: 1, ..PoolConfig::default() };
    let pool = Pool::new(config).unwrap();
    let [busy, idle] = [0, 1].map(|key| add(&pool, key));
    hold(&pool, busy, 3);
    let expired = |load: Load| {
        assert_eq!(pool.publish(&[load]), Ok(0));
        thread::sleep(TOO_LONG);
        assert_eq!(stats_of(&pool, load.worker).unwrap().load, None);
        assert_eq!(pool.pick(&by(LEAST)), Ok(idle));
    };
    expired(load(busy, 100));
    expired(stamped(busy, 100, 7));
    // Nothing new is no younger.
    assert_eq!(pool.publish(&[stamped(busy, 100, 7)]), Ok(0));
    assert_eq!(stats_of(&pool, busy).unwrap().load, None);
    assert_eq!(pool.pick(&by(LEAST)), Ok(idle));
    // Age counts from the begin of the poll.
    let mut poll = pool.poll(None);
    poll.begin().unwrap();
    thread::sleep(TOO_LONG);
    assert_eq!(poll.publish(&[load(busy, 100)]), Ok(0));
    assert_eq!(stats_of(&pool, busy).unwrap().load, None);
    assert_eq!(pool.pick(&by(LEAST)), Ok(idle));
    // In power_of_two, too, the tokens of one that is too old are none.
    let picks = tally(&[busy, idle], 100, || pool.pick(&by(Policy::PowerOfTwoTokens)).unwrap());
    assert_eq!(picks, [0, 100]);
}

#[test]
fn case_33_each_worker_has_its_own_age() {
    let config = PoolConfig { load_max_age_ms: 20, ..PoolConfig::default() };
    let pool = Pool::new(config).unwrap();
    let [old, young, _idle] = [0, 1, 2].map(|key| add(&pool, key));
    hold(&pool, young, 3);
    let mut polls = [old, young].map(|worker| pool.poll(Some(&[worker])));
    loop {
        polls[0].begin().unwrap();
        assert_eq!(polls[0].publish(&[load(old, 1)]), Ok(0));
        thread::sleep(TOO_LONG);
        polls[1].begin().unwrap();
        assert_eq!(polls[1].publish(&[load(young, 1)]), Ok(0));
        let picked = pool.pick(&by(LEAST));
        assert_eq!(tokens(&pool, old), None);
        // If it is young still, it was when picked from.
        if tokens(&pool, young) == Some(1) {
            assert_eq!(picked, Ok(young));
            return;
        }
    }
}

#[test]
fn case_33_young_enough_or_without_a_limit_it_stays() {
    for load_max_age_ms in [0, 3_600_000, u64::MAX] {
        let pool = Pool::new(PoolConfig { load_max_age_ms, ..PoolConfig::default() }).unwrap();
        let [busy, _] = [0, 1].map(|key| add(&pool, key));
        hold(&pool, busy, 3);
        report(&pool, &[(busy, 100)]);
        thread::sleep(TOO_LONG);
        let load = stats_of(&pool, busy).unwrap().load.unwrap();
        assert!(load.tokens == 100 && load.age_ms >= 20);
        assert_eq!(pool.pick(&by(LEAST)), Ok(busy));
    }
}

#[test]
fn case_33_the_poll_begun_later_stays() {
    let (pool, workers) = pool_of(2);
    let [a, b] = workers[..] else { unreachable!() };
    let mut early = pool.poll(Some(&workers));
    let mut late = pool.poll(Some(&[a]));
    early.begin().unwrap();
    late.begin().unwrap();
    assert_eq!(late.publish(&[load(a, 7)]), Ok(0));
    assert_eq!(early.publish(&[load(a, 1), load(b, 2)]), Ok(1));
    assert_eq!((tokens(&pool, a), tokens(&pool, b)), (Some(7), Some(2)));

    // Absence is a report like any other: of the late one it stays, of the early one it doesn't count.
    early.begin().unwrap();
    late.begin().unwrap();
    assert_eq!(late.publish(&[]), Ok(0));
    assert_eq!(early.publish(&[load(a, 1)]), Ok(1));
    assert_eq!((tokens(&pool, a), tokens(&pool, b)), (None, None));
    early.begin().unwrap();
    late.begin().unwrap();
    assert_eq!(late.publish(&[load(a, 8)]), Ok(0));
    assert_eq!(early.publish(&[]), Ok(0));
    assert_eq!(tokens(&pool, a), Some(8));

    // A report of the whole pool counts as begun at its publication.
    early.begin().unwrap();
    report(&pool, &[(a, 9)]);
    assert_eq!(early.publish(&[load(a, 1), load(b, 1)]), Ok(2));
    assert_eq!((tokens(&pool, a), tokens(&pool, b)), (Some(9), None));
    // A poll begun anew is begun now.
    early.begin().unwrap();
    late.begin().unwrap();
    early.begin().unwrap();
    assert_eq!(late.publish(&[load(a, 10)]), Ok(0));
    assert_eq!(early.publish(&[load(a, 11)]), Ok(0));
    assert_eq!(tokens(&pool, a), Some(11));
    assert_eq!(rejected(&pool), 4);
}

#[test]
fn case_33_a_poll_is_published_once_for_each_begin() {
    let (pool, workers) = pool_of(1);
    let mut poll = pool.poll(None);
    let loads = [load(workers[0], 5)];
    assert!(matches!(poll.publish(&loads), Err(Error::Invalid(_))));
    assert_eq!(tokens(&pool, workers[0]), None);
    poll.begin().unwrap();
    assert_eq!(poll.publish(&loads), Ok(0));
    assert!(matches!(poll.publish(&[]), Err(Error::Invalid(_))));
    assert_eq!(tokens(&pool, workers[0]), Some(5));
}

/// Who is asked about is settled at the begin.
#[test]
fn case_33_members_change_while_a_poll_is_under_way() {
    let (pool, workers) = pool_of(3);
    let [a, gone, back] = workers[..] else { unreachable!() };
    hold(&pool, back, 1);
    report(&pool, &workers.iter().map(|&worker| (worker, 1)).collect::<Vec<_>>());
    let mut poll = pool.poll(None);
    poll.begin().unwrap();
    pool.remove(gone).unwrap();
    let successor = add(&pool, 3);
    pool.remove(back).unwrap();
    assert_eq!(pool.add(2, WorkerConfig::default()), Ok(back));
    assert_eq!(successor.slot(), gone.slot());
    let loads = [a, gone, successor, back].map(|worker| load(worker, 10));
    assert_eq!(poll.publish(&loads), Ok(2));
    assert_eq!(
        [a, successor, back].map(|worker| tokens(&pool, worker)),
        [Some(10), None, Some(10)]
    );
    // The next begin covers it.
    poll.begin().unwrap();
    assert_eq!(poll.publish(&loads), Ok(1));
    assert_eq!(tokens(&pool, successor), Some(10));
}

#[test]
fn case_33_the_stored_timestamp_is_nothing_new() {
    let (pool, workers) = pool_of(1);
    let worker = workers[0];
    let mut poll = pool.poll(None);
    let mut round = |dispatched: u32, tokens: u64, timestamp: Option<u64>| {
        poll.begin().unwrap();
        let _ = pool.begin(worker, dispatched).unwrap();
        let load = Load { timestamp, ..load(worker, tokens) };
        assert_eq!(poll.publish(&[load]), Ok(0));
        let stats = stats_of(&pool, worker).unwrap();
        (stats.load.unwrap().tokens, stats.live_tokens)
    };
    // Base 100; 10 begun since.
    assert_eq!(round(10, 100, Some(7)), (100, 110));
    // Not 999, and the 20 are credited on top of the old base.
    assert_eq!(round(20, 999, Some(7)), (100, 130));
    // New: of the 60 now in flight, 30 were there at its begin. Smaller stamps are as new.
    assert_eq!(round(30, 1000, Some(6)), (1000, 1030));
    // Without a stamp everything is new, and 0 is none.
    assert_eq!(round(40, 500, Some(0)), (500, 540));
    assert_eq!(round(50, 600, Some(0)), (600, 650));
    assert_eq!(round(60, 700, None), (700, 760));
    assert_eq!(round(70, 800, None), (800, 870));
    assert_eq!(round(80, 800, Some(u64::MAX)), (800, 880));
    assert_eq!(round(90, 900, Some(u64::MAX)), (800, 970));
    // After an absence the old stamp is new again.
    poll.begin().unwrap();
    assert_eq!(poll.publish(&[]), Ok(0));
    poll.begin().unwrap();
    assert_eq!(poll.publish(&[stamped(worker, 5, u64::MAX)]), Ok(0));
    assert_eq!(tokens(&pool, worker), Some(5));
}

/// Nothing new still is the answer of its poll: one begun earlier comes too late after it.
#[test]
fn case_33_nothing_new_outdates_earlier_polls() {
    let (pool, workers) = pool_of(1);
    let [mut early, mut late] = [(); 2].map(|()| pool.poll(None));
    assert_eq!(pool.publish(&[stamped(workers[0], 100, 7)]), Ok(0));
    early.begin().unwrap();
    late.begin().unwrap();
    assert_eq!(late.publish(&[stamped(workers[0], 999, 7)]), Ok(0));
    assert_eq!(early.publish(&[stamped(workers[0], 50, 6)]), Ok(1));
    assert_eq!(tokens(&pool, workers[0]), Some(100));
}

#[test]
fn case_34_a_stale_report_starts_no_herd() {
    let (pool, workers) = pool_of(8);
    let idle: Vec<_> = workers.iter().map(|&worker| (worker, 0)).collect();
    for round in 1..=2 {
        report(&pool, &idle);
        for _ in 0..8 {
            let _ = pool.dispatch(&by(LEAST)).unwrap();
        }
        assert_eq!(counts(&pool), [round; 8]);
    }
}

#[test]
fn case_34_live_tokens_know_what_was_dispatched_meanwhile() {
    let (pool, workers) = pool_of(8);
    let mut poll = pool.poll(None);
    let mut costs = vec![0; 8];
    let mut dispatch = |tokens| {
        let ticket = pool.dispatch(&Request { tokens, ..by(LEAST) }).unwrap();
        costs[ticket.worker().slot()] += u64::from(ticket.tokens());
    };
    poll.begin().unwrap();
    (1..=8).for_each(|at| dispatch(100 * at));
    let idle: Vec<_> = workers.iter().map(|&worker| load(worker, 0)).collect();
    assert_eq!(poll.publish(&idle), Ok(0));
    (1..=8).for_each(&mut dispatch);
    let live: Vec<_> = pool.stats().unwrap().iter().map(|stats| stats.live_tokens).collect();
    assert_eq!(live, costs);
    // The polled ones stay what was polled.
    assert!(workers.iter().all(|&worker| tokens(&pool, worker) == Some(0)));
}

#[test]
fn case_35_credit_since_the_poll() {
    let (pool, workers) = pool_of(2);
    let [a, b] = workers[..] else { unreachable!() };
    let mut tickets: Vec<_> = (0..10).map(|_| pool.begin(a, 100).unwrap()).collect();
    assert_eq!(live_tokens(&pool, a), 1000);
    let mut poll = pool.poll(Some(&[a]));
    poll.begin().unwrap();
    assert_eq!(poll.publish(&[load(a, 1000)]), Ok(0));
    assert_eq!(live_tokens(&pool, a), 1000);
    tickets.extend((0..2).map(|_| pool.begin(a, 100).unwrap()));
    assert_eq!(live_tokens(&pool, a), 1200);
    pool.finish(tickets.remove(0)).unwrap();
    assert_eq!(live_tokens(&pool, a), 1100);
    // Growth and moves are credited like begins and ends.
    pool.grow(&mut tickets[0], 7).unwrap();
    pool.retarget(&mut tickets[1], b).unwrap();
    assert_eq!((live_tokens(&pool, a), live_tokens(&pool, b)), (1007, 100));
    // Never below 0, however little the engine reports of what ends then; nor above the largest.
    poll.begin().unwrap();
    assert_eq!(poll.publish(&[load(a, 50)]), Ok(0));
    tickets.into_iter().for_each(|ticket| pool.finish(ticket).unwrap());
    assert_eq!((live_tokens(&pool, a), live_tokens(&pool, b)), (0, 0));
    let again = pool.begin(a, 1000).unwrap();
    assert_eq!(live_tokens(&pool, a), 50 + 1000 - 1007);
    poll.begin().unwrap();
    assert_eq!(poll.publish(&[load(a, u64::MAX - 1)]), Ok(0));
    pool.finish(again).unwrap();
    assert_eq!(live_tokens(&pool, a), u64::MAX - 1001);
}

#[test]
fn case_35_polls_of_two_engines_overlap() {
    let (pool, workers) = pool_of(2);
    let [a, b] = workers[..] else { unreachable!() };
    let [mut poll_a, mut poll_b] = [[a], [b]].map(|worker| pool.poll(Some(&worker)));
    let dispatch = |worker, tokens| drop(pool.begin(worker, tokens).unwrap());
    dispatch(a, 1);
    dispatch(b, 2);
    poll_a.begin().unwrap();
    dispatch(a, 10);
    dispatch(b, 20);
    poll_b.begin().unwrap();
    dispatch(a, 100);
    dispatch(b, 200);
    assert_eq!(poll_b.publish(&[load(b, 22)]), Ok(0));
    assert_eq!(live_tokens(&pool, b), 222);
    assert_eq!(poll_a.publish(&[load(a, 1)]), Ok(0));
    assert_eq!((live_tokens(&pool, a), live_tokens(&pool, b)), (111, 222));
    dispatch(b, 2000);
    poll_a.begin().unwrap();
    assert_eq!(poll_a.publish(&[load(a, 111)]), Ok(0));
    assert_eq!((live_tokens(&pool, a), live_tokens(&pool, b)), (111, 2222));
}

/// A report counts as a whole: some have the first half alone, some the second half alone, and
/// so no dispatch finds neither with a load, which would let the idle one compete. Publishing
/// neither waits for those that choose nor they for it, also on the thread that holds a picker.
#[test]
fn case_36_publish_beside_choices() {
    let (pool, mut workers) = pool_of(513);
    let idle = workers.pop().unwrap();
    workers.iter().for_each(|&worker| hold(&pool, worker, 1));
    let half = |at: usize| workers[at * 256..][..256].iter().map(|&worker| load(worker, 1));
    let halves = [0, 1].map(|at| half(at).collect::<Vec<_>>());
    assert_eq!(pool.publish(&halves[1]), Ok(0));
    let (done, line) = (AtomicBool::new(false), StartingLine::new(4));
    thread::scope(|scope| {
        for seed in 1..=3 {
            let (pool, done, line) = (&pool, &done, &line);
            scope.spawn(move || {
                let mut picker = pool.picker(seed).unwrap();
                line.wait();
                while !done.load(Ordering::Relaxed) {
                    let ticket = picker.dispatch(&by(LEAST)).unwrap();
                    assert_ne!(ticket.worker(), idle);
                    pool.finish(ticket).unwrap();
                }
            });
        }
        let _until = Until(&done);
        line.wait();
        let mut own = pool.picker(36).unwrap();
        for round in 0..60_000 {
            // Four at a time, as many as the ring has buffers: each is overwritten by the other half.
            assert_eq!(pool.publish(&halves[round / 4 % 2]), Ok(0));
            if round % 16 == 0 {
                pool.finish(own.dispatch(&by(LEAST)).unwrap()).unwrap();
            }
        }
    });
    let all_held = counts(&pool);
    assert_eq!((all_held[..512].to_vec(), all_held[512], rejected(&pool)), (vec![1; 512], 0, 0));
}

#[test]
fn case_36_a_million_publishes_leave_memory_flat() {
    let pool = Pool::new(PoolConfig { capacity: 4, ..PoolConfig::default() }).unwrap();
    let workers = [0, 1].map(|key| add(&pool, key));
    let mut picker = pool.picker(36).unwrap();
    let mut poll = pool.poll(Some(&workers));
    let before = heap();
    for round in 0..500_000 {
        assert_eq!(pool.publish(&[load(workers[0], round)]), Ok(0));
        poll.begin().unwrap();
        assert_eq!(poll.publish(&[load(workers[1], round)]), Ok(0));
        if round % 1000 == 0 {
            assert_eq!(picker.pick(&by(LEAST)), Ok(workers[1]));
        }
    }
    assert_eq!(heap(), before);
    assert_eq!(pool.totals().unwrap().version, 2 + 1_000_000);
}
