//! Sixteen threads do everything at once. When all is at rest, every count adds up.

use evenkeel::{
    Error, Load, Picker, Policy, Poll, Pool, PoolConfig, Request, Ticket, Tuning, Vetoes,
    WorkerConfig, WorkerId, WorkerState, WorkerUpdate,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::collections::HashMap;
use std::sync::{Barrier, Mutex};
use std::thread;

const THREADS: usize = 16;
const ROUNDS: usize = 500_000;
/// More keys than slots, so that slots are taken over all the time.
const KEYS: u64 = 12;
const CAPACITY: u32 = 8;

/// What of the rude things a run does.
#[derive(Clone, Copy, Default)]
struct Rude {
    /// Workers are abandoned, and tickets of another pool come in.
    stale: bool,
    /// Requests end with other tokens than they began with. So that each of these ends is an
    /// anomaly and no other is, no request carries any.
    mismatches: bool,
}

/// What the threads share.
struct Stage {
    rude: Rude,
    pool: Pool,
    elsewhere: Pool,
    foreigner: WorkerId,
    /// Requests in flight. Any thread ends those of any other.
    tickets: [Mutex<Vec<Ticket>>; THREADS],
}

/// What a thread did, as the answers told it.
#[derive(Default)]
struct Tally {
    began: u64,
    finished: HashMap<WorkerId, u64>,
    stale: u64,
    /// Of these, retargets.
    stale_retargets: u64,
    mismatches: u64,
    saturated: u64,
    rejected: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.began += other.began;
        for (worker, finished) in other.finished {
            *self.finished.entry(worker).or_default() += finished;
        }
        self.stale += other.stale;
        self.stale_retargets += other.stale_retargets;
        self.mismatches += other.mismatches;
        self.saturated += other.saturated;
        self.rejected += other.rejected;
    }
}

/// One thread's part.
struct Actor<'a> {
    stage: &'a Stage,
    rng: Xoshiro256PlusPlus,
    picker: Picker,
    polls: [Poll; 2],
    /// Workers that it met last, many of them gone by now.
    met: [WorkerId; 16],
    tally: Tally,
}

