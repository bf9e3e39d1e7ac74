//! Picks that publishers overtake again and again: never a worker that the request's lists leave
//! out, never `Empty` beside a worker that was there all the time.

use evenkeel::{Policy, Pool, PoolConfig, Request, Vetoes, WorkerConfig, WorkerId};
use std::sync::atomic::{AtomicBool, Ordering};

fn pool_of_three() -> (Pool, Vec<WorkerId>) {
    let pool = Pool::new(PoolConfig { capacity: 8, seed: 1, ..PoolConfig::default() }).unwrap();
    let workers = (0..3).map(|key| pool.add(key, WorkerConfig::default()).unwrap()).collect();
    (pool, workers)
}

/// Ids that are no worker's, so many that a choice takes longer than some publishes.
fn strangers() -> impl Iterator<Item = WorkerId> {
    (0..2_000).map(|n| WorkerId::from_raw(0x9999_0000_0000 + n % 7))
}

/// Picks beside a thread that vetoes the first worker in every third view: periods of 1, 2 or 4
/// would leave the ring's buffers alike.
fn picks_beside_a_publisher(
    request: Request<'_>,
    pool: &Pool,
    first: WorkerId,
    allowed: &[WorkerId],
) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                pool.veto(first, Vetoes::HEALTH, n % 3 == 0).unwrap();
            }
        });
        for policy in Policy::ALL {
            for _ in 0..10_000 {
                let picked = pool.pick(&Request { policy: Some(policy), ..request });
                let fits = picked.as_ref().is_ok_and(|worker| allowed.contains(worker));
                if !fits {
                    done.store(true, Ordering::Relaxed);
                }
                assert!(fits, "{policy}: {picked:?} of {allowed:?}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_pick_among_candidates_is_one_of_them() {
    let (pool, workers) = pool_of_three();
    let candidates: Vec<_> = [workers[1]].into_iter().chain(strangers()).collect();
    let request = Request { candidates: Some(&candidates), ..Request::default() };
    picks_beside_a_publisher(request, &pool, workers[0], &workers[1..2]);
}

#[test]
fn a_pick_with_exclusions_is_none_of_them() {
    let (pool, workers) = pool_of_three();
    let excluded: Vec<_> = [workers[0], workers[2]].into_iter().chain(strangers()).collect();
    let request = Request { excluded: &excluded, ..Request::default() };
    picks_beside_a_publisher(request, &pool, workers[0], &workers[1..2]);
}
