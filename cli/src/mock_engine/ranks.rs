//! The DP ranks of one engine: FIFO prefill, a transfer, decode in lock step; or response times that
//! no load changes. Nothing here waits: whoever drives it says what time it is.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;

use super::{Role, Service};
use crate::deployment::Deployment;

/// What a request asks of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Otherwise the ranks take turns.
    pub rank: Option<usize>,
    pub input: u32,
    pub uncached: u32,
    /// At least 1.
    pub output: u32,
    /// Tokens between two looks at it: of a streamed chunk, or all.
    pub chunk: u32,
    /// Where `Service` has response times.
    pub service: Duration,
    /// After how many tokens the response breaks off.
    pub break_at: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    pub begun: u64,
    /// Of them, those that came without a rank.
    pub unrouted: u64,
    pub finished: u64,
    /// The client left.
    pub aborted: u64,
    /// The engine broke off.
    pub failed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    Finished,
    Aborted,
    Failed,
}

#[derive(Debug)]
pub struct Flight {
    pub rank: usize,
    pub input: u32,
    pub uncached: u32,
    output: u32,
    made: u32,
    chunk: u32,
    break_at: Option<u32>,
    service: Duration,
    began: Instant,
    pub prefilled: bool,
    pub running: bool,
    /// Tokens made, for the response; closed when the request has ended.
    progress: watch::Sender<u32>,
}

#[derive(Debug, Default)]
pub struct Rank {
    pub counts: Counts,
    pub outstanding: u32,
    pub peak_outstanding: u32,
    /// Those that decode, in no order.
    pub running: Vec<u64>,
    /// Those whose KV has arrived, for the next step or until there is room. Some may have ended.
    ready: VecDeque<u64>,
    /// KV tokens of those that run, now and at the last token of each.
    pub kv: u64,
    reserved: u64,
    link_free_at: Option<Instant>,
    pub made: u64,
    /// Since the engine began.
    pub input: u64,
    pub cached: u64,
    pub prefilled: u64,
    pub prefill_busy: Duration,
}

/// Equal moments happen in the order in which they were scheduled.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// What heads this prefill queue.
    Prefilled(usize),
    Transferred(u64),
    StepEnd,
    /// The next tokens of a request with a response time.
    Due(u64),
}

#[derive(Debug)]
pub struct Ranks {
    deployment: Deployment,
    service: Service,
    role: Role,
    pub kv_capacity: u64,
    pub max_running: usize,
    pub ranks: Vec<Rank>,
    /// Each headed by the prompt in work. A prefill engine has one a rank, others one for all.
    prefill: Vec<VecDeque<u64>>,
    flights: HashMap<u64, Flight>,
    /// Begun while the engine hangs.
    held: Vec<u64>,
    last_id: u64,
    next_rank: usize,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    scheduled: u64,
    stepping: bool,
}

impl Ranks {
    pub fn new(
        dp_size: usize,
        role: Role,
        service: Service,
        deployment: Deployment,
        kv_capacity: u64,
        max_running: usize,
    ) -> Self {
        let prefill_queues = if role == Role::Prefill { dp_size } else { 1 };
        Self {
            deployment,
            service,
            role,
            kv_capacity,
            max_running,
            ranks: (0..dp_size).map(|_| Rank::default()).collect(),
            prefill: vec![VecDeque::new(); prefill_queues],
            flights: HashMap::new(),
            held: Vec::new(),
            last_id: 0,
            next_rank: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
            stepping: false,
        }
    }

    pub fn flights(&self) -> impl Iterator<Item = &Flight> {
        self.flights.values()
    }

