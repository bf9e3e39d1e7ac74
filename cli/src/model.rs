//! A disaggregated deployment in virtual time: requests of conversations or at given moments, FIFO
//! prefill ranks, a transfer, decode ranks in lock step. Each request takes one worker from a pool
//! of prefill ranks and one from a pool of decode ranks, as routers do. Every choice is made by a
//! real pool, fed by real polls; the model only says when things happen.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use evenkeel::{
    Error, Load, Picker, Policy, Poll, Pool, PoolConfig, Request, Ticket, Tuning, WorkerId,
};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use slab::Slab;

use crate::deployment::Deployment;
use crate::metrics::{Measured, RankSample, Recorder};
use crate::series::Series;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// One request of a conversation and the pause before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    pub input: u32,
    pub uncached: u32,
    /// At least 1.
    pub output: u32,
    pub think: Duration,
}

pub type Conversation = Vec<Turn>;

/// A request at a moment of its own, whatever becomes of the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    pub at: Duration,
    pub input: u32,
    /// At least 1.
    pub output: u32,
}

/// Where requests come from.
#[derive(Clone, Copy, Debug)]
pub enum Traffic<'a> {
    /// So many users at a time; each sends its next request after the last response.
    Closed { conversations: &'a [Conversation], concurrency: u32 },
    /// In the order of their times, which `rate` divides.
    Open { arrivals: &'a [Arrival], rate: f64 },
}

#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    pub traffic: Traffic<'a>,
    pub deployment: Deployment,
    pub policy: Policy,
    pub prefill_policy: Policy,
    /// Of both pools. No request leaves its policy to it.
    pub tuning: Tuning,
    pub ranks: u16,
    pub prefill_ranks: u16,
    /// Otherwise a request leaves the count of its prefill rank with its first token.
    pub prefill_counts_to_the_end: bool,
    pub seed: u64,
    pub poll_interval: Duration,
    /// From the moment that loads are sampled to the one when they are published.
    pub poll_delay: Duration,
    /// Nothing is measured before.
    pub warm_up: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The next request of a session, or this one of the trace.
    Arrival(usize),
    /// The prompt's KV begins its way to its decode rank.
    Prefilled(usize),
    /// The prompt is on its decode rank and decodes as soon as there is room.
    Transferred(usize),
    StepEnd,
    Poll,
    Publish,
    Sample,
}

/// One user: a conversation, and then another. At most one request of it is in flight.
struct Session<'a> {
    /// Own random numbers, so that a seed's conversations are the same under every policy.
    rng: Xoshiro256PlusPlus,
    /// Of the conversation, its own.
    hash: u64,
    /// Never empty: its first turn is in flight or next.
    rest: &'a [Turn],
}

impl<'a> Session<'a> {
    /// In the middle of a conversation, so that short and long contexts are there from the start.
    fn new(hash: u64, mut rng: Xoshiro256PlusPlus, conversations: &'a [Conversation]) -> Self {
        let conversation = choose(&mut rng, conversations);
        let passed = conversation.len() as f64 * rng.random_range(0.25..0.75);
        Self { rng, hash, rest: &conversation[passed as usize..] }
    }

    /// Turns to the next request, where there is none to another conversation.
    fn advance(&mut self, conversations: &'a [Conversation], sessions: u64) {
        self.rest = &self.rest[1..];
        if self.rest.is_empty() {
            self.rest = choose(&mut self.rng, conversations);
            self.hash += sessions;
        }
    }
}

fn choose<'a>(rng: &mut impl Rng, conversations: &'a [Conversation]) -> &'a Conversation {
    &conversations[rng.random_range(0..conversations.len())]
}

/// What a router keeps of one kind of ranks: a pool with a worker a rank, a picker, a poll.
struct Router {
    pool: Pool,
    picker: Picker,
    poll: Poll,
    policy: Policy,
    /// Sampled and not yet published.
    loads: Vec<Load>,
}

