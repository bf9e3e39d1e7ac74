//! A disaggregated deployment in virtual time: closed-loop conversations, one FIFO prefill server,
//! decode ranks in lock step. Every choice of a rank is made by a real pool, fed by real polls;
//! the model only says when things happen.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use evenkeel::{Error, Load, Picker, Policy, Poll, Pool, PoolConfig, Request, Ticket, WorkerId};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

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

/// How long each part of a request takes.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub prefill: Duration,
    pub prefill_tokens_per_s: f64,
    pub transfer: Duration,
    pub step: Duration,
    pub step_per_request: Duration,
    pub step_per_million_kv_tokens: Duration,
    pub think_cap: Duration,
}

/// DeepSeek-V4-Pro on MI355X, calibrated by hand. Its sparse attention makes the KV term vanish.
impl Default for Timing {
    fn default() -> Self {
        Self {
            prefill: Duration::from_millis(18),
            prefill_tokens_per_s: 240_000.0,
            transfer: Duration::from_secs(1),
            step: Duration::from_micros(7_580),
            step_per_request: Duration::from_micros(332),
            step_per_million_kv_tokens: Duration::ZERO,
            think_cap: Duration::from_millis(4_500),
        }
    }
}

impl Timing {
    /// Each decode step waits for the rank with the largest batch and the one with the most KV.
    fn step(&self, largest_batch: u32, largest_kv: u64) -> Duration {
        self.step
            + self.step_per_request * largest_batch
            + self.step_per_million_kv_tokens.mul_f64(largest_kv as f64 / 1e6)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    pub conversations: &'a [Conversation],
    pub timing: Timing,
    pub policy: Policy,
    pub concurrency: u32,
    pub ranks: u16,
    pub seed: u64,
    pub poll_interval: Duration,
    /// Nothing is measured before.
    pub warm_up: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    /// The session's prompt is on its rank and decodes from the next step on.
    Transferred(usize),
    StepEnd,
    Poll,
    Sample,
}

/// One user: a conversation, and then another. At most one request of it is in flight.
struct Session<'a> {
    /// Own random numbers, so that a seed's conversations are the same under every policy.
    rng: Xoshiro256PlusPlus,
    /// Never empty: its first turn is in flight or next.
    rest: &'a [Turn],
    /// Where its request is, or its last one was.
    rank: usize,
    ticket: Option<Ticket>,
}

impl<'a> Session<'a> {
    /// In the middle of a conversation, so that short and long contexts are there from the start.
    fn new(mut rng: Xoshiro256PlusPlus, conversations: &'a [Conversation]) -> Self {
        let conversation = choose(&mut rng, conversations);
        let passed = conversation.len() as f64 * rng.random_range(0.25..0.75);
        Self { rng, rest: &conversation[passed as usize..], rank: 0, ticket: None }
    }

    /// Turns to the next request, where there is none to another conversation.
    fn advance(&mut self, conversations: &'a [Conversation]) {
        self.rest = &self.rest[1..];
        if self.rest.is_empty() {
            self.rest = choose(&mut self.rng, conversations);
        }
    }
}

fn choose<'a>(rng: &mut impl Rng, conversations: &'a [Conversation]) -> &'a Conversation {
    &conversations[rng.random_range(0..conversations.len())]
}

struct Rank {
    worker: WorkerId,
    outstanding: u32,
    running: u32,
    /// KV tokens of the running requests.
    kv: u64,
    /// Prompts dispatched to this rank that wait for prefill, transfer or the next step.
    waiting_tokens: u64,
}

/// Means over the per-second samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub outstanding_cv: f64,
    pub busiest_batch: f64,
}