    /// Counts a request on its rank, but it gets nowhere until `release`.
    pub fn hold(&mut self, now: Instant, work: Work) -> (u64, usize, watch::Receiver<u32>) {
        let index = work.rank.unwrap_or_else(|| {
            let turn = self.next_rank;
            self.next_rank = (turn + 1) % self.ranks.len();
            turn
        });
        let rank = &mut self.ranks[index];
        rank.counts.begun += 1;
        rank.counts.unrouted += u64::from(work.rank.is_none());
        rank.outstanding += 1;
        rank.peak_outstanding = rank.peak_outstanding.max(rank.outstanding);
        rank.input += u64::from(work.input);
        rank.cached += u64::from(work.input - work.uncached);

        self.last_id += 1;
        let (progress, made) = watch::channel(0);
        self.flights.insert(
            self.last_id,
            Flight {
                rank: index,
                input: work.input,
                uncached: work.uncached,
                output: work.output,
                made: 0,
                chunk: work.chunk,
                break_at: work.break_at,
                service: work.service,
                began: now,
                prefilled: false,
                running: false,
                progress,
            },
        );
        self.held.push(self.last_id);
        (self.last_id, index, made)
    }

    /// Those that are held begin their work.
    pub fn release(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.held) {
            let Some(flight) = self.flights.get_mut(&id) else { continue };
            match self.service {
                Service::LockStep => {
                    let queue = flight.rank % self.prefill.len();
                    self.prefill[queue].push_back(id);
                    if self.prefill[queue].len() == 1 {
                        self.begin_prefill(queue, now);
                    }
                }
                Service::LogNormal(_) => {
                    flight.began = now;
                    flight.prefilled = true;
                    self.run(id);
                    self.schedule_due(id);
                }
            }
        }
    }

    /// Lets everything happen that is due; when the next thing will be.
    pub fn advance(&mut self, now: Instant) -> Option<Instant> {
        while let Some(&Reverse((at, ..))) = self.events.peek() {
            if at > now {
                return Some(at);
            }
            let Some(Reverse((_, _, event))) = self.events.pop() else { break };
            match event {
                Event::Prefilled(queue) => self.end_prefill(queue, at),
                Event::Transferred(id) => {
                    if let Some(flight) = self.flights.get(&id) {
                        self.ranks[flight.rank].ready.push_back(id);
                        if !self.stepping {
                            self.begin_step(at);
                        }
                    }
                }
                Event::StepEnd => self.end_step(at),
                Event::Due(id) => {
                    if let Some(flight) = self.flights.get(&id) {
                        let made = flight.next_due();
                        self.make(id, made);
                        self.schedule_due(id);
                    }
                }
            }
        }
        None
    }

    /// Nothing if it has ended before.
    pub fn end(&mut self, id: u64, end: End) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let rank = &mut self.ranks[flight.rank];
        match end {
            End::Finished => rank.counts.finished += 1,
            End::Aborted => rank.counts.aborted += 1,
            End::Failed => rank.counts.failed += 1,
        }
        rank.outstanding -= 1;
        if flight.running {
            rank.running.retain(|running| *running != id);
            rank.kv -= u64::from(flight.input) + u64::from(flight.made);
            rank.reserved -= u64::from(flight.input) + u64::from(flight.output);
        }
    }

    pub fn fail_all(&mut self) {
        for id in self.flights.keys().copied().collect::<Vec<_>>() {
            self.end(id, End::Failed);
        }
    }

    /// Counts begin anew; what is outstanding stays.
    pub fn reset_counts(&mut self) {
        for rank in &mut self.ranks {
            rank.counts = Counts::default();
            rank.peak_outstanding = rank.outstanding;
        }
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.events.push(Reverse((at, self.scheduled, event)));
        self.scheduled += 1;
    }

    /// The first in the queue whose client is still there.
    fn begin_prefill(&mut self, queue: usize, now: Instant) {
        while let Some(id) = self.prefill[queue].front() {
            let Some(flight) = self.flights.get(id) else {
                self.prefill[queue].pop_front();
                continue;
            };
            let rate = self.deployment.prefill_tokens_per_s / self.prefill.len() as f64;
            let time = self.deployment.prefill
                + Duration::from_secs_f64(f64::from(flight.uncached) / rate);
            let rank = &mut self.ranks[flight.rank];
            rank.prefilled += u64::from(flight.uncached);
            rank.prefill_busy += time;
            self.schedule(now + time, Event::Prefilled(queue));
            return;
        }
    }

    fn end_prefill(&mut self, queue: usize, now: Instant) {
        let prefilled = self.prefill[queue].pop_front();
        self.begin_prefill(queue, now);
        let Some(id) = prefilled else { return };
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.prefilled = true;
        // It makes the first token; the others are its partner's.
        if self.role == Role::Prefill {
            self.make(id, 1);
            return;
        }
        let time = f64::from(flight.input) / self.deployment.transfer_tokens_per_s;
        let link_free_at = &mut self.ranks[flight.rank].link_free_at;
        let arrived = link_free_at.unwrap_or(now).max(now) + Duration::from_secs_f64(time);
        *link_free_at = Some(arrived);
        self.schedule(arrived + self.deployment.transfer, Event::Transferred(id));
    }

    fn begin_step(&mut self, now: Instant) {
        for index in 0..self.ranks.len() {
            while let Some(&id) = self.ranks[index].ready.front() {
                if let Some(flight) = self.flights.get(&id) {
                    let rank = &self.ranks[index];
                    let tokens = u64::from(flight.input) + u64::from(flight.output);
                    let room = rank.reserved + tokens <= self.kv_capacity
                        && rank.running.len() < self.max_running;
                    // What no rank has room for runs alone.
                    if !room && !rank.running.is_empty() {
                        break;
                    }
                    self.run(id);
                }
                self.ranks[index].ready.pop_front();
            }
        }
        let largest_batch = self.ranks.iter().map(|rank| rank.running.len()).max().unwrap_or(0);
        let largest_kv = self.ranks.iter().map(|rank| rank.kv).max().unwrap_or(0);
        self.stepping = largest_batch > 0;
        if self.stepping {
            let time = self.deployment.step.time(largest_batch as u32, largest_kv);
            self.schedule(now + time, Event::StepEnd);
        }
    }

    fn end_step(&mut self, now: Instant) {
        for index in 0..self.ranks.len() {
            for id in self.ranks[index].running.clone() {
                let made = self.flights[&id].made + 1;
                self.make(id, made);
            }
        }
        self.begin_step(now);
    }

    fn run(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.running = true;
        let rank = &mut self.ranks[flight.rank];
        rank.running.push(id);
        rank.kv += u64::from(flight.input);
        rank.reserved += u64::from(flight.input) + u64::from(flight.output);
    }

    fn schedule_due(&mut self, id: u64) {
        let Some(flight) = self.flights.get(&id) else { return };
        let part = f64::from(flight.next_due()) / f64::from(flight.output);
        self.schedule(flight.began + flight.service.mul_f64(part), Event::Due(id));
    }

    /// Brings a request to so many tokens, which may be its last.
    fn make(&mut self, id: u64, made: u32) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let tokens = u64::from(made - flight.made);
        flight.made = made;
        let rank = &mut self.ranks[flight.rank];
        rank.made += tokens;
        if flight.running {
            rank.kv += tokens;
        }
        let (finished, broken) = (made == flight.output, flight.break_at == Some(made));
        if made.is_multiple_of(flight.chunk) || finished || broken {
            flight.progress.send_replace(made);
        }
        if broken {
            self.end(id, End::Failed);
        } else if finished {
            self.end(id, End::Finished);
        }
    }
}