impl<'a> Actor<'a> {
    fn new(stage: &'a Stage, number: u64) -> Self {
        let pool = &stage.pool;
        Self {
            stage,
            rng: Xoshiro256PlusPlus::seed_from_u64(number),
            picker: pool.picker(number + 1).unwrap(),
            polls: [pool.poll(None), pool.poll(None)],
            met: [stage.foreigner; 16],
            tally: Tally::default(),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn someone(&mut self) -> WorkerId {
        self.met[self.below(16) as usize]
    }

    fn meet(&mut self, worker: WorkerId) {
        self.met[self.below(16) as usize] = worker;
    }

    fn tokens(&mut self) -> u32 {
        if self.stage.rude.mismatches { 0 } else { self.below(1_000) as u32 }
    }

    fn config(&mut self) -> WorkerConfig<'static> {
        WorkerConfig {
            weight: [1, 1, 1, 2, 0][self.below(5) as usize],
            max_in_flight: [0, 0, 1, 5, 20][self.below(5) as usize],
            vetoes: if self.one_in(8) { Vetoes::HOST } else { Vetoes::NONE },
            fresh: self.one_in(2),
            label: ["", "a:1", "b:2@3"][self.below(3) as usize],
        }
    }

    fn act(&mut self) {
        match self.below(100) {
            0..30 => self.dispatch(),
            30..34 => self.begin(),
            34..62 => self.finish(),
            62..68 => self.finish_worker(),
            68..72 => self.grow(),
            72..77 => self.retarget(),
            77..81 => self.pick(),
            81..84 => self.report(),
            84..96 => self.change_members(),
            96 => self.tune(),
            97 => self.read(),
            _ if self.stage.rude.stale => self.be_rude(),
            _ => self.dispatch(),
        }
    }

    fn with_request<R>(&mut self, run: impl FnOnce(&mut Self, &Request<'_>) -> R) -> R {
        let policy = Some(Policy::ALL[self.below(5) as usize]);
        let tokens = self.tokens();
        let met = self.met;
        let candidates = self.one_in(4).then_some(&met[..8]);
        let excluded = &met[..if self.one_in(4) { 2 } else { 0 }];
        let policy = if self.one_in(2) { policy } else { None };
        let hash = self.below(100);
        run(self, &Request { policy, tokens, candidates, excluded, hash })
    }

    fn pick(&mut self) {
        let picked = self.with_request(|actor, request| match actor.one_in(2) {
            true => actor.stage.pool.pick(request),
            false => actor.picker.pick(request),
        });
        match picked {
            Ok(worker) => self.meet(worker),
            Err(Error::Empty) => {}
            Err(error) => panic!("pick: {error:?}"),
        }
    }

    fn dispatch(&mut self) {
        let dispatched = self.with_request(|actor, request| match actor.one_in(2) {
            true => actor.stage.pool.dispatch(request),
            false => actor.picker.dispatch(request),
        });
        match dispatched {
            Ok(ticket) => self.began(ticket),
            Err(Error::Empty) => {}
            Err(Error::Saturated) => self.tally.saturated += 1,
            Err(error) => panic!("dispatch: {error:?}"),
        }
    }

    fn begin(&mut self) {
        let (worker, tokens) = (self.someone(), self.tokens());
        match self.stage.pool.begin(worker, tokens) {
            Ok(ticket) => self.began(ticket),
            Err(Error::Unknown { .. } | Error::Saturated) => {}
            Err(error) => panic!("begin: {error:?}"),
        }
    }

    fn began(&mut self, ticket: Ticket) {
        self.tally.began += 1;
        self.meet(ticket.worker());
        self.give(ticket);
    }

    fn give(&mut self, ticket: Ticket) {
        self.stage.tickets[self.below(THREADS as u64) as usize].lock().unwrap().push(ticket);
    }

    /// Any thread's.
    fn take(&mut self) -> Option<Ticket> {
        let mut tickets = self.stage.tickets[self.below(THREADS as u64) as usize].lock().unwrap();
        let at = self.rng.next_u64().checked_rem(tickets.len() as u64)?;
        Some(tickets.swap_remove(at as usize))
    }

    fn finished(&mut self, worker: WorkerId, finished: Result<(), Error>) {
        match finished {
            Ok(()) => *self.tally.finished.entry(worker).or_default() += 1,
            Err(Error::Stale) if self.stage.rude.stale => self.tally.stale += 1,
            Err(error) => panic!("finish: {error:?}"),
        }
    }

    fn finish(&mut self) {
        let Some(ticket) = self.take() else { return };
        let worker = ticket.worker();
        let pool = &self.stage.pool;
        let finished = match self.below(3) {
            0 => pool.finish(ticket),
            1 => pool.guard(ticket).finish(),
            _ => self.picker.guard_owned(ticket).finish(),
        };
        self.finished(worker, finished.map_err(Error::from));
    }

    fn finish_worker(&mut self) {
        let Some(ticket) = self.take() else { return };
        let (worker, tokens) = (ticket.worker(), ticket.tokens());
        let mismatch = u32::from(self.stage.rude.mismatches && self.one_in(2));
        let finished = self.stage.pool.finish_worker(worker, tokens + mismatch);
        if finished.is_ok() {
            self.tally.mismatches += u64::from(mismatch);
        }
        self.finished(worker, finished);
    }

    fn grow(&mut self) {
        let Some(mut ticket) = self.take() else { return };
        let tokens = self.tokens();
        match self.stage.pool.grow(&mut ticket, tokens) {
            Ok(()) => {}
            Err(Error::Stale) if self.stage.rude.stale => self.tally.stale += 1,
            Err(error) => panic!("grow: {error:?}"),
        }
        self.give(ticket);
    }

    fn retarget(&mut self) {
        let Some(mut ticket) = self.take() else { return };
        let worker = self.someone();
        match self.stage.pool.retarget(&mut ticket, worker) {
            Ok(()) | Err(Error::Unknown { .. } | Error::Saturated) => {}
            Err(Error::Stale) if self.stage.rude.stale => {
                self.tally.stale += 1;
                self.tally.stale_retargets += 1;
            }
            Err(error) => panic!("retarget: {error:?}"),
        }
        self.give(ticket);
    }

    fn report(&mut self) {
        let about = self.below(16) as usize;
        let loads: Vec<_> = (self.met[..about].iter())
            .map(|&worker| Load {
                worker,
                tokens: worker.raw() % 3,
                running: None,
                waiting: None,
                timestamp: None,
            })
            .collect();
        let poll = self.below(2) as usize;
        let published = match self.below(3) {
            0 => self.stage.pool.publish(&loads),
            1 => self.polls[poll].begin().map(|()| 0),
            _ => self.polls[poll].publish(&loads),
        };
        match published {
            Ok(rejected) => self.tally.rejected += rejected as u64,
            // A poll that was not begun.
            Err(Error::Invalid(_) | Error::Busy) => {}
            Err(error) => panic!("publish: {error:?}"),
        }
    }

    fn change_members(&mut self) {
        let pool = &self.stage.pool;
        let (key, worker, config) = (self.below(KEYS), self.someone(), self.config());
        let changed = match self.below(20) {
            0..6 => pool.add(key, config).map(|worker| self.meet(worker)),
            6..8 => pool.ensure(key, config).map(|worker| self.meet(worker)),
            8 => {
                let bits = self.rng.next_u64();
                let members: Vec<_> = (0..KEYS)
                    .filter(|key| bits >> key & 1 != 0)
                    .map(|key| (key, (bits >> 32 >> key & 1 != 0).then_some(config)))
                    .collect();
                pool.set_members(&members)
            }
            9..12 => {
                let WorkerConfig { weight, max_in_flight, label, .. } = config;
                let update = WorkerUpdate {
                    weight: Some(weight),
                    max_in_flight: Some(max_in_flight),
                    label: Some(label),
                };
                pool.update(worker, update)
            }
            12..16 => pool.veto(worker, Vetoes::HOST, self.one_in(4)),
            _ => pool.remove(worker),
        };
        match changed {
            Ok(()) | Err(Error::Exists { .. } | Error::Full { .. } | Error::Unknown { .. }) => {}
            // Nothing was done.
            Err(Error::Busy) => {}
            Err(error) => panic!("members: {error:?}"),
        }
    }

    fn tune(&mut self) {
        let policy = Policy::ALL[self.below(Policy::ALL.len() as u64) as usize];
        let choices = 2 + self.below(4) as u32;
        let unreported_compete = self.one_in(2);
        let request_tokens = self.below(100) as u32;
        let hash_load_factor = if self.one_in(2) { 0 } else { 125 };
        let tuning =
            Tuning { policy, choices, request_tokens, unreported_compete, hash_load_factor };
        self.stage.pool.tune(tuning).unwrap();
    }

    fn read(&mut self) {
        let key = self.below(KEYS);
        match self.stage.pool.find(key) {
            Ok(worker) => self.meet(worker),
            Err(Error::UnknownKey { .. } | Error::Busy) => {}
            Err(error) => panic!("find: {error:?}"),
        }
        for stats in self.stage.pool.stats().unwrap_or_default() {
            assert!(stats.in_flight > 0 || stats.tokens == 0, "{stats:?}");
        }
    }

    fn be_rude(&mut self) {
        let pool = &self.stage.pool;
        let worker = self.someone();
        if self.one_in(2) {
            match pool.abandon(worker) {
                Ok(()) | Err(Error::Unknown { .. } | Error::Busy) => return,
                Err(error) => panic!("abandon: {error:?}"),
            }
        }
        let mut foreign = self.stage.elsewhere.begin(self.stage.foreigner, 1).unwrap();
        assert_eq!(pool.grow(&mut foreign, 1), Err(Error::Stale));
        assert_eq!(pool.retarget(&mut foreign, worker), Err(Error::Stale));
        assert_eq!(pool.finish_worker(foreign.worker(), 1), Err(Error::Stale));
        let foreign = pool.finish(foreign).unwrap_err().ticket;
        self.tally.stale += 4;
        self.stage.elsewhere.finish(foreign).unwrap();
    }
}

fn run(rude: Rude) -> Tally {
    let pool = Pool::new(PoolConfig { capacity: CAPACITY, ..PoolConfig::default() }).unwrap();
    let elsewhere = Pool::new(PoolConfig { capacity: 1, ..PoolConfig::default() }).unwrap();
    let foreigner = elsewhere.add(0, WorkerConfig::default()).unwrap();
    let tickets = std::array::from_fn(|_| Mutex::default());
    let stage = Stage { rude, pool, elsewhere, foreigner, tickets };

    let mut tally = Tally::default();
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|number| {
                let (stage, start) = (&stage, &start);
                scope.spawn(move || {
                    let mut actor = Actor::new(stage, number);
                    start.wait();
                    (0..ROUNDS).for_each(|_| actor.act());
                    actor.tally
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| tally.add(thread.join().unwrap()));
    });

    let Stage { pool, tickets, .. } = &stage;
    let mut last = Actor::new(&stage, THREADS as u64);
    for ticket in tickets.iter().flat_map(|tickets| std::mem::take(&mut *tickets.lock().unwrap())) {
        let worker = ticket.worker();
        last.finished(worker, pool.finish(ticket).map_err(Error::from));
    }
    tally.add(last.tally);

    for stats in pool.stats().unwrap() {
        assert_eq!((stats.in_flight, stats.tokens), (0, 0), "{stats:?}");
        assert_eq!(stats.state, WorkerState::Active, "{stats:?}");
        let finished = tally.finished.get(&stats.worker).copied().unwrap_or(0);
        assert_eq!(stats.finished, finished, "{stats:?}");
    }
    let totals = pool.totals().unwrap();
    let finished: u64 = tally.finished.values().sum();
    assert_eq!((totals.in_flight, totals.draining), (0, 0));
    assert_eq!(totals.finished, finished);
    assert_eq!(totals.saturated, tally.saturated);
    assert_eq!(totals.rejected_loads, tally.rejected);
    assert_eq!(totals.anomalies, tally.stale + tally.mismatches);
    // R10: a retarget is on both workers for a moment. If both are abandoned in it, both count it,
    // and it ends as stale.
    let twice = totals.finished + totals.abandoned - tally.began;
    assert!(twice <= tally.stale_retargets, "{totals:?}, began {}", tally.began);

    assert_eq!(totals.abandoned > 0, rude.stale);
    assert!(tally.began > 50_000 && tally.saturated > 100 && tally.rejected > 100);
    tally
}

#[test]
fn all_that_begins_ends_and_nothing_else_does() {
    let tally = run(Rude::default());
    assert_eq!((tally.stale, tally.mismatches), (0, 0));
}

#[test]
fn every_stale_ticket_is_an_anomaly_and_nothing_else_is() {
    let tally = run(Rude { stale: true, mismatches: false });
    assert!(tally.stale > 1_000);
}

#[test]
fn every_mismatch_is_an_anomaly_and_nothing_else_is() {
    let tally = run(Rude { stale: true, mismatches: true });
    assert!(tally.mismatches > 1_000);
}
