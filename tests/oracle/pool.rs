//! The pool once more, slow and obvious: one list under one mutex. What nobody can foresee, ids and
//! random choices, it is told, and it says whether the rules allow them.

use evenkeel::{
    Error, Load, LoadStats, Policy, Request, Totals, Tuning, Vetoes, WorkerConfig, WorkerId,
    WorkerState, WorkerStats, WorkerUpdate,
};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

/// An error as far as it can be foreseen: the words of an invalid value are the pool's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    Invalid,
    Other(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(_) => Self::Invalid,
            error => Self::Other(error),
        }
    }
}

type Answer<T = ()> = Result<T, Refusal>;

fn no<T>(error: Error) -> Answer<T> {
    Err(error.into())
}

/// [`WorkerStats`] but for the age of the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub worker: WorkerId,
    pub key: u64,
    pub state: WorkerState,
    pub vetoes: Vetoes,
    pub weight: u32,
    pub max_in_flight: u32,
    pub in_flight: u32,
    pub finished: u64,
    pub tokens: u32,
    pub live_tokens: u64,
    pub load: Option<LoadStats>,
    pub label: String,
}

impl From<&WorkerStats> for Row {
    fn from(stats: &WorkerStats) -> Self {
        Self {
            worker: stats.worker,
            key: stats.key,
            state: stats.state,
            vetoes: stats.vetoes,
            weight: stats.weight,
            max_in_flight: stats.max_in_flight,
            in_flight: stats.in_flight,
            finished: stats.finished,
            tokens: stats.tokens,
            live_tokens: stats.live_tokens,
            load: stats.load.map(|load| LoadStats { age_ms: 0, ..load }),
            label: stats.label.to_string(),
        }
    }
}

pub struct Oracle {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tuning: Tuning,
    /// Active and draining ones.
    workers: Vec<Worker>,
    /// Every id that was ever given out.
    given: HashSet<WorkerId>,
    /// The slot that round_robin chose last, once it is known.
    cursor: Option<usize>,
    polls_begun: u64,
    /// But for what can be counted in `workers`.
    totals: Totals,
}

struct Worker {
    id: WorkerId,
    key: u64,
    active: bool,
    /// One more for each worker that joins.
    joined: usize,
    weight: u32,
    max_in_flight: u32,
    vetoes: Vetoes,
    label: String,
    in_flight: u32,
    tokens: u32,
    finished: u64,
    load: Option<LoadStats>,
    /// Tokens in flight when the poll of the load began.
    mark: u32,
    /// The newest poll that said what its load is, or that it has none.
    told_by: u64,
}

/// What a [`evenkeel::Poll`] remembers.
pub struct OraclePoll {
    covers: Option<Vec<WorkerId>>,
    begun: Option<(u64, Vec<(WorkerId, u32)>)>,
}