impl Flight {
    fn next_due(&self) -> u32 {
        let end = self.break_at.unwrap_or(self.output);
        self.made.saturating_add(self.chunk).min(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::Preset;
    use rand::{RngExt, SeedableRng};
    use rand_distr::LogNormal;
    use rand_xoshiro::Xoshiro256PlusPlus;

    const WORK: Work = Work {
        rank: Some(0),
        input: 24_000,
        uncached: 24_000,
        output: 10,
        chunk: 1,
        service: Duration::ZERO,
        break_at: None,
    };

    /// Ranks and the moment they began at.
    struct Bench {
        ranks: Ranks,
        start: Instant,
    }

    impl Bench {
        /// 118 ms of prefill for `WORK`, a second of transfer, steps of 7.58 ms + 0.332 ms × batch.
        fn new(dp_size: usize, role: Role, service: Service) -> Self {
            let deployment = Deployment {
                prefill_tokens_per_s: 240_000.0,
                transfer: Duration::from_secs(1),
                transfer_tokens_per_s: f64::INFINITY,
                ..Preset::DeepseekV4Mi355x.deployment()
            };
            let ranks = Ranks::new(dp_size, role, service, deployment, 1_000_000, 100);
            Self { ranks, start: Instant::now() }
        }

        fn lock_step(dp_size: usize) -> Self {
            Self::new(dp_size, Role::Both, Service::LockStep)
        }

        fn begin(&mut self, us: u64, work: Work) -> (u64, watch::Receiver<u32>) {
            self.at(us);
            let now = self.start + Duration::from_micros(us);
            let (id, _, made) = self.ranks.hold(now, work);
            self.ranks.release(now);
            (id, made)
        }

        fn at(&mut self, us: u64) -> &Ranks {
            self.ranks.advance(self.start + Duration::from_micros(us));
            &self.ranks
        }

        fn running(&mut self, us: u64) -> Vec<usize> {
            self.at(us).ranks.iter().map(|rank| rank.running.len()).collect()
        }
    }

    #[test]
    fn a_request_takes_prefill_transfer_and_a_step_a_token() {
        let mut bench = Bench::lock_step(1);
        let (_, made) = bench.begin(0, WORK);
        assert_eq!(bench.running(1_117_999), [0]);
        assert_eq!(bench.running(1_118_000), [1]);
        bench.at(1_118_000 + 7_911);
        assert_eq!(*made.borrow(), 0);
        bench.at(1_118_000 + 7_912);
        assert_eq!(*made.borrow(), 1);
        assert_eq!(bench.ranks.ranks[0].kv, 24_001);
        assert_eq!(bench.at(1_118_000 + 79_119).ranks[0].counts.finished, 0);
        assert_eq!(bench.at(1_118_000 + 79_120).ranks[0].counts.finished, 1);
        assert_eq!((*made.borrow(), made.has_changed().is_err()), (10, true));
    }

    #[test]
    fn every_rank_waits_for_the_busiest() {
        let mut bench = Bench::lock_step(2);
        let small = Work { uncached: 0, output: 1_000, ..WORK };
        let (_, made) = bench.begin(0, small);
        for _ in 0..20 {
            bench.begin(0, Work { rank: Some(1), ..small });
        }
        // 21 prompts of 18 ms, one after the other.
        let all = 21 * 18_000 + 1_000_000 + 20_000;
        assert_eq!(bench.running(all), [1, 20]);
        let before = *made.borrow();
        bench.at(all + 10 * (7_580 + 20 * 332));
        assert_eq!(*made.borrow(), before + 10);
    }

    #[test]
    fn who_leaves_the_queue_gives_its_time_in_prefill_back() {
        let mut bench = Bench::lock_step(1);
        bench.begin(0, WORK);
        let (left, _) = bench.begin(0, WORK);
        bench.begin(0, WORK);
        bench.ranks.end(left, End::Aborted);
        assert_eq!(bench.running(1_118_000), [1]);
        assert_eq!(bench.running(1_118_000 + 118_000 + 7_912), [1], "the first has ended");
        assert_eq!(bench.at(3_000_000).ranks[0].counts.finished, 2);
        assert_eq!(bench.ranks.ranks[0].prefill_busy, Duration::from_millis(2 * 118));
    }

    #[test]
    fn a_full_rank_lets_requests_wait_for_room() {
        let running = |kv_capacity, max_running| {
            let mut bench = Bench::lock_step(1);
            (bench.ranks.kv_capacity, bench.ranks.max_running) = (kv_capacity, max_running);
            for _ in 0..2 {
                bench.begin(0, Work { uncached: 0, output: 100, ..WORK });
            }
            bench.running(1_100_000)
        };
        assert_eq!(running(48_200, 2), [2]);
        assert_eq!(running(48_199, 2), [1]);
        assert_eq!(running(48_200, 1), [1]);
        assert_eq!(running(1, 2), [1], "larger than the rank, it runs alone");
    }

    #[test]
    fn a_prefill_engine_makes_one_token_and_has_a_queue_a_rank() {
        let mut bench = Bench::new(2, Role::Prefill, Service::LockStep);
        let work = Work { output: 1, ..WORK };
        bench.begin(0, work);
        bench.begin(0, work);
        bench.begin(0, Work { rank: Some(1), ..work });
        // The ranks share the rate: 18 ms and 200 ms.
        let finished = |bench: &mut Bench, us| -> Vec<_> {
            bench.at(us).ranks.iter().map(|rank| rank.counts.finished).collect()
        };
        assert_eq!(finished(&mut bench, 217_999), [0, 0]);
        assert_eq!(finished(&mut bench, 218_000), [1, 1]);
        assert_eq!(finished(&mut bench, 436_000), [2, 1]);
    }

    #[test]
    fn response_times_ignore_the_load() {
        let times = LogNormal::from_mean_cv(1.0, 1.0).unwrap();
        let mut bench = Bench::new(1, Role::Both, Service::LogNormal(times));
        let work = Work { service: Duration::from_secs(1), ..WORK };
        let (_, made) = bench.begin(0, work);
        for _ in 0..50 {
            bench.begin(0, Work { chunk: 10, ..work });
        }
        bench.at(299_999);
        assert_eq!(*made.borrow(), 2);
        bench.at(300_000);
        assert_eq!(*made.borrow(), 3);
        assert_eq!(bench.running(999_999), [51]);
        assert_eq!(bench.running(1_000_000), [0]);
        assert_eq!(bench.ranks.ranks[0].counts.finished, 51);
    }

    #[test]
    fn what_is_held_is_outstanding_and_gets_nowhere() {
        let mut bench = Bench::lock_step(2);
        bench.ranks.hold(bench.start, Work { rank: None, ..WORK });
        bench.ranks.hold(bench.start, Work { rank: None, ..WORK });
        let rank = &bench.at(60_000_000).ranks[1];
        assert_eq!((rank.outstanding, rank.counts.finished, rank.counts.unrouted), (1, 0, 1));
        bench.ranks.release(bench.start + Duration::from_secs(60));
        assert_eq!(bench.at(70_000_000).ranks[1].counts.finished, 1);
    }

    #[test]
    fn counts_add_up_whatever_ends_when() {
        for service in
            [Service::LockStep, Service::LogNormal(LogNormal::from_mean_cv(1.0, 1.0).unwrap())]
        {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
            let mut bench = Bench::new(3, Role::Both, service);
            bench.ranks.kv_capacity = 100_000;
            let mut begun = Vec::new();
            let mut now = 0;
            for _ in 0..2_000 {
                now += rng.random_range(0..20_000);
                let output = rng.random_range(1..50);
                let breaks = rng.random_bool(0.1);
                let work = Work {
                    rank: rng.random_bool(0.5).then(|| rng.random_range(0..3)),
                    uncached: rng.random_range(0..1_000),
                    output,
                    chunk: rng.random_range(1..=output),
                    service: Duration::from_millis(rng.random_range(0..1_000)),
                    break_at: breaks.then(|| rng.random_range(1..=output)),
                    ..WORK
                };
                begun.push(bench.begin(now, work).0);
                if rng.random_bool(0.3) {
                    let left = begun.swap_remove(rng.random_range(0..begun.len()));
                    bench.ranks.end(left, End::Aborted);
                }
                for (index, rank) in bench.ranks.ranks.iter().enumerate() {
                    let here = || bench.ranks.flights().filter(|flight| flight.rank == index);
                    let running = || here().filter(|flight| flight.running);
                    let kv: u32 = running().map(|flight| flight.input + flight.made).sum();
                    assert_eq!(rank.outstanding as usize, here().count());
                    assert_eq!(rank.running.len(), running().count());
                    assert_eq!(rank.kv, u64::from(kv));
                    let Counts { begun, finished, aborted, failed, .. } = rank.counts;
                    assert_eq!(begun, finished + aborted + failed + u64::from(rank.outstanding));
                }
            }
            bench.at(u64::MAX / 1_000_000);
            for rank in &bench.ranks.ranks {
                assert_eq!((rank.outstanding, rank.kv, rank.reserved), (0, 0, 0));
                let Counts { finished, aborted, failed, .. } = rank.counts;
                assert!(finished > 0 && aborted > 0 && failed > 0, "{:?}", rank.counts);
            }
        }
    }
}