/// One run: a pool with a worker a rank, one picker, one poll, and the requests that they serve.
pub struct Simulation<'a> {
    setup: Setup<'a>,
    pool: Pool,
    picker: Picker,
    poll: Poll,
    /// By the worker's slot.
    ranks: Vec<Rank>,
    sessions: Vec<Session<'a>>,
    now: Duration,
    /// With a running number: what is scheduled first for a moment happens first.
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    scheduled: u64,
    prefill_free_at: Duration,
    /// Transferred sessions that wait for the next step.
    joining: Vec<usize>,
    /// Running sessions by the step that ends them.
    decoding: BinaryHeap<Reverse<(u64, usize)>>,
    steps: u64,
    stepping: bool,
    samples: u32,
    outstanding_cv_sum: f64,
    busiest_batch_sum: f64,
}

impl<'a> Simulation<'a> {
    pub fn new(setup: Setup<'a>) -> Result<Self, Error> {
        let pool = Pool::new(PoolConfig {
            capacity: setup.ranks.into(),
            seed: setup.seed,
            ..PoolConfig::default()
        })?;
        let members: Vec<_> = (0..setup.ranks).map(|rank| (rank.into(), None)).collect();
        pool.set_members(&members)?;
        let ranks = (pool.stats()?.iter())
            .map(|stats| Rank {
                worker: stats.worker,
                outstanding: 0,
                running: 0,
                kv: 0,
                waiting_tokens: 0,
            })
            .collect();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(setup.seed);
        let sessions = (0..setup.concurrency)
            .map(|_| {
                rng.jump();
                Session::new(rng.clone(), setup.conversations)
            })
            .collect();
        let mut simulation = Self {
            picker: pool.picker(setup.seed)?,
            poll: pool.poll(None),
            pool,
            ranks,
            sessions,
            setup,
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            scheduled: 0,
            prefill_free_at: Duration::ZERO,
            joining: Vec::new(),
            decoding: BinaryHeap::new(),
            steps: 0,
            stepping: false,
            samples: 0,
            outstanding_cv_sum: 0.0,
            busiest_batch_sum: 0.0,
        };
        simulation.schedule(Duration::ZERO, Event::Poll);
        simulation.schedule(setup.warm_up + SAMPLE_INTERVAL, Event::Sample);
        for index in 0..simulation.sessions.len() {
            simulation.think(index);
        }
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
                Event::Transferred(index) => {
                    self.joining.push(index);
                    if !self.stepping {
                        self.begin_step();
                    }
                }
                Event::StepEnd => self.end_step()?,
                Event::Poll => self.publish_loads()?,
                Event::Sample => self.sample(),
            }
        }
        Ok(())
    }

    pub fn measured(&self) -> Measured {
        let samples = f64::from(self.samples.max(1));
        Measured {
            outstanding_cv: self.outstanding_cv_sum / samples,
            busiest_batch: self.busiest_batch_sum / samples,
        }
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.events.push(Reverse((at, self.scheduled, event)));
        self.scheduled += 1;
    }

    fn think(&mut self, index: usize) {
        let pause = self.sessions[index].rest[0].think.min(self.setup.timing.think_cap);
        self.schedule(self.now + pause, Event::Arrival(index));
    }

    fn arrive(&mut self, index: usize) -> Result<(), Error> {
        let session = &mut self.sessions[index];
        let turn = session.rest[0];
        let ticket = self.picker.dispatch(&Request {
            policy: Some(self.setup.policy),
            tokens: turn.input,
            ..Request::default()
        })?;
        session.rank = ticket.worker().slot();
        session.ticket = Some(ticket);
        let rank = &mut self.ranks[session.rank];
        rank.outstanding += 1;
        rank.waiting_tokens += u64::from(turn.input);

        let timing = &self.setup.timing;
        let prefill = timing.prefill
            + Duration::from_secs_f64(f64::from(turn.uncached) / timing.prefill_tokens_per_s);
        self.prefill_free_at = self.prefill_free_at.max(self.now) + prefill;
        self.schedule(self.prefill_free_at + timing.transfer, Event::Transferred(index));
        Ok(())
    }

    fn begin_step(&mut self) {
        for index in self.joining.drain(..) {
            let session = &self.sessions[index];
            let Turn { input, output, .. } = session.rest[0];
            let rank = &mut self.ranks[session.rank];
            rank.running += 1;
            rank.waiting_tokens -= u64::from(input);
            rank.kv += u64::from(input);
            self.decoding.push(Reverse((self.steps + u64::from(output), index)));
        }
        self.stepping = !self.decoding.is_empty();
        if self.stepping {
            let largest_kv = self.ranks.iter().map(|rank| rank.kv).max().unwrap_or(0);
            let step = self.setup.timing.step(self.largest_batch(), largest_kv);
            self.schedule(self.now + step, Event::StepEnd);
        }
    }

    fn end_step(&mut self) -> Result<(), Error> {
        self.steps += 1;
        for rank in &mut self.ranks {
            rank.kv += u64::from(rank.running);
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
        let session = &mut self.sessions[index];
        if let Some(ticket) = session.ticket.take() {
            self.pool.finish(ticket)?;
        }
        let Turn { input, output, .. } = session.rest[0];
        let rank = &mut self.ranks[session.rank];
        rank.outstanding -= 1;
        rank.running -= 1;
        rank.kv -= u64::from(input) + u64::from(output);

        session.advance(self.setup.conversations);
        self.think(index);
        Ok(())
    }

    fn largest_batch(&self) -> u32 {
        self.ranks.iter().map(|rank| rank.running).max().unwrap_or(0)
    }

    fn publish_loads(&mut self) -> Result<(), Error> {
        let load = |rank: &Rank| Load {
            worker: rank.worker,
            tokens: rank.kv + rank.waiting_tokens,
            running: Some(rank.running),
            waiting: Some(rank.outstanding - rank.running),
            timestamp: None,
        };
        self.poll.begin()?;
        self.poll.publish(&self.ranks.iter().map(load).collect::<Vec<_>>())?;
        self.schedule(self.now + self.setup.poll_interval, Event::Poll);
        Ok(())
    }

    fn sample(&mut self) {
        self.samples += 1;
        let outstanding = self.ranks.iter().map(|rank| f64::from(rank.outstanding));
        self.outstanding_cv_sum += coefficient_of_variation(outstanding);
        self.busiest_batch_sum += f64::from(self.largest_batch());
        self.schedule(self.now + SAMPLE_INTERVAL, Event::Sample);
    }
}