impl Oracle {
    pub fn new(capacity: u32) -> Self {
        Self { capacity: capacity as usize, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn tune(&self, tuning: Tuning) -> Answer {
        check((2..=255).contains(&tuning.choices))?;
        check(matches!(tuning.hash_load_factor, 0 | 100..=10_000))?;
        self.state().tuning = tuning;
        Ok(())
    }

    pub fn tuning(&self) -> Tuning {
        self.state().tuning
    }

    pub fn add(
        &self,
        key: u64,
        config: WorkerConfig<'_>,
        id_of: impl Fn(u64) -> WorkerId,
    ) -> Answer<WorkerId> {
        check_config(&config)?;
        let mut state = self.state();
        if state.active_key(key).is_some() {
            return no(Error::Exists { key });
        }
        let id = state.join(self.capacity, key, &config, id_of)?;
        state.totals.version += 1;
        Ok(id)
    }

    pub fn ensure(
        &self,
        key: u64,
        config: Option<WorkerConfig<'_>>,
        id_of: impl Fn(u64) -> WorkerId,
    ) -> Answer<WorkerId> {
        config.as_ref().map_or(Ok(()), check_config)?;
        let mut state = self.state();
        let id = match (state.active_key(key), config) {
            (Some(worker), None) => return Ok(worker.id),
            (Some(worker), Some(config)) => {
                worker.update(&update_of(&config));
                worker.id
            }
            (None, config) => state.join(self.capacity, key, &config.unwrap_or_default(), id_of)?,
        };
        state.totals.version += 1;
        Ok(id)
    }

    pub fn set_members(
        &self,
        members: &[(u64, Option<WorkerConfig<'_>>)],
        id_of: impl Fn(u64) -> WorkerId,
    ) -> Answer {
        for (at, (key, config)) in members.iter().enumerate() {
            config.as_ref().map_or(Ok(()), check_config)?;
            check(members[..at].iter().all(|(earlier, _)| earlier != key))?;
        }
        let mut state = self.state();
        let new = members.iter().filter(|(key, config)| {
            let fresh = config.is_some_and(|config| config.fresh);
            let here = |worker: &Worker| worker.key == *key && (worker.active || !fresh);
            !state.workers.iter().any(here)
        });
        if new.count() > self.capacity - state.workers.len() {
            return no(Error::Full { capacity: self.capacity as u32 });
        }
        let mut changed = false;
        for &(key, config) in members {
            match state.active_key(key) {
                Some(worker) => {
                    changed |= config.is_some_and(|config| worker.update(&update_of(&config)));
                }
                None => {
                    state.join(self.capacity, key, &config.unwrap_or_default(), &id_of)?;
                    changed = true;
                }
            }
        }
        for worker in state.workers.iter_mut().filter(|worker| worker.active) {
            if members.iter().all(|(key, _)| *key != worker.key) {
                worker.active = false;
                changed = true;
            }
        }
        state.drop_vacant();
        state.totals.version += u64::from(changed);
        Ok(())
    }

    pub fn update(&self, id: WorkerId, update: WorkerUpdate<'_>) -> Answer {
        check_update(&update)?;
        let mut state = self.state();
        state.active(id)?.update(&update);
        state.totals.version += 1;
        Ok(())
    }

    pub fn veto(&self, id: WorkerId, vetoes: Vetoes, on: bool) -> Answer {
        let mut state = self.state();
        let worker = state.active(id)?;
        let bits = match on {
            true => worker.vetoes.bits() | vetoes.bits(),
            false => worker.vetoes.bits() & !vetoes.bits(),
        };
        let vetoes = Vetoes::from_bits(bits).unwrap();
        let changed = std::mem::replace(&mut worker.vetoes, vetoes) != vetoes;
        state.totals.version += u64::from(changed);
        Ok(())
    }

    pub fn remove(&self, id: WorkerId) -> Answer {
        let mut state = self.state();
        state.active(id)?.active = false;
        state.drop_vacant();
        state.totals.version += 1;
        Ok(())
    }

    pub fn abandon(&self, id: WorkerId) -> Answer {
        let mut state = self.state();
        let worker = state.known(id).ok_or(Refusal::Other(Error::Unknown { worker: id }))?;
        let (active, in_flight) = (worker.active, worker.in_flight);
        state.workers.retain(|worker| worker.id != id);
        state.totals.version += u64::from(active);
        state.totals.abandoned += u64::from(in_flight);
        Ok(())
    }

    pub fn find(&self, key: u64) -> Answer<WorkerId> {
        match self.state().active_key(key) {
            Some(worker) => Ok(worker.id),
            None => no(Error::UnknownKey { key }),
        }
    }

    /// Returns the number of rejected entries.
    pub fn publish(&self, loads: &[Load]) -> usize {
        let mut state = self.state();
        state.polls_begun += 1;
        let number = state.polls_begun;
        let covered: Vec<_> = (state.workers.iter())
            .filter(|worker| worker.active)
            .map(|worker| (worker.id, worker.tokens))
            .collect();
        state.take_report(number, &covered, loads)
    }

    pub fn poll(&self, covers: Option<&[WorkerId]>) -> OraclePoll {
        OraclePoll { covers: covers.map(<[_]>::to_vec), begun: None }
    }

    pub fn begin_poll(&self, poll: &mut OraclePoll) {
        let mut state = self.state();
        state.polls_begun += 1;
        let covered = |id| poll.covers.as_ref().is_none_or(|covers| covers.contains(&id));
        let marks = (state.workers.iter())
            .filter(|worker| worker.active && covered(worker.id))
            .map(|worker| (worker.id, worker.tokens));
        poll.begun = Some((state.polls_begun, marks.collect()));
    }

    pub fn publish_poll(&self, poll: &mut OraclePoll, loads: &[Load]) -> Answer<usize> {
        let (number, marks) = poll.begun.take().ok_or(Refusal::Invalid)?;
        Ok(self.state().take_report(number, &marks, loads))
    }

    /// Takes what the pool picked, and fails unless its policy's rule allows it. Returns all that
    /// it allows.
    pub fn pick(&self, request: &Request<'_>, picked: &Answer<WorkerId>) -> Vec<WorkerId> {
        let mut state = self.state();
        match (state.may_choose(request, false, None), picked) {
            (Ok(allowed), Ok(picked)) => {
                assert!(allowed.contains(picked), "picked {picked}, allowed {allowed:?}");
                state.chosen(request, *picked);
                allowed
            }
            (Err(Error::Empty), Err(Refusal::Other(Error::Empty))) => Vec::new(),
            (expected, picked) => panic!("picked {picked:?}, expected {expected:?}"),
        }
    }

    /// Takes the worker of the dispatch's ticket, and fails unless its policy's rule allows it.
    pub fn dispatch(&self, request: &Request<'_>, dispatched: &Answer<WorkerId>) {
        let mut state = self.state();
        let expected = match state.may_choose(request, true, None) {
            Ok(mut allowed) => {
                let mut is_full = |id: &WorkerId| {
                    let tokens = state.known(*id).unwrap().tokens;
                    tokens.checked_add(request.tokens).is_none()
                };
                let full: Vec<WorkerId> = allowed.extract_if(.., |id| is_full(id)).collect();
                // The turn was that one's, also where it has no room.
                if let ([only], []) = (&full[..], &allowed[..]) {
                    state.chosen(request, *only);
                }
                match (full.is_empty(), state.may_choose(request, true, Some(request.tokens))) {
                    (true, _) => Ok(allowed),
                    (false, Ok(with_room)) => Ok([allowed, with_room].concat()),
                    (false, Err(refusal)) => Err(refusal),
                }
            }
            refused => refused,
        };
        match (expected, dispatched) {
            (Ok(allowed), Ok(worker)) => {
                assert!(allowed.contains(worker), "dispatched to {worker}, allowed {allowed:?}");
                state.chosen(request, *worker);
                let worker = state.known(*worker).unwrap();
                worker.tokens = worker.tokens.checked_add(request.tokens).expect("they fit");
                worker.in_flight += 1;
            }
            (Err(Error::Overflow), Err(Refusal::Other(Error::Overflow))) => {}
            (Err(Error::Saturated), Err(Refusal::Other(Error::Saturated))) => {
                state.totals.saturated += 1;
            }
            (Err(Error::Empty), Err(Refusal::Other(Error::Empty))) => {}
            (expected, dispatched) => panic!("dispatched {dispatched:?}, expected {expected:?}"),
        }
    }

    pub fn begin(&self, id: WorkerId, tokens: u32) -> Answer {
        self.state().begin(id, tokens)
    }

    /// `finish` of a ticket of this worker and these tokens, and `finish_worker`.
    pub fn finish(&self, id: WorkerId, tokens: u32) -> Answer {
        let mut state = self.state();
        match state.end(id, tokens) {
            Some(worker) => {
                worker.finished += 1;
                state.totals.finished += 1;
                state.drop_vacant();
                Ok(())
            }
            None => state.stale(),
        }
    }

    /// `carried` are the ticket's tokens.
    pub fn grow(&self, id: WorkerId, carried: u32, tokens: u32) -> Answer {
        let mut state = self.state();
        match state.known(id) {
            Some(worker) if worker.in_flight > 0 => {
                match (worker.tokens.checked_add(tokens), carried.checked_add(tokens)) {
                    (Some(grown), Some(_)) => worker.tokens = grown,
                    _ => return no(Error::Overflow),
                }
                Ok(())
            }
            _ => state.stale(),
        }
    }

    pub fn retarget(&self, from: WorkerId, carried: u32, to: WorkerId) -> Answer {
        let mut state = self.state();
        if state.known(from).is_none_or(|worker| worker.in_flight == 0) {
            return state.stale();
        }
        state.active(to)?;
        if to != from {
            state.begin(to, carried)?;
            state.end(from, carried);
            state.drop_vacant();
        }
        Ok(())
    }

    /// In the order of their slots.
    pub fn stats(&self) -> Vec<Row> {
        let state = self.state();
        let mut rows: Vec<Row> = state.workers.iter().map(Worker::row).collect();
        rows.sort_by_key(|row| row.worker.slot());
        rows
    }

    pub fn totals(&self) -> Totals {
        let state = self.state();
        let count = |active| state.workers.iter().filter(|w| w.active == active).count() as u32;
        Totals {
            workers: count(true),
            draining: count(false),
            in_flight: state.workers.iter().map(|worker| u64::from(worker.in_flight)).sum(),
            ..state.totals
        }
    }
}

/// Members.
impl State {
    fn known(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.workers.iter_mut().find(|worker| worker.id == id)
    }

    fn active(&mut self, id: WorkerId) -> Answer<&mut Worker> {
        let unknown = Refusal::Other(Error::Unknown { worker: id });
        self.known(id).filter(|worker| worker.active).ok_or(unknown)
    }

    fn active_key(&mut self, key: u64) -> Option<&mut Worker> {
        self.workers.iter_mut().find(|worker| worker.active && worker.key == key)
    }

    /// Revives the last of the key's draining workers, or takes a new one.
    fn join(
        &mut self,
        capacity: usize,
        key: u64,
        config: &WorkerConfig<'_>,
        id_of: impl Fn(u64) -> WorkerId,
    ) -> Answer<WorkerId> {
        let draining = self.workers.iter().enumerate().filter(|(_, worker)| worker.key == key);
        let last = draining.max_by_key(|(_, worker)| worker.joined).map(|(at, _)| at);
        let at = match last.filter(|_| !config.fresh) {
            Some(at) => at,
            None if self.workers.len() == capacity => {
                return no(Error::Full { capacity: capacity as u32 });
            }
            None => {
                let id = id_of(key);
                assert!(id.slot() < capacity, "{id} is beyond the capacity");
                assert!(self.workers.iter().all(|w| w.id.slot() != id.slot()), "{id} is taken");
                assert!(self.given.insert(id), "{id} was given out before");
                self.workers.push(Worker::new(id, key, self.given.len()));
                self.workers.len() - 1
            }
        };
        let worker = &mut self.workers[at];
        worker.active = true;
        worker.load = None;
        worker.vetoes = config.vetoes;
        worker.update(&update_of(config));
        Ok(worker.id)
    }

    fn drop_vacant(&mut self) {
        self.workers.retain(|worker| worker.active || worker.in_flight > 0);
    }
}

/// Loads.
impl State {
    /// Returns the number of rejected entries.
    fn take_report(&mut self, number: u64, covered: &[(WorkerId, u32)], loads: &[Load]) -> usize {
        let mut rejected = 0;
        for load in loads {
            let mark = covered.iter().find(|(id, _)| *id == load.worker).map(|(_, mark)| *mark);
            match (mark, self.active(load.worker)) {
                (Some(mark), Ok(worker)) if load.tokens < u64::MAX && worker.told_by < number => {
                    worker.told_by = number;
                    worker.take_load(load, mark);
                }
                _ => rejected += 1,
            }
        }
        for &(id, _) in covered {
            if let Ok(worker) = self.active(id)
                && worker.told_by < number
            {
                worker.told_by = number;
                worker.load = None;
            }
        }
        self.totals.version += 1;
        self.totals.rejected_loads += rejected as u64;
        rejected
    }
}

/// Requests.
impl State {
    fn begin(&mut self, id: WorkerId, tokens: u32) -> Answer {
        let worker = self.active(id)?;
        if worker.is_at_cap() {
            return no(Error::Saturated);
        }
        match worker.tokens.checked_add(tokens) {
            Some(tokens) => worker.tokens = tokens,
            None => return no(Error::Overflow),
        }
        worker.in_flight += 1;
        Ok(())
    }

    /// Takes a request off its worker; none if it is not there.
    fn end(&mut self, id: WorkerId, tokens: u32) -> Option<&mut Worker> {
        let worker = self.known(id).filter(|worker| worker.in_flight > 0)?;
        worker.in_flight -= 1;
        let left = worker.tokens.checked_sub(tokens);
        worker.tokens = if worker.in_flight == 0 { 0 } else { left.unwrap_or(0) };
        let fits = left == Some(worker.tokens);
        self.totals.anomalies += u64::from(!fits);
        self.known(id)
    }

    fn stale(&mut self) -> Answer {
        self.totals.anomalies += 1;
        no(Error::Stale)
    }
}

/// Choices.
impl State {
    fn chosen(&mut self, request: &Request<'_>, worker: WorkerId) {
        if request.policy.unwrap_or(self.tuning.policy) == Policy::RoundRobin {
            self.cursor = Some(worker.slot());
        }
    }

    /// The workers that the rule of the request's policy allows; of those that have room for so
    /// many tokens.
    fn may_choose(
        &self,
        request: &Request<'_>,
        counting: bool,
        room_for: Option<u32>,
    ) -> Result<Vec<WorkerId>, Error> {
        let mut eligible: Vec<&Worker> = (self.workers.iter())
            .filter(|worker| worker.active && worker.vetoes == Vetoes::NONE && worker.weight > 0)
            .filter(|worker| request.candidates.is_none_or(|ids| ids.contains(&worker.id)))
            .filter(|worker| !request.excluded.contains(&worker.id))
            .collect();
        if eligible.is_empty() {
            return Err(Error::Empty);
        }
        eligible.retain(|worker| !counting || !worker.is_at_cap());
        let below_cap = eligible.len();
        eligible
            .retain(|worker| room_for.is_none_or(|more| worker.tokens.checked_add(more).is_some()));
        if eligible.is_empty() {
            return Err(if below_cap == 0 { Error::Saturated } else { Error::Overflow });
        }
        let allowed = match request.policy.unwrap_or(self.tuning.policy) {
            Policy::RoundRobin => self.next_slot(eligible),
            Policy::Random => eligible,
            Policy::PowerOfTwoTokens => self.can_win_a_draw(&eligible, tokens_then_requests),
            Policy::PowerOfTwoRequests => self.can_win_a_draw(&eligible, requests_then_tokens),
            Policy::LeastRequests => self.least(eligible),
            Policy::LeastTokens => unbeaten(self.competing(eligible), by_live_tokens),
            Policy::ConsistentHashing => self.first_by_hash(eligible, request.hash),
            Policy::Balanced => {
                let cost = |worker: &Worker| {
                    u128::from(worker.in_flight + 1) * u128::from(self.tuning.request_tokens)
                        + u128::from(worker.live_tokens())
                };
                // A cost has 64 bits.
                let cost = |worker: &Worker| cost(worker).min(u64::MAX.into());
                unbeaten(self.competing(eligible), |a, b| {
                    let scaled = |a: &Worker, b: &Worker| cost(a) * u128::from(b.weight);
                    scaled(a, b).cmp(&scaled(b, a))
                })
            }
        };
        Ok(allowed.into_iter().map(|worker| worker.id).collect())
    }

    fn next_slot<'a>(&self, mut eligible: Vec<&'a Worker>) -> Vec<&'a Worker> {
        eligible.sort_by_key(|worker| worker.id.slot());
        let Some(last) = self.cursor else { return eligible };
        let next = eligible.iter().position(|worker| worker.id.slot() > last).unwrap_or(0);
        vec![eligible[next]]
    }

    /// Those below the bound whose rank is within half a percent of the least, which a table of
    /// logarithms may take for it.
    fn first_by_hash<'a>(&self, mut eligible: Vec<&'a Worker>, hash: u64) -> Vec<&'a Worker> {
        let requests: u128 = eligible.iter().map(|worker| u128::from(worker.in_flight)).sum();
        let weights: u128 = eligible.iter().map(|worker| u128::from(worker.weight)).sum();
        let percent = u128::from(self.tuning.hash_load_factor);
        eligible.retain(|worker| {
            let most = (requests + 1) * percent * u128::from(worker.weight);
            percent == 0 || u128::from(worker.in_flight) < most.div_ceil(100 * weights)
        });
        let rank = |worker: &Worker| {
            let draw = splitmix64(splitmix64(worker.key) ^ hash);
            -(draw as f64 / 2f64.powi(64)).ln() / f64::from(worker.weight)
        };
        let least = eligible.iter().map(|worker| rank(worker)).fold(f64::INFINITY, f64::min);
        eligible.retain(|worker| rank(worker) <= least * 1.005);
        eligible
    }

