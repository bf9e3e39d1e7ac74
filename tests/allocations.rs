//! What a pool allocates: one block of a stated size when it is made, and nothing where requests
//! and reports come and go.

use evenkeel::{
    Error, Load, Picker, Policy, Poll, Pool, PoolConfig, Request, Tuning, WorkerConfig, WorkerId,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread;

/// Bytes that a pool of this capacity allocates for its workers.
const BYTES: [(u32, usize); 3] = [(8, 6_912), (64, 45_184), (1_024, 705_664)];

/// Counts for each thread on its own, so that tests that run side by side don't disturb each other.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Clone, Copy)]
struct Counts {
    /// Allocations and frees.
    calls: u64,
    live_bytes: isize,
    /// The largest allocation so far.
    largest: usize,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { calls: 0, live_bytes: 0, largest: 0 }) };
}

fn count(bytes: isize) {
    let Counts { calls, live_bytes, largest } = COUNTS.get();
    let largest = largest.max(bytes.max(0) as usize);
    COUNTS.set(Counts { calls: calls + 1, live_bytes: live_bytes + bytes, largest });
}

// SAFETY: all is the system allocator's; counting allocates nothing. (The provided methods come
// back to these two.)
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: what the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: what the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// How often this thread allocates or frees while it runs.
fn calls<R>(run: impl FnOnce() -> R) -> (u64, R) {
    let before = COUNTS.get().calls;
    let result = run();
    (COUNTS.get().calls - before, result)
}

#[track_caller]
fn allocates_nothing<R>(what: &str, run: impl FnOnce() -> R) -> R {
    let (calls, result) = calls(run);
    assert_eq!(calls, 0, "allocations and frees of {what}");
    result
}

/// A pool of so many workers, and what its user has made beforehand.
struct Fixture {
    pool: Pool,
    picker: Picker,
    ids: Vec<WorkerId>,
    loads: Vec<Load>,
    polls: [Poll; 2],
}

impl Fixture {
    fn new(workers: u32, tuning: Tuning) -> Self {
        let capacity = workers + 1;
        let pool = Pool::new(PoolConfig { capacity, tuning, ..PoolConfig::default() }).unwrap();
        let add = |key| {
            // Weights, caps and loads of all kinds, so that every way through a choice is gone.
            let weight = 1 + key as u32 % 3;
            let max_in_flight = if key % 5 == 0 { 50 } else { 0 };
            pool.add(key, WorkerConfig { weight, max_in_flight, ..WorkerConfig::default() })
                .unwrap()
        };
        let ids: Vec<_> = (0..workers.into()).map(add).collect();
        let mut loads: Vec<_> = (ids.iter().enumerate())
            .filter(|(at, _)| at % 4 != 3)
            .map(|(at, &worker)| load(worker, at as u64 % 7))
            .collect();
        loads.push(load(ids[0], u64::MAX));
        loads.push(load(WorkerId::from_raw(1), 1));
        let polls = [pool.poll(None), pool.poll(Some(&ids))];
        Self { picker: pool.picker(1).unwrap(), pool, ids, loads, polls }
    }