impl Router {
    fn new(ranks: u16, policy: Policy, tuning: Tuning, seed: u64) -> Result<Self, Error> {
        let pool = Pool::new(PoolConfig {
            capacity: ranks.into(),
            seed,
            tuning,
            ..PoolConfig::default()
        })?;
        let members: Vec<_> = (0..ranks).map(|rank| (rank.into(), None)).collect();
        pool.set_members(&members)?;
        Ok(Self {
            picker: pool.picker(seed)?,
            poll: pool.poll(None),
            pool,
            policy,
            loads: Vec::new(),
        })
    }

    fn workers(&self) -> Result<Vec<WorkerId>, Error> {
        Ok(self.pool.stats()?.iter().map(|stats| stats.worker).collect())
    }

    fn dispatch(&mut self, tokens: u32, hash: u64) -> Result<Ticket, Error> {
        let policy = Some(self.policy);
        self.picker.dispatch(&Request { policy, tokens, hash, ..Request::default() })
    }

    fn sample(&mut self, loads: impl Iterator<Item = Load>) -> Result<(), Error> {
        self.poll.begin()?;
        self.loads.clear();
        self.loads.extend(loads);
        Ok(())
    }

    fn publish(&mut self) -> Result<(), Error> {
        self.poll.publish(&self.loads).map(drop)
    }
}

struct PrefillRank {
    worker: WorkerId,
    free_at: Duration,
}

struct DecodeRank {
    worker: WorkerId,
    outstanding: u32,
    running: u32,
    /// KV tokens of the running requests.
    kv: u64,
    /// What `kv` would be at the last token of each of them.
    reserved: u64,
    /// Prompts dispatched to this rank that don't decode yet.
    waiting_tokens: u64,
    /// KV comes in one prompt after the other.
    link_free_at: Duration,
    /// Transferred requests that wait for the next step, or for room.
    queue: VecDeque<usize>,
}

impl DecodeRank {
    /// KV tokens: engines set room aside for a prompt before it is prefilled.
    fn held(&self) -> u64 {
        self.kv + self.waiting_tokens
    }
}

/// A request from its arrival to its last token.
struct Flight {
    /// The session that waits for it, if conversations are replayed.
    origin: usize,
    turn: Turn,
    /// The decode rank.
    rank: usize,
    prefill: Option<Ticket>,
    decode: Ticket,
    arrived: Duration,
    first_token: Duration,
}

/// One run.
pub struct Simulation<'a> {
    setup: Setup<'a>,
    prefill: Router,
    decode: Router,
    /// By the worker's slot, both.
    prefill_ranks: Vec<PrefillRank>,
    ranks: Vec<DecodeRank>,
    /// Of closed traffic.
    sessions: Vec<Session<'a>>,
    flights: Slab<Flight>,
    now: Duration,
    /// With a running number: what is scheduled first for a moment happens first.
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    scheduled: u64,
    /// Requests whose first token comes with the step that runs.
    joined: Vec<usize>,
    /// Running requests by the step that ends them.
    decoding: BinaryHeap<Reverse<(u64, usize)>>,
    steps: u64,
    stepping: bool,
    samples: u32,
    /// When in its second each sample is taken, so that polls don't come in step with them.
    sample_rng: Xoshiro256PlusPlus,
    recorder: Recorder,
}