    /// Those that are beaten by nobody in some draw of `choices` workers. Tokens count if all of
    /// the draw have a load.
    fn can_win_a_draw<'a>(
        &self,
        eligible: &[&'a Worker],
        compare: fn(&Worker, &Worker, bool) -> Ordering,
    ) -> Vec<&'a Worker> {
        let others = eligible.len().min(self.tuning.choices as usize) - 1;
        let can_win = |worker: &&Worker| {
            let unbeaten = |loaded: bool| {
                (eligible.iter())
                    .filter(move |other| other.id != worker.id)
                    .filter(move |other| !loaded || other.load.is_some())
                    .filter(move |other| compare(other, worker, loaded) != Ordering::Less)
            };
            let with_tokens = worker.load.is_some() && unbeaten(true).count() >= others;
            let without = unbeaten(false).count() >= others
                && (worker.load.is_none() || unbeaten(false).any(|other| other.load.is_none()));
            with_tokens || without
        };
        eligible.iter().copied().filter(can_win).collect()
    }

    fn competing<'a>(&self, mut eligible: Vec<&'a Worker>) -> Vec<&'a Worker> {
        let reported = eligible.iter().any(|worker| worker.load.is_some());
        if reported && !self.tuning.unreported_compete {
            eligible.retain(|worker| worker.load.is_some());
        }
        eligible
    }

    fn least<'a>(&self, eligible: Vec<&'a Worker>) -> Vec<&'a Worker> {
        let tied = unbeaten(self.competing(eligible), by_requests);
        match tied.iter().all(|worker| worker.load.is_some()) {
            true => unbeaten(tied, by_tokens),
            false => tied,
        }
    }
}