/// Standard deviation ÷ mean; 0 where all are 0, which is as even as can be.
fn coefficient_of_variation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count() as f64;
    let mean = values.clone().sum::<f64>() / count;
    let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    const WARM_UP: Duration = Duration::from_secs(60);

    fn setup(conversations: &[Conversation], policy: Policy, seed: u64) -> Setup<'_> {
        Setup {
            conversations,
            timing: Timing::default(),
            policy,
            concurrency: 64,
            ranks: 8,
            seed,
            poll_interval: Duration::from_secs(1),
            warm_up: WARM_UP,
        }
    }

    /// A conversation of one request, again and again.
    fn single(input: u32, uncached: u32, output: u32) -> [Conversation; 1] {
        [vec![Turn { input, uncached, output, think: Duration::ZERO }]]
    }

    fn outstanding(simulation: &Simulation) -> u32 {
        simulation.ranks.iter().map(|rank| rank.outstanding).sum()
    }

    #[test]
    fn a_request_takes_prefill_transfer_and_a_step_a_token() {
        let mut conversations = single(50_000, 24_000, 10);
        conversations[0][0].think = Duration::from_secs(100);
        let setup = Setup { concurrency: 1, ..setup(&conversations, Policy::RoundRobin, 1) };
        let mut simulation = Simulation::new(setup).unwrap();
        // 4.5 s of thought, 18 ms + 100 ms of prefill, 1 s of transfer, 10 steps of 7.912 ms.
        let end = Duration::from_micros(4_500_000 + 118_000 + 1_000_000 + 79_120);
        simulation.run_until(end - Duration::from_nanos(1)).unwrap();
        assert_eq!(outstanding(&simulation), 1);
        simulation.run_until(end).unwrap();
        assert_eq!(outstanding(&simulation), 0);
    }

    #[test]
    fn prefill_serves_one_prompt_at_a_time() {
        let conversations = single(24_000, 24_000, 1_000_000);
        let setup = Setup { concurrency: 3, ..setup(&conversations, Policy::LeastRequests, 1) };
        let mut simulation = Simulation::new(setup).unwrap();
        for (nth, running) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
            // The step after that must have begun too.
            let joined = Duration::from_millis(1_000 + 118 * nth + 9);
            simulation.run_until(joined).unwrap();
            let now_running: u32 = simulation.ranks.iter().map(|rank| rank.running).sum();
            assert_eq!(now_running, running, "after {nth} prompts");
        }
    }

    #[test]
    fn a_step_waits_for_the_largest_batch_and_the_largest_kv() {
        let timing =
            Timing { step_per_million_kv_tokens: Duration::from_millis(5), ..Timing::default() };
        assert_eq!(timing.step(10, 2_000_000), Duration::from_micros(7_580 + 3_320 + 10_000));
    }

    #[test]
    fn kv_grows_by_a_token_a_step() {
        let conversations = single(1_000_000, 0, 3);
        let timing = Timing {
            prefill: Duration::ZERO,
            transfer: Duration::ZERO,
            step: Duration::ZERO,
            step_per_request: Duration::ZERO,
            step_per_million_kv_tokens: Duration::from_secs(1),
            ..Timing::default()
        };
        let mut simulation = Simulation::new(Setup {
            timing,
            concurrency: 1,
            ..setup(&conversations, Policy::RoundRobin, 1)
        })
        .unwrap();
        simulation.run_until(Duration::from_secs(3)).unwrap();
        assert_eq!(simulation.steps, 2);
        simulation.run_until(Duration::from_micros(3_000_003)).unwrap();
        assert_eq!(simulation.steps, 3);
    }

    #[test]
    fn a_seed_decides_a_run() {
        let conversations = workload::synthetic(0);
        for policy in Policy::ALL {
            let run = |seed| {
                let mut simulation = Simulation::new(setup(&conversations, policy, seed)).unwrap();
                simulation.run_until(WARM_UP * 3).unwrap();
                simulation.measured()
            };
            assert_eq!(run(1), run(1));
            assert_ne!(run(1), run(2));
        }
    }

    #[test]
    fn the_pool_counts_what_is_in_flight() {
        let conversations = workload::synthetic(0);
        for policy in Policy::ALL {
            let mut simulation = Simulation::new(setup(&conversations, policy, 1)).unwrap();
            simulation.run_until(WARM_UP * 10).unwrap();
            let Simulation { pool, ranks, sessions, .. } = &simulation;

            for stats in pool.stats().unwrap() {
                let slot = stats.worker.slot();
                let here = sessions
                    .iter()
                    .filter(|session| session.ticket.is_some() && session.rank == slot);
                let tokens: u32 = here.clone().map(|session| session.rest[0].input).sum();
                assert_eq!(stats.in_flight, ranks[slot].outstanding);
                assert_eq!(stats.in_flight as usize, here.count());
                assert_eq!(stats.tokens, tokens);
            }
            let running: u32 = ranks.iter().map(|rank| rank.running).sum();
            assert_eq!(running as usize, simulation.decoding.len());
            let totals = pool.totals().unwrap();
            assert!(totals.finished > 1_000);
            assert_eq!((totals.anomalies, totals.rejected_loads), (0, 0));
        }
    }

    #[test]
    fn nothing_outstanding_is_even() {
        assert_eq!(coefficient_of_variation([0.0, 0.0].into_iter()), 0.0);
        assert_eq!(coefficient_of_variation([1.0, 3.0].into_iter()), 0.5);
    }
}
