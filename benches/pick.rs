//! Dispatch + finish on one thread: by policy, number of workers and what the request asks for.
//!
//! `cargo bench --bench pick` prints one table; arguments choose the rows whose names contain one
//! of them. Each figure is also given as a ratio to the floor (see `baselines`), which is measured
//! between the samples of its row.
//!
//! Workers are tied (equal counts and loads) unless the row says otherwise: the dearest case for a
//! scan. The pool is quiet: nobody else writes its lines.

mod baselines;
mod measure;

use arc_swap::ArcSwap;
use baselines::{Floor, MutexPool, RouterPool, Rules, Snapshot, SnapshotPool, TowerPool, Worker};
use crossbeam_epoch::Atomic;
use evenkeel::{Policy, PoolConfig, Request, WorkerConfig, WorkerId};
use measure::{Row, is_wanted, median_ratio, pool_of, report, rounds, sample};
use std::hint::black_box;

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Plain,
    CountsDiffer,
    OneExcluded,
    HalfAreCandidates,
    Caps,
    Weights,
    LoadAge,
    ThreadRng,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::CountsDiffer => ", counts differ",
            Self::OneExcluded => ", one excluded",
            Self::HalfAreCandidates => ", half are candidates",
            Self::Caps => ", caps",
            Self::Weights => ", weights 1 to 4",
            Self::LoadAge => ", loads may expire",
            Self::ThreadRng => ", without a picker",
        }
    }

    /// What `MutexPool` has a rule for.
    fn has_baseline(self) -> bool {
        matches!(self, Self::Plain | Self::CountsDiffer | Self::OneExcluded)
    }
}

fn main() {
    use Policy::{LeastRequests, PowerOfTwoTokens};
    use Variant::*;
    Row::print_header();
    for policy in Policy::ALL {
        row(policy, 8, Plain);
    }
    for variant in
        [Plain, CountsDiffer, OneExcluded, HalfAreCandidates, Caps, Weights, LoadAge, ThreadRng]
    {
        row(PowerOfTwoTokens, 64, variant);
    }
    row(PowerOfTwoTokens, 1024, Plain);
    for variant in [Plain, CountsDiffer, OneExcluded, HalfAreCandidates, Weights] {
        row(LeastRequests, 64, variant);
    }
    row(LeastRequests, 1024, Plain);
    for size in [8, 64] {
        let router = RouterPool::new(size);
        let mut rules = Rules::new(1);
        baseline("power_of_two:tokens", "RwLock<HashMap>, re-implementation", size, || {
            router.dispatch(black_box(Policy::PowerOfTwoTokens), &mut rules).finish();
        });
    }
    snapshot::<Atomic<_>>("crossbeam-epoch");
    snapshot::<ArcSwap<_>>("arc-swap");
    let mut tower = TowerPool::new(64);
    baseline("power_of_two:requests", "tower", 64, || drop(black_box(tower.dispatch())));
}

fn row(policy: Policy, size: usize, variant: Variant) {
    let what = format!("{policy}{}", variant.name());
    if !is_wanted(&what) {
        return;
    }
    let config = PoolConfig {
        seed: 1,
        load_max_age_ms: if variant == Variant::LoadAge { 3_600_000 } else { 0 },
        ..PoolConfig::default()
    };
    let (pool, ids) = pool_of(
        config,
        (0..size as u32).map(|at| WorkerConfig {
            weight: if variant == Variant::Weights { 1 + at % 4 } else { 1 },
            max_in_flight: if variant == Variant::Caps { 1000 } else { 0 },
            ..WorkerConfig::default()
        }),
    );
    let mut workers = vec![Worker { in_flight: 0, load: Some(1000) }; size];
    if variant == Variant::CountsDiffer {
        for (at, worker) in workers.iter_mut().enumerate() {
            *worker = Worker { in_flight: at as u32, load: Some(1000 * at as u64) };
            for _ in 0..at {
                let _counted_for_good = pool.begin(ids[at], 0).unwrap();
            }
        }
        pool.publish(&report(&ids, |at| 1000 * at as u64)).unwrap();
    }
    let mutex = MutexPool::new(workers);
    let excluded = (variant == Variant::OneExcluded).then_some(size / 2);
    let half: Vec<WorkerId> = ids.iter().copied().step_by(2).collect();
    let request = Request {
        policy: Some(policy),
        candidates: (variant == Variant::HalfAreCandidates).then_some(&half),
        excluded: excluded.map_or(&[], |at| &ids[at..][..1]),
        ..Request::default()
    };
    let mut picker = pool.picker(1).unwrap();

    let floor = Floor::default();
    let [mut least, mut own, mut locked] = [(); 3].map(|()| Vec::with_capacity(rounds()));
    for _ in 0..rounds() {
        least.push(sample(|| black_box(&floor).count_and_uncount()));
        own.push(match variant {
            Variant::ThreadRng => sample(|| {
                let ticket = pool.dispatch(black_box(&request)).unwrap();
                pool.finish(ticket).unwrap();
            }),
            _ => sample(|| {
                let ticket = picker.dispatch(black_box(&request)).unwrap();
                pool.finish(ticket).unwrap();
            }),
        });
        if variant.has_baseline() {
            locked.push(sample(|| mutex.finish(mutex.dispatch(black_box(policy), excluded))));
        }
    }
    Row {
        mutex_ratio: variant.has_baseline().then(|| median_ratio(&locked, &least)),
        ..Row::of_one_thread(what, size, &own, &least)
    }
    .print();
}

fn snapshot<S: Snapshot>(name: &str) {
    let pool = SnapshotPool::<S>::new(64);
    let mut rules = Rules::new(1);
    baseline("power_of_two:tokens", name, 64, || {
        pool.finish(pool.dispatch(black_box(Policy::PowerOfTwoTokens), &mut rules));
    });
}

fn baseline(policy: &str, name: &str, size: usize, mut run: impl FnMut()) {
    let what = format!("{policy} by {name}");
    if !is_wanted(&what) {
        return;
    }
    let floor = Floor::default();
    let (least, own): (Vec<f64>, Vec<f64>) = (0..rounds())
        .map(|_| (sample(|| black_box(&floor).count_and_uncount()), sample(&mut run)))
        .unzip();
    Row::of_one_thread(what, size, &own, &least).print();
}
