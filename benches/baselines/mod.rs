//! What evenkeel is measured against, in the same run.

// Each bench uses some of it.
#![allow(dead_code)]

use arc_swap::ArcSwap;
use crossbeam_epoch::{Atomic, pin};
use evenkeel::Policy;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll, Waker};
use tower::Service;
use tower::balance::p2c::Balance;
use tower::discover::ServiceList;
use tower::load::{CompleteOnResponse, PendingRequests};

/// The least that counting a request and uncounting it can cost: two atomic additions on a line
/// that the thread has to itself.
#[repr(align(128))]
#[derive(Default)]
pub struct Floor(AtomicU64);

impl Floor {
    pub fn count_and_uncount(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The least that a scan of live counts can cost: each is read, and one of the least moves up and down.
/// Nothing keeps the choice exact, and there are no views, generations, tokens or statistics.
pub struct BareWords<const N: usize>([Floor; N]);

impl<const N: usize> BareWords<N> {
    pub fn new() -> Self {
        Self(std::array::from_fn(|_| Floor::default()))
    }

    pub fn count_and_uncount(&self, rules: &mut Rules) {
        let counts = self.0.each_ref().map(|word| word.0.load(Ordering::Relaxed));
        let least = counts.iter().min();
        let tied = || (0..N).filter(|&at| Some(&counts[at]) == least);
        let chosen =
            tied().nth(rules.below(tied().count())).expect("one of those that were counted");
        self.0[chosen].count_and_uncount();
    }
}

#[derive(Clone, Copy)]
pub struct Worker {
    pub in_flight: u32,
    pub load: Option<u64>,
}

/// The policies for equal weights, without caps: the same code for every baseline.
pub struct Rules {
    rng: Xoshiro256PlusPlus,
    cursor: usize,
}

impl Rules {
    pub fn new(seed: u64) -> Self {
        Self { rng: Xoshiro256PlusPlus::seed_from_u64(seed), cursor: 0 }
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.rng.next_u64()) * n as u128) >> 64) as usize
    }

    fn draw(&mut self, len: usize, excluded: Option<usize>, other: Option<usize>) -> usize {
        loop {
            let drawn = self.below(len);
            if Some(drawn) != excluded && Some(drawn) != other {
                return drawn;
            }
        }
    }

    /// Chooses one of `len` workers.
    pub fn choose(
        &mut self,
        policy: Policy,
        len: usize,
        excluded: Option<usize>,
        worker: impl Fn(usize) -> Worker,
    ) -> usize {
        match policy {
            Policy::RoundRobin => loop {
                self.cursor = (self.cursor + 1) % len;
                if Some(self.cursor) != excluded {
                    return self.cursor;
                }
            },
            Policy::Random => self.draw(len, excluded, None),
            Policy::PowerOfTwoTokens | Policy::PowerOfTwoRequests => {
                let first = self.draw(len, excluded, None);
                let second = self.draw(len, excluded, Some(first));
                let [a, b] = [first, second].map(worker);
                let requests = b.in_flight.cmp(&a.in_flight);
                let tokens = match (a.load, b.load) {
                    (Some(a), Some(b)) => b.cmp(&a),
                    _ => std::cmp::Ordering::Equal,
                };
                let order = match policy {
                    Policy::PowerOfTwoTokens => tokens.then(requests),
                    _ => requests.then(tokens),
                };
                if order.is_lt() { second } else { first }
            }
            // Weights are equal and the hash is 0, so the largest draw wins.
            Policy::ConsistentHashing => (0..len)
                .filter(|&at| Some(at) != excluded)
                .max_by_key(|&at| splitmix64(splitmix64(at as u64)))
                .expect("there are more workers than excluded ones"),
            // Requests cost no tokens in the benches, and request_tokens is 0, as by default.
            Policy::LeastRequests | Policy::LeastTokens | Policy::Balanced => {
                let mut best = (true, u64::MAX, u64::MAX);
                let mut ties = Vec::with_capacity(len);
                for at in (0..len).filter(|&at| Some(at) != excluded) {
                    let worker = worker(at);
                    let (requests, tokens) = (worker.in_flight.into(), worker.load.unwrap_or(0));
                    let (first, then) = match policy {
                        Policy::LeastRequests => (requests, tokens),
                        Policy::LeastTokens => (tokens, requests),
                        _ => (tokens, 0),
                    };
                    let rank = (worker.load.is_none(), first, then);
                    if rank < best {
                        best = rank;
                        ties.clear();
                    }
                    if rank == best {
                        ties.push(at);
                    }
                }
                let tie = self.below(ties.len());
                ties[tie]
            }
        }
    }
}