fn unbeaten(workers: Vec<&Worker>, compare: impl Fn(&Worker, &Worker) -> Ordering) -> Vec<&Worker> {
    let Some(&best) = workers.iter().min_by(|a, b| compare(a, b)) else { return workers };
    workers.into_iter().filter(|worker| compare(worker, best) == Ordering::Equal).collect()
}

/// The first number of SplitMix64 with this state.
fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
    z ^ (z >> 31)
}

fn by_requests(a: &Worker, b: &Worker) -> Ordering {
    let scaled = |a: &Worker, b: &Worker| u128::from(a.in_flight + 1) * u128::from(b.weight);
    scaled(a, b).cmp(&scaled(b, a))
}

fn by_live_tokens(a: &Worker, b: &Worker) -> Ordering {
    let scaled = |a: &Worker, b: &Worker| u128::from(a.live_tokens()) * u128::from(b.weight);
    scaled(a, b).cmp(&scaled(b, a)).then(by_requests(a, b))
}

/// Both have a load.
fn by_tokens(a: &Worker, b: &Worker) -> Ordering {
    let scaled = |a: &Worker, b: &Worker| u128::from(a.load.unwrap().tokens) * u128::from(b.weight);
    scaled(a, b).cmp(&scaled(b, a))
}

fn tokens_then_requests(a: &Worker, b: &Worker, loaded: bool) -> Ordering {
    let tokens = if loaded { by_tokens(a, b) } else { Ordering::Equal };
    tokens.then(by_requests(a, b))
}