impl<'a> Simulation<'a> {
    pub fn new(setup: Setup<'a>) -> Result<Self, Error> {
        let Setup { seed, tuning, .. } = setup;
        let decode = Router::new(setup.ranks, setup.policy, tuning, seed)?;
        let prefill = Router::new(setup.prefill_ranks, setup.prefill_policy, tuning, !seed)?;
        let ranks = decode.workers()?.into_iter().map(|worker| DecodeRank {
            worker,
            outstanding: 0,
            running: 0,
            kv: 0,
            reserved: 0,
            waiting_tokens: 0,
            link_free_at: Duration::ZERO,
            queue: VecDeque::new(),
        });
        let prefill_ranks = (prefill.workers()?.into_iter())
            .map(|worker| PrefillRank { worker, free_at: Duration::ZERO });
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let sessions = match setup.traffic {
            Traffic::Open { .. } => Vec::new(),
            Traffic::Closed { conversations, concurrency } => (0..concurrency)
                .map(|hash| {
                    rng.jump();
                    Session::new(hash.into(), rng.clone(), conversations)
                })
                .collect(),
        };
        let mut simulation = Self {
            setup,
            ranks: ranks.collect(),
            prefill_ranks: prefill_ranks.collect(),
            prefill,
            decode,
            sessions,
            flights: Slab::new(),
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            scheduled: 0,
            joined: Vec::new(),
            decoding: BinaryHeap::new(),
            steps: 0,
            stepping: false,
            samples: 0,
            sample_rng: Xoshiro256PlusPlus::seed_from_u64(!seed),
            recorder: Recorder::new(setup.ranks.into()),
        };
        simulation.schedule(Duration::ZERO, Event::Poll);
        simulation.schedule_sample();
        for index in 0..simulation.sessions.len() {
            simulation.think(index);
        }
        simulation.schedule_open(0);
        Ok(simulation)
    }

    /// Lets everything happen that is due up to and including `end`.
    pub fn run_until(&mut self, end: Duration) -> Result<(), Error> {
        while let Some(&Reverse((at, _, event))) = self.events.peek()
            && at <= end
        {
            self.events.pop();
            self.now = at;
            match event {
                Event::Arrival(index) => self.arrive(index)?,
                Event::Prefilled(flight) => self.transfer(flight),
                Event::Transferred(flight) => {
                    self.ranks[self.flights[flight].rank].queue.push_back(flight);
                    if !self.stepping {
                        self.begin_step();
                    }
                }
                Event::StepEnd => self.end_step()?,
                Event::Poll => self.sample_loads()?,
                Event::Publish => {
                    self.prefill.publish()?;
                    self.decode.publish()?;
                }
                Event::Sample => self.sample(),
            }
        }
        self.now = end;
        Ok(())
    }

    pub fn keep(&mut self, series: Series) {
        self.recorder.series = Some(series);
    }

    /// What was to be kept.
    pub fn into_series(self) -> Option<Series> {
        self.recorder.series
    }

    pub fn measured(&self) -> Measured {
        self.recorder.measured(self.now - self.setup.warm_up, self.setup.deployment.gpus)
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.events.push(Reverse((at, self.scheduled, event)));
        self.scheduled += 1;
    }

    fn think(&mut self, session: usize) {
        let pause = self.sessions[session].rest[0].think.min(self.setup.deployment.think_cap);
        self.schedule(self.now + pause, Event::Arrival(session));
    }

    /// One at a time, so that what is in flight decides how much is kept.
    fn schedule_open(&mut self, index: usize) {
        if let Traffic::Open { arrivals, rate } = self.setup.traffic
            && let Some(arrival) = arrivals.get(index)
        {
            self.schedule(arrival.at.div_f64(rate), Event::Arrival(index));
        }
    }

    fn arrive(&mut self, index: usize) -> Result<(), Error> {
        let (turn, hash) = match self.setup.traffic {
            Traffic::Closed { .. } => (self.sessions[index].rest[0], self.sessions[index].hash),
            Traffic::Open { arrivals, .. } => {
                self.schedule_open(index + 1);
                let Arrival { input, output, .. } = arrivals[index];
                (Turn { input, uncached: input, output, think: Duration::ZERO }, index as u64)
            }
        };
        let prefill = self.prefill.dispatch(turn.uncached, hash)?;
        let decode = self.decode.dispatch(turn.input, hash)?;
        let rank = decode.worker().slot();
        self.ranks[rank].outstanding += 1;
        self.ranks[rank].waiting_tokens += u64::from(turn.input);

        let deployment = &self.setup.deployment;
        let prefill_time = deployment.prefill
            + Duration::from_secs_f64(f64::from(turn.uncached) / self.prefill_rank_tokens_per_s());
        let free_at = &mut self.prefill_ranks[prefill.worker().slot()].free_at;
        *free_at = self.now.max(*free_at) + prefill_time;
        let prefilled_at = *free_at;
        let flight = self.flights.insert(Flight {
            origin: index,
            turn,
            rank,
            prefill: Some(prefill),
            decode,
            arrived: self.now,
            first_token: Duration::ZERO,
        });
        self.schedule(prefilled_at, Event::Prefilled(flight));
        Ok(())
    }