fn splitmix64(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// Everything under one lock.
pub struct MutexPool(Mutex<(Vec<Worker>, Rules)>);

impl MutexPool {
    pub fn new(workers: Vec<Worker>) -> Self {
        Self(Mutex::new((workers, Rules::new(1))))
    }

    pub fn dispatch(&self, policy: Policy, excluded: Option<usize>) -> usize {
        let (workers, rules) = &mut *self.0.lock().unwrap();
        let chosen = rules.choose(policy, workers.len(), excluded, |at| workers[at]);
        workers[chosen].in_flight += 1;
        chosen
    }

    pub fn finish(&self, worker: usize) {
        self.0.lock().unwrap().0[worker].in_flight -= 1;
    }
}

/// A re-implementation of what routers in the field do: workers in a list under a lock, their
/// polled loads in a map by name under another; each choice builds a `Vec` of the healthy ones and
/// looks their loads up. (They also clone every worker of the list; this one only the chosen.)
pub struct RouterPool {
    workers: RwLock<Vec<Arc<RouterWorker>>>,
    loads: RwLock<HashMap<String, i64>>,
}

pub struct RouterWorker {
    url: String,
    healthy: AtomicBool,
    in_flight: AtomicU64,
}

impl RouterPool {
    pub fn new(size: usize) -> Self {
        let workers = (0..size).map(|at| RouterWorker {
            url: format!("http://10.0.{}.{}:30000", at / 256, at % 256),
            healthy: AtomicBool::new(true),
            in_flight: AtomicU64::new(0),
        });
        let workers: Vec<_> = workers.map(Arc::new).collect();
        let loads = workers.iter().map(|worker| (worker.url.clone(), 1000)).collect();
        Self { workers: RwLock::new(workers), loads: RwLock::new(loads) }
    }

    pub fn dispatch(&self, policy: Policy, rules: &mut Rules) -> Arc<RouterWorker> {
        let workers = self.workers.read().unwrap();
        let healthy: Vec<&Arc<RouterWorker>> =
            workers.iter().filter(|worker| worker.healthy.load(Ordering::Acquire)).collect();
        let loads = self.loads.read().unwrap();
        let chosen = rules.choose(policy, healthy.len(), None, |at| Worker {
            in_flight: healthy[at].in_flight.load(Ordering::Relaxed) as u32,
            load: loads.get(&healthy[at].url).map(|&load| load as u64),
        });
        healthy[chosen].in_flight.fetch_add(1, Ordering::Relaxed);
        healthy[chosen].clone()
    }
}

impl RouterWorker {
    pub fn finish(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A count a worker on a line of its own, exchanged as evenkeel's is, but without tokens, tag, cap
/// and generation; the loads in a snapshot that a publisher would replace as a whole.
pub struct SnapshotPool<S> {
    counts: Vec<Line>,
    view: S,
}

#[repr(align(128))]
struct Line(AtomicU64);

/// Slot and load of each worker.
type View = Vec<(usize, Option<u64>)>;

pub trait Snapshot {
    fn new(view: View) -> Self;
    fn read<R>(&self, read: impl FnOnce(&View) -> R) -> R;
}

impl Snapshot for ArcSwap<View> {
    fn new(view: View) -> Self {
        Self::from_pointee(view)
    }

    fn read<R>(&self, read: impl FnOnce(&View) -> R) -> R {
        read(&self.load())
    }
}

impl Snapshot for Atomic<View> {
    fn new(view: View) -> Self {
        Self::new(view)
    }

    fn read<R>(&self, read: impl FnOnce(&View) -> R) -> R {
        let guard = pin();
        let view = self.load(Ordering::Acquire, &guard);
        // SAFETY: it was made from a view, and no view is ever freed here.
        read(unsafe { view.deref() })
    }
}

impl<S: Snapshot> SnapshotPool<S> {
    pub fn new(size: usize) -> Self {
        let counts = (0..size).map(|_| Line(AtomicU64::new(0))).collect();
        Self { counts, view: S::new((0..size).map(|slot| (slot, Some(1000))).collect()) }
    }

    pub fn dispatch(&self, policy: Policy, rules: &mut Rules) -> usize {
        let chosen = self.view.read(|view| {
            let worker = |at: usize| Worker {
                in_flight: self.counts[view[at].0].0.load(Ordering::Relaxed) as u32,
                load: view[at].1,
            };
            view[rules.choose(policy, view.len(), None, worker)].0
        });
        self.change(chosen, |count| count.checked_add(1));
        chosen
    }

    pub fn finish(&self, worker: usize) {
        self.change(worker, |count| count.checked_sub(1));
    }

    fn change(&self, worker: usize, change: impl Fn(u64) -> Option<u64>) {
        let count = &self.counts[worker].0;
        let _was = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).unwrap();
    }
}

/// `tower`'s power of two choices by pending requests, driven by hand: no runtime, every service
/// ready, each response there at once. A `Balance` belongs to one thread.
pub struct TowerPool(Balance<ServiceList<Vec<PendingRequests<Engine>>>, ()>);

struct Engine;

impl Service<()> for Engine {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}

impl TowerPool {
    pub fn new(size: usize) -> Self {
        let engine = |_| PendingRequests::new(Engine, CompleteOnResponse::default());
        Self(Balance::new(ServiceList::new((0..size).map(engine).collect())))
    }

    /// The request is pending until what this returns is dropped.
    pub fn dispatch(&mut self) -> impl Sized {
        let ready = self.0.poll_ready(&mut Context::from_waker(Waker::noop()));
        assert!(ready.is_ready(), "every service is ready");
        self.0.call(())
    }
}