fn requests_then_tokens(a: &Worker, b: &Worker, loaded: bool) -> Ordering {
    by_requests(a, b).then(if loaded { by_tokens(a, b) } else { Ordering::Equal })
}

impl Worker {
    fn new(id: WorkerId, key: u64, joined: usize) -> Self {
        Self {
            id,
            key,
            active: true,
            joined,
            weight: 0,
            max_in_flight: 0,
            vetoes: Vetoes::NONE,
            label: String::new(),
            in_flight: 0,
            tokens: 0,
            finished: 0,
            load: None,
            mark: 0,
            told_by: 0,
        }
    }

    /// Whether anything is different now.
    fn update(&mut self, update: &WorkerUpdate<'_>) -> bool {
        let before = (self.weight, self.max_in_flight, self.label.clone());
        self.weight = update.weight.unwrap_or(self.weight);
        self.max_in_flight = update.max_in_flight.unwrap_or(self.max_in_flight);
        self.label = update.label.map_or(self.label.clone(), str::to_owned);
        before != (self.weight, self.max_in_flight, self.label.clone())
    }

    fn take_load(&mut self, load: &Load, mark: u32) {
        let timestamp = load.timestamp.filter(|&timestamp| timestamp != 0);
        let stored = self.load.and_then(|load| load.timestamp);
        if timestamp.is_some() && stored == timestamp {
            return;
        }
        let known = |requests: Option<u32>| requests.filter(|&requests| requests != u32::MAX);
        self.mark = mark;
        self.load = Some(LoadStats {
            tokens: load.tokens,
            running: known(load.running),
            waiting: known(load.waiting),
            timestamp,
            age_ms: 0,
        });
    }