    fn transfer(&mut self, index: usize) {
        let Deployment { transfer, transfer_tokens_per_s, .. } = self.setup.deployment;
        let Flight { turn, rank, .. } = self.flights[index];
        let link_time = Duration::from_secs_f64(f64::from(turn.input) / transfer_tokens_per_s);
        let free_at = &mut self.ranks[rank].link_free_at;
        *free_at = self.now.max(*free_at) + link_time;
        let transferred_at = *free_at + transfer;
        self.schedule(transferred_at, Event::Transferred(index));
    }

    fn prefill_rank_tokens_per_s(&self) -> f64 {
        self.setup.deployment.prefill_tokens_per_s / f64::from(self.setup.prefill_ranks)
    }

    fn begin_step(&mut self) {
        let capacity = self.setup.deployment.kv_capacity.unwrap_or(u64::MAX);
        for rank in &mut self.ranks {
            while let Some(&index) = rank.queue.front() {
                let Turn { input, output, .. } = self.flights[index].turn;
                let needed = u64::from(input) + u64::from(output);
                // What no rank has room for runs alone, or it would wait for ever.
                if rank.running > 0 && rank.reserved + needed > capacity {
                    break;
                }
                rank.queue.pop_front();
                rank.running += 1;
                rank.waiting_tokens -= u64::from(input);
                rank.kv += u64::from(input);
                rank.reserved += needed;
                self.joined.push(index);
                self.decoding.push(Reverse((self.steps + u64::from(output), index)));
            }
        }
        self.stepping = !self.decoding.is_empty();
        if self.stepping {
            let step = self.setup.deployment.step;
            let longest = (self.ranks.iter()).map(|rank| step.time(rank.running, rank.kv)).max();
            self.schedule(self.now + longest.unwrap_or_default(), Event::StepEnd);
        }
    }

    fn end_step(&mut self) -> Result<(), Error> {
        self.steps += 1;
        for rank in &mut self.ranks {
            rank.kv += u64::from(rank.running);
        }
        let measuring = self.now > self.setup.warm_up;
        if measuring {
            self.recorder.tokens(self.decoding.len() as u64);
        }
        for index in self.joined.drain(..) {
            let flight = &mut self.flights[index];
            flight.first_token = self.now;
            if measuring {
                self.recorder.first_token(self.now - flight.arrived);
            }
            if !self.setup.prefill_counts_to_the_end
                && let Some(ticket) = flight.prefill.take()
            {
                self.prefill.pool.finish(ticket)?;
            }
        }
        while let Some(&Reverse((last_step, index))) = self.decoding.peek()
            && last_step == self.steps
        {
            self.decoding.pop();
            self.finish(index)?;
        }
        self.begin_step();
        Ok(())
    }

    fn finish(&mut self, index: usize) -> Result<(), Error> {
        let flight = self.flights.remove(index);
        self.decode.pool.finish(flight.decode)?;
        if let Some(ticket) = flight.prefill {
            self.prefill.pool.finish(ticket)?;
        }
        let Turn { input, output, .. } = flight.turn;
        let tokens = u64::from(input) + u64::from(output);
        let rank = &mut self.ranks[flight.rank];
        rank.outstanding -= 1;
        rank.running -= 1;
        rank.kv -= tokens;
        rank.reserved -= tokens;
        if self.now > self.setup.warm_up {
            self.recorder.response(self.now - flight.first_token, output - 1);
        }
        if let Traffic::Closed { conversations, concurrency } = self.setup.traffic {
            self.sessions[flight.origin].advance(conversations, concurrency.into());
            self.think(flight.origin);
        }
        Ok(())
    }