    /// Requests of every policy, with and without lists.
    fn each_request(&mut self, mut each: impl FnMut(&Pool, &mut Picker, &Request<'_>)) {
        let Self { pool, picker, ids, .. } = self;
        let half: Vec<_> = ids.iter().copied().step_by(2).collect();
        let unknown = [WorkerId::from_raw(1), WorkerId::from_raw(u64::MAX)];
        for policy in Policy::ALL {
            for candidates in [None, Some(&ids[..]), Some(&half[..]), Some(&unknown[..])] {
                for excluded in [&[], &ids[..1], &half[..], &ids[..], &unknown[..]] {
                    let policy = Some(policy);
                    each(
                        pool,
                        picker,
                        &Request { policy, tokens: 10, candidates, excluded, hash: 0 },
                    );
                }
            }
        }
    }
}

fn load(worker: WorkerId, tokens: u64) -> Load {
    Load { worker, tokens, running: Some(1), waiting: None, timestamp: Some(tokens) }
}

const SIZES: [u32; 4] = [1, 8, 64, 2_000];

fn tunings() -> [Tuning; 2] {
    let usual = Tuning::default();
    [usual, Tuning { choices: 5, unreported_compete: true, ..usual }]
}

#[test]
fn the_allocator_counts() {
    let (calls, pool) = calls(|| Pool::new(PoolConfig::default()).unwrap());
    assert_ne!(calls, 0);
    let before = COUNTS.get();
    drop(pool);
    assert_ne!(COUNTS.get().calls, before.calls);
    assert!(COUNTS.get().live_bytes < before.live_bytes);
}

#[test]
fn choosing_and_counting_allocate_nothing() {
    for (workers, tuning) in SIZES.into_iter().flat_map(|n| tunings().map(|tuning| (n, tuning))) {
        let mut fixture = Fixture::new(workers, tuning);
        fixture.pool.publish(&fixture.loads).unwrap();
        fixture.each_request(|pool, picker, request| {
            let what = |what| format!("{what} of {workers} workers, {:?}", request.policy);
            let (pick, dispatch, finish) = (what("pick"), what("dispatch"), what("finish"));
            let _ = allocates_nothing(&pick, || (pool.pick(request), picker.pick(request)));
            let tickets =
                allocates_nothing(&dispatch, || [pool.dispatch(request), picker.dispatch(request)]);
            let [by_pool, by_picker] = tickets;
            allocates_nothing(&finish, || {
                by_pool.map(|ticket| pool.finish(ticket).unwrap()).ok();
                by_picker.map(|ticket| pool.finish(ticket).unwrap()).ok();
            });
        });
    }
}

#[test]
fn the_first_choice_of_a_thread_allocates_nothing() {
    let fixture = Fixture::new(8, Tuning::default());
    for policy in Policy::ALL {
        let pool = &fixture.pool;
        let first = || {
            let request = Request { policy: Some(policy), ..Request::default() };
            allocates_nothing("the first pick", || pool.pick(&request)).unwrap();
        };
        thread::scope(|scope| scope.spawn(first).join().unwrap());
        let first = || {
            let request = Request { policy: Some(policy), ..Request::default() };
            let ticket = allocates_nothing("the first dispatch", || pool.dispatch(&request));
            drop(allocates_nothing("the first guard", || pool.guard_owned(ticket.unwrap())));
        };
        thread::scope(|scope| scope.spawn(first).join().unwrap());
    }
}

#[test]
fn what_happens_to_a_ticket_allocates_nothing() {
    let Fixture { pool, ids, .. } = Fixture::new(8, Tuning::default());
    let unknown = WorkerId::from_raw(1);
    let elsewhere = Fixture::new(1, Tuning::default());
    for _ in 0..100 {
        let mut ticket = allocates_nothing("begin", || pool.begin(ids[1], 10)).unwrap();
        allocates_nothing("grow", || pool.grow(&mut ticket, 5)).unwrap();
        allocates_nothing("retarget", || pool.retarget(&mut ticket, ids[2])).unwrap();
        allocates_nothing("finish", || pool.finish(ticket)).unwrap();

        let mut guard = pool.guard_owned(pool.begin(ids[1], 10).unwrap());
        allocates_nothing("grow of a guard", || guard.grow(5)).unwrap();
        allocates_nothing("retarget of a guard", || guard.retarget(ids[2])).unwrap();
        allocates_nothing("the drop of a guard", || drop(guard));
        let guard = pool.guard(pool.begin(ids[1], 10).unwrap());
        allocates_nothing("finish of a guard", || guard.finish()).unwrap();

        let _counted = pool.begin(ids[1], 10).unwrap();
        allocates_nothing("finish_worker", || pool.finish_worker(ids[1], 10)).unwrap();
    }
    // What they refuse, too.
    let full: Vec<_> = (0..50).map(|_| pool.begin(ids[0], 0).unwrap()).collect();
    let mut ticket = pool.begin(ids[1], 10).unwrap();
    let mut foreign = elsewhere.pool.begin(elsewhere.ids[0], 10).unwrap();
    let refusals = allocates_nothing("refusals", || {
        [
            pool.begin(unknown, 1).map(drop).unwrap_err(),
            pool.begin(ids[0], 1).map(drop).unwrap_err(),
            pool.begin(ids[1], u32::MAX).map(drop).unwrap_err(),
            pool.grow(&mut ticket, u32::MAX).unwrap_err(),
            pool.grow(&mut foreign, 1).unwrap_err(),
            pool.retarget(&mut ticket, unknown).unwrap_err(),
            pool.retarget(&mut ticket, ids[0]).unwrap_err(),
            pool.retarget(&mut foreign, ids[1]).unwrap_err(),
            pool.finish_worker(unknown, 1).unwrap_err(),
            pool.finish(foreign).unwrap_err().into(),
        ]
    });
    let saturated = refusals.iter().filter(|error| **error == Error::Saturated).count();
    let stale = refusals.iter().filter(|error| **error == Error::Stale).count();
    assert_eq!((saturated, stale), (2, 4), "{refusals:?}");
    full.into_iter().chain([ticket]).for_each(|ticket| pool.finish(ticket).unwrap());
}

#[test]
fn reports_allocate_nothing() {
    for workers in SIZES {
        let Fixture { pool, loads, polls: [mut all, mut some], .. } =
            Fixture::new(workers, Tuning::default());
        for _ in 0..10 {
            let rejected = allocates_nothing("publish", || pool.publish(&loads)).unwrap();
            assert!(rejected >= 2);
            for poll in [&mut all, &mut some] {
                allocates_nothing("poll begin", || poll.begin()).unwrap();
                allocates_nothing("poll publish", || poll.publish(&loads)).unwrap();
            }
        }
    }
}

#[test]
fn a_pool_is_one_block_of_the_stated_size() {
    for (capacity, bytes) in BYTES {
        COUNTS.set(Counts { largest: 0, ..COUNTS.get() });
        let before = COUNTS.get().live_bytes;
        let pool = Pool::new(PoolConfig { capacity, ..PoolConfig::default() }).unwrap();
        let Counts { live_bytes, largest, .. } = COUNTS.get();
        assert_eq!(largest, bytes, "of {capacity} workers");
        assert_eq!(Pool::bytes(capacity), bytes);
        // Besides it the handles.
        let handles = (live_bytes - before) as usize - bytes;
        assert!(handles < 8 * 1024, "{handles}");
        drop(pool);
        assert_eq!(COUNTS.get().live_bytes, before);
    }
}

/// Cases 14 and 36.
#[test]
fn memory_stays_flat() {
    let Fixture { pool, loads, .. } = Fixture::new(8, Tuning::default());
    let before = COUNTS.get().live_bytes;
    for _ in 0..1_000_000 {
        pool.publish(&loads).unwrap();
    }
    assert_eq!(COUNTS.get().live_bytes, before, "publishes");

    let pool = Pool::new(PoolConfig { capacity: 2, ..PoolConfig::default() }).unwrap();
    let before = COUNTS.get().live_bytes;
    for key in 0..100_000 {
        let worker = pool.add(key, WorkerConfig::default()).unwrap();
        assert!(worker.slot() < 2);
        pool.remove(worker).unwrap();
    }
    for _ in 0..100_000 {
        pool.set_members(&[(7, None)]).unwrap();
        pool.set_members(&[]).unwrap();
    }
    assert_eq!(COUNTS.get().live_bytes, before, "members");
}
