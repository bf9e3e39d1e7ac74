//! What evenkeel is measured against, in the same run.

use evenkeel::Policy;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// The same rules for equal weights, without caps, under one lock.
pub struct MutexPool(Mutex<State>);

struct State {
    workers: Vec<Worker>,
    cursor: usize,
    rng: Xoshiro256PlusPlus,
}

#[derive(Clone, Copy)]
pub struct Worker {
    pub in_flight: u32,
    pub load: Option<u64>,
}

impl MutexPool {
    pub fn new(workers: Vec<Worker>) -> Self {
        Self(Mutex::new(State { workers, cursor: 0, rng: Xoshiro256PlusPlus::seed_from_u64(1) }))
    }

    pub fn dispatch(&self, policy: Policy, excluded: Option<usize>) -> usize {
        let mut state = self.0.lock().unwrap();
        let chosen = state.choose(policy, excluded);
        state.workers[chosen].in_flight += 1;
        chosen
    }

    pub fn finish(&self, worker: usize) {
        self.0.lock().unwrap().workers[worker].in_flight -= 1;
    }
}

impl State {
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.rng.next_u64()) * n as u128) >> 64) as usize
    }

    fn draw(&mut self, excluded: Option<usize>, other: Option<usize>) -> usize {
        loop {
            let drawn = self.below(self.workers.len());
            if Some(drawn) != excluded && Some(drawn) != other {
                return drawn;
            }
        }
    }

    fn choose(&mut self, policy: Policy, excluded: Option<usize>) -> usize {
        match policy {
            Policy::RoundRobin => loop {
                self.cursor = (self.cursor + 1) % self.workers.len();
                if Some(self.cursor) != excluded {
                    return self.cursor;
                }
            },
            Policy::Random => self.draw(excluded, None),
            Policy::PowerOfTwoTokens | Policy::PowerOfTwoRequests => {
                let first = self.draw(excluded, None);
                let second = self.draw(excluded, Some(first));
                let [a, b] = [first, second].map(|at| self.workers[at]);
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
            _ => {
                let mut best = (true, u32::MAX, u64::MAX);
                let mut ties = Vec::with_capacity(self.workers.len());
                for (at, worker) in self.workers.iter().enumerate() {
                    if Some(at) == excluded {
                        continue;
                    }
                    let rank = (worker.load.is_none(), worker.in_flight, worker.load.unwrap_or(0));
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