    fn sample_loads(&mut self) -> Result<(), Error> {
        self.decode.sample(self.ranks.iter().map(|rank| Load {
            worker: rank.worker,
            tokens: rank.held(),
            running: Some(rank.running),
            waiting: Some(rank.outstanding - rank.running),
            timestamp: None,
        }))?;
        let tokens_per_s = self.prefill_rank_tokens_per_s();
        self.prefill.sample(self.prefill_ranks.iter().map(|rank| Load {
            worker: rank.worker,
            tokens: (rank.free_at.saturating_sub(self.now).as_secs_f64() * tokens_per_s) as u64,
            running: None,
            waiting: None,
            timestamp: None,
        }))?;
        let Setup { poll_interval, poll_delay, .. } = self.setup;
        self.schedule(self.now + poll_delay, Event::Publish);
        self.schedule(self.now + poll_interval.max(poll_delay), Event::Poll);
        Ok(())
    }

    fn sample(&mut self) {
        self.recorder.sample(self.ranks.iter().map(|rank| RankSample {
            outstanding: rank.outstanding,
            running: rank.running,
            kv: rank.held(),
        }));
        self.samples += 1;
        self.schedule_sample();
    }

    fn schedule_sample(&mut self) {
        let second = self.setup.warm_up + SAMPLE_INTERVAL * self.samples;
        let at = second + SAMPLE_INTERVAL.mul_f64(self.sample_rng.random_range(0.0..1.0));
        self.schedule(at, Event::Sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::{Preset, Step};
    use crate::workload;

    const WARM_UP: Duration = Duration::from_secs(60);
    const FREE: Step = Step {
        base: Duration::ZERO,
        per_request: Duration::ZERO,
        per_million_kv_tokens: Duration::ZERO,
    };

    fn setup(traffic: Traffic<'_>, policy: Policy, seed: u64) -> Setup<'_> {
        Setup {
            traffic,
            deployment: Deployment {
                prefill: Duration::from_millis(18),
                prefill_tokens_per_s: 240_000.0,
                transfer: Duration::from_secs(1),
                transfer_tokens_per_s: f64::INFINITY,
                think_cap: Duration::from_millis(4_500),
                ..Preset::DeepseekV4Mi355x.deployment()
            },
            policy,
            prefill_policy: Policy::LeastRequests,
            tuning: Tuning::default(),
            ranks: 8,
            prefill_ranks: 1,
            prefill_counts_to_the_end: false,
            seed,
            poll_interval: Duration::from_secs(1),
            poll_delay: Duration::ZERO,
            warm_up: WARM_UP,
        }
    }

    fn closed(conversations: &[Conversation], concurrency: u32) -> Traffic<'_> {
        Traffic::Closed { conversations, concurrency }
    }

    /// A conversation of one request, again and again.
    fn single(input: u32, uncached: u32, output: u32) -> [Conversation; 1] {
        [vec![Turn { input, uncached, output, think: Duration::ZERO }]]
    }

    /// Two requests at once, then none.
    fn two_arrivals(input: u32, output: u32) -> [Arrival; 2] {
        [Arrival { at: Duration::ZERO, input, output }; 2]
    }

    fn running(simulation: &Simulation) -> u32 {
        simulation.ranks.iter().map(|rank| rank.running).sum()
    }

    #[test]
    fn a_request_takes_prefill_transfer_and_a_step_a_token() {
        let mut conversations = single(50_000, 24_000, 10);
        conversations[0][0].think = Duration::from_secs(100);
        let setup = setup(closed(&conversations, 1), Policy::RoundRobin, 1);
        let mut simulation = Simulation::new(Setup { warm_up: Duration::ZERO, ..setup }).unwrap();
        // 4.5 s of thought, 18 ms + 100 ms of prefill, 1 s of transfer, 10 steps of 7.912 ms.
        let end = Duration::from_micros(4_500_000 + 118_000 + 1_000_000 + 79_120);
        simulation.run_until(end - Duration::from_nanos(1)).unwrap();
        assert_eq!(simulation.flights.len(), 1);
        simulation.run_until(end).unwrap();
        assert_eq!(simulation.flights.len(), 0);

        let measured = simulation.measured();
        for (value, expected) in [
            (measured.ttft_p50_ms, 118.0 + 1_000.0 + 7.912),
            (measured.tpot_p50_ms, 7.912),
            (measured.tok_s_gpu, 10.0 / end.as_secs_f64() / 16.0),
        ] {
            assert!((value / expected - 1.0).abs() < 1e-3, "{value}, not {expected}");
        }
    }

    #[test]
    fn a_prefill_rank_serves_one_prompt_at_a_time() {
        let conversations = single(24_000, 24_000, 1_000_000);
        let setup = setup(closed(&conversations, 3), Policy::LeastRequests, 1);
        let mut simulation = Simulation::new(setup).unwrap();
        for (nth, expected) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
            // The step after that must have begun too.
            let joined = Duration::from_millis(1_000 + 118 * nth + 9);
            simulation.run_until(joined).unwrap();
            assert_eq!(running(&simulation), expected, "after {nth} prompts");
        }
    }

    #[test]
    fn prefill_ranks_share_the_rate_and_work_side_by_side() {
        let arrivals = two_arrivals(24_000, 1_000_000);
        let traffic = Traffic::Open { arrivals: &arrivals, rate: 1.0 };
        let setup = setup(traffic, Policy::LeastRequests, 1);
        let mut simulation = Simulation::new(Setup { prefill_ranks: 2, ..setup }).unwrap();
        simulation.run_until(Duration::from_millis(1_217)).unwrap();
        assert_eq!(running(&simulation), 0);
        simulation.run_until(Duration::from_millis(1_218)).unwrap();
        // One begins the step, the other waits for the next: they come one after the other.
        simulation.run_until(Duration::from_millis(1_227)).unwrap();
        assert_eq!(running(&simulation), 2);
    }

    #[test]
    fn a_rank_takes_in_one_prompt_at_a_time() {
        let arrivals = two_arrivals(24_000, 1_000_000);
        let traffic = Traffic::Open { arrivals: &arrivals, rate: 1.0 };
        let running_at = |ranks, ms| {
            let mut setup = Setup { ranks, ..setup(traffic, Policy::LeastRequests, 1) };
            setup.deployment.transfer_tokens_per_s = 24_000.0;
            let mut simulation = Simulation::new(setup).unwrap();
            simulation.run_until(Duration::from_millis(ms)).unwrap();
            running(&simulation)
        };
        // 118 ms of prefill each, a second on the link, another of latency.
        assert_eq!(
            [2_117, 2_118, 2_245, 3_110, 3_127].map(|ms| running_at(1, ms)),
            [0, 1, 1, 1, 2]
        );
        assert_eq!([2_117, 2_118, 2_245].map(|ms| running_at(2, ms)), [0, 1, 2]);
    }

    #[test]
    fn the_prefill_count_ends_with_the_first_token_or_the_response() {
        let arrivals = two_arrivals(24_000, 100);
        let traffic = Traffic::Open { arrivals: &arrivals, rate: 1.0 };
        let in_flight = |prefill_counts_to_the_end, at| {
            let setup =
                Setup { prefill_counts_to_the_end, ..setup(traffic, Policy::LeastRequests, 1) };
            let mut simulation = Simulation::new(setup).unwrap();
            simulation.run_until(Duration::from_millis(at)).unwrap();
            simulation.prefill.pool.totals().unwrap().in_flight
        };
        assert_eq!([false, true].map(|to_the_end| in_flight(to_the_end, 1_117)), [2, 2]);
        assert_eq!([false, true].map(|to_the_end| in_flight(to_the_end, 1_300)), [0, 2]);
        assert_eq!([false, true].map(|to_the_end| in_flight(to_the_end, 4_000)), [0, 0]);
    }

    #[test]
    fn a_full_rank_lets_requests_wait_for_room() {
        let arrivals = two_arrivals(24_000, 100);
        let traffic = Traffic::Open { arrivals: &arrivals, rate: 1.0 };
        let running_at = |kv_capacity, at| {
            let mut setup = Setup { ranks: 1, ..setup(traffic, Policy::LeastRequests, 1) };
            setup.deployment.kv_capacity = kv_capacity;
            let mut simulation = Simulation::new(setup).unwrap();
            simulation.run_until(Duration::from_millis(at)).unwrap();
            running(&simulation)
        };
        assert_eq!(running_at(None, 1_300), 2);
        assert_eq!(running_at(Some(48_200), 1_300), 2);
        assert_eq!(running_at(Some(48_199), 1_300), 1);
        // The first one's 100 tokens are done by then, and the second one's are not.
        assert_eq!(running_at(Some(48_199), 2_300), 1);
        assert_eq!(running_at(None, 2_300), 0);
        assert_eq!(running_at(Some(1), 1_300), 1, "larger than the rank, it runs alone");
    }

    #[test]
    fn a_prompt_holds_kv_from_its_dispatch_on() {
        let arrivals = [Arrival { at: Duration::from_millis(500), input: 24_000, output: 40 }];
        let traffic = Traffic::Open { arrivals: &arrivals, rate: 1.0 };
        let setup = setup(traffic, Policy::RoundRobin, 1);
        let held_at = |ms| {
            let mut simulation = Simulation::new(setup).unwrap();
            simulation.run_until(Duration::from_millis(ms)).unwrap();
            simulation.ranks.iter().map(DecodeRank::held).sum::<u64>()
        };
        // 118 ms of prefill, 1 s of transfer, 40 steps of 7.912 ms.
        assert_eq!(
            [499, 500, 1_617, 1_626, 1_934, 1_935].map(held_at),
            [0, 24_000, 24_000, 24_001, 24_039, 0]
        );
    }

    #[test]
    fn kv_grows_by_a_token_a_step() {
        let conversations = single(1_000_000, 0, 3);
        let mut setup = setup(closed(&conversations, 1), Policy::RoundRobin, 1);
        setup.deployment.prefill = Duration::ZERO;
        setup.deployment.transfer = Duration::ZERO;
        setup.deployment.step = Step { per_million_kv_tokens: Duration::from_secs(1), ..FREE };
        let mut simulation = Simulation::new(setup).unwrap();
        simulation.run_until(Duration::from_secs(3)).unwrap();
        assert_eq!(simulation.steps, 2);
        simulation.run_until(Duration::from_micros(3_000_003)).unwrap();
        assert_eq!(simulation.steps, 3);
    }

    #[test]
    fn a_step_waits_for_the_rank_that_takes_longest() {
        let arrivals =
            [1_000_000, 1, 1].map(|input| Arrival { at: Duration::ZERO, input, output: 9 });
        let traffic = Traffic::Open { arrivals: &arrivals, rate: 1.0 };
        let mut setup = Setup { ranks: 2, ..setup(traffic, Policy::LeastTokens, 1) };
        setup.deployment.prefill = Duration::ZERO;
        setup.deployment.prefill_tokens_per_s = 1e15;
        setup.deployment.transfer = Duration::ZERO;
        setup.deployment.step = Step {
            base: Duration::ZERO,
            per_request: Duration::from_secs(1),
            per_million_kv_tokens: Duration::from_secs(2),
        };
        let mut simulation = Simulation::new(setup).unwrap();
        // One request with the tokens, beside two without: 3 s each, the largest of each would be 4 s.
        simulation.run_until(Duration::from_millis(6_100)).unwrap();
        assert_eq!((running(&simulation), simulation.steps), (3, 2));
    }

    #[test]
    fn a_rate_moves_arrivals_together() {
        let arrivals = [0, 10, 20].map(|at| Arrival {
            at: Duration::from_secs(at),
            input: 1,
            output: 1_000_000,
        });
        let in_flight = |rate, at| {
            let traffic = Traffic::Open { arrivals: &arrivals, rate };
            let mut simulation = Simulation::new(setup(traffic, Policy::LeastRequests, 1)).unwrap();
            simulation.run_until(Duration::from_secs(at)).unwrap();
            simulation.flights.len()
        };
        assert_eq!([in_flight(1.0, 9), in_flight(1.0, 10), in_flight(1.0, 20)], [1, 2, 3]);
        assert_eq!([in_flight(2.0, 4), in_flight(2.0, 5), in_flight(2.0, 10)], [1, 2, 3]);
    }

    #[test]
    fn loads_are_published_after_their_delay_as_they_were_sampled() {
        let conversations = single(24_000, 24_000, 1_000_000);
        let setup = Setup {
            ranks: 1,
            poll_delay: Duration::from_millis(400),
            ..setup(closed(&conversations, 1), Policy::LeastRequests, 1)
        };
        let mut simulation = Simulation::new(setup).unwrap();
        let mut published_at = |ms| {
            simulation.run_until(Duration::from_millis(ms)).unwrap();
            let stats = simulation.decode.pool.stats().unwrap();
            stats[0].load.map(|load| load.tokens)
        };
        assert_eq!(published_at(399), None);
        assert_eq!(published_at(400), Some(0), "the poll was before the request");
        assert_eq!(published_at(1_399), Some(0));
        assert_eq!(published_at(1_400), Some(24_000), "not the tokens made since 1 s");
    }

    #[test]
    fn a_seed_decides_a_run() {
        let conversations = workload::synthetic(0);
        for policy in Policy::ALL {
            let run = |seed| {
                let setup = setup(closed(&conversations, 64), policy, seed);
                let mut simulation = Simulation::new(setup).unwrap();
                simulation.run_until(WARM_UP * 3).unwrap();
                format!("{:?}", simulation.measured())
            };
            assert_eq!(run(1), run(1));
            assert_ne!(run(1), run(2));
        }
    }

    #[test]
    fn the_pools_count_what_is_in_flight() {
        let conversations = workload::synthetic(0);
        for policy in Policy::ALL {
            let setup = Setup {
                prefill_ranks: 3,
                prefill_policy: policy,
                poll_delay: Duration::from_millis(300),
                ..setup(closed(&conversations, 64), policy, 1)
            };
            let mut simulation = Simulation::new(setup).unwrap();
            simulation.run_until(WARM_UP * 10).unwrap();
            let Simulation { decode, prefill, ranks, flights, .. } = &simulation;

            for stats in decode.pool.stats().unwrap() {
                let slot = stats.worker.slot();
                let here = || flights.iter().filter(|(_, flight)| flight.rank == slot);
                let tokens: u32 = here().map(|(_, flight)| flight.turn.input).sum();
                assert_eq!(stats.in_flight, ranks[slot].outstanding);
                assert_eq!(stats.in_flight as usize, here().count());
                assert_eq!(stats.tokens, tokens);
            }
            let before_decode = flights.iter().filter(|(_, flight)| flight.prefill.is_some());
            assert_eq!(prefill.pool.totals().unwrap().in_flight as usize, before_decode.count());
            assert_eq!(running(&simulation) as usize, simulation.decoding.len());
            for router in [decode, prefill] {
                let totals = router.pool.totals().unwrap();
                assert!(totals.finished > 1_000);
                assert_eq!((totals.anomalies, totals.rejected_loads), (0, 0));
            }
        }
    }
}