    fn is_at_cap(&self) -> bool {
        self.max_in_flight > 0 && self.in_flight >= self.max_in_flight
    }

    fn live_tokens(&self) -> u64 {
        let Some(load) = self.load else { return self.tokens.into() };
        let base = i128::from(load.tokens) - i128::from(self.mark);
        (base + i128::from(self.tokens)).clamp(0, u64::MAX.into()) as u64
    }

    fn row(&self) -> Row {
        Row {
            worker: self.id,
            key: self.key,
            state: if self.active { WorkerState::Active } else { WorkerState::Draining },
            vetoes: self.vetoes,
            weight: self.weight,
            max_in_flight: self.max_in_flight,
            in_flight: self.in_flight,
            finished: self.finished,
            tokens: self.tokens,
            live_tokens: self.live_tokens(),
            load: self.load,
            label: self.label.clone(),
        }
    }
}

fn check(allowed: bool) -> Answer {
    if allowed { Ok(()) } else { Err(Refusal::Invalid) }
}

fn update_of<'a>(config: &WorkerConfig<'a>) -> WorkerUpdate<'a> {
    WorkerUpdate {
        weight: Some(config.weight),
        max_in_flight: Some(config.max_in_flight),
        label: Some(config.label),
    }
}

fn check_config(config: &WorkerConfig<'_>) -> Answer {
    check_update(&update_of(config))
}

fn check_update(update: &WorkerUpdate<'_>) -> Answer {
    check(update.weight.is_none_or(|weight| weight <= 1_000_000))?;
    check(update.max_in_flight.is_none_or(|cap| cap <= 1_048_575))?;
    check(update.label.is_none_or(|label| label.len() <= 255 && !label.contains('\0')))
}
