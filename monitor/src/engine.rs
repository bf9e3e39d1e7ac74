//! One engine's task: its clock, its polls, what they do to the pool, what is told of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use evenkeel::{Load, Poll, Pool, Vetoes, WorkerId};
use http::{StatusCode, Uri};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::client::{Client, Failure};
use crate::report::{RankLoad, Rejected, Report, one_line, parse};

/// After so many polls by the oldest path an engine is asked again if it knows the current one.
const POLLS_BY_OLDEST: u32 = 60;

/// What is known of an engine's polls.
#[derive(Clone, Default, Debug)]
pub(crate) struct State {
    /// In a row, up to now.
    pub(crate) failures: u32,
    pub(crate) last_failure: Option<String>,
    pub(crate) last_success: Option<Instant>,
}

pub(crate) struct Engine {
    pub(crate) name: Arc<str>,
    pub(crate) pool: Pool,
    pub(crate) poll: Poll,
    /// By rank.
    pub(crate) workers: Arc<[WorkerId]>,
    pub(crate) client: Client,
    pub(crate) paths: Paths,
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    pub(crate) refusals: u32,
    pub(crate) state: Arc<Mutex<State>>,
    /// The last poll had entries that were rejected.
    pub(crate) had_rejected: bool,
}

/// Where to ask.
pub(crate) struct Paths {
    pub(crate) current: Uri,
    pub(crate) oldest: Uri,
    /// Polls that are still to go by the oldest path, which the engine is known to know.
    pub(crate) by_oldest: u32,
}

impl Engine {
    /// Polls for ever: once now, then on a clock of its own, so that engines that were added together
    /// are not polled together.
    pub(crate) async fn run(mut self) {
        let start = Instant::now();
        let phase = self.interval.mul_f64(fastrand::f64());
        loop {
            self.poll().await;
            let tick = until_tick(start.elapsed(), phase, self.interval);
            self.client.rest(sleep(tick)).await;
        }
    }

    async fn poll(&mut self) {
        let started = Instant::now();
        let result = match self.poll.begin() {
            Ok(()) => match timeout(self.timeout, self.ask()).await {
                Ok(result) => result,
                Err(_) => Err(Failure::Timeout),
            },
            Err(busy) => Err(busy.into()),
        };
        // From here to the end nothing waits: whoever ends the task ends it before or after.
        let result = result.and_then(|report| self.publish(report));
        let outcome = result.as_ref().map_or_else(Failure::outcome, |()| "ok");
        match result {
            Ok(()) => self.succeeded(),
            Err(failure) => self.failed(&failure),
        }
        metrics::counter!(crate::POLLS, "engine" => self.name.clone(), "outcome" => outcome)
            .increment(1);
        metrics::histogram!(crate::POLL_SECONDS, "engine" => self.name.clone())
            .record(started.elapsed());
    }

    async fn ask(&mut self) -> Result<Report, Failure> {
        let Self { poll, client, paths, .. } = self;
        // What the pool counts from here on is credited on top of the answer.
        let mut begin = || poll.begin();
        if paths.by_oldest > 0 {
            let body = client.get(&paths.oldest, &mut begin).await;
            paths.by_oldest = if body.is_ok() { paths.by_oldest - 1 } else { 0 };
            if !is_not_found(&body) {
                return Ok(parse(&body?)?);
            }
        }
        let body = client.get(&paths.current, &mut begin).await;
        if !is_not_found(&body) {
            return Ok(parse(&body?)?);
        }
        let body = client.get(&paths.oldest, &mut begin).await?;
        paths.by_oldest = POLLS_BY_OLDEST;
        Ok(parse(&body)?)
    }

    fn publish(&mut self, report: Report) -> Result<(), Failure> {
        let Report { ranks, mut rejected } = report;
        let loads: Vec<Load> = ranks
            .iter()
            .filter_map(|rank| match worker(&self.workers, rank.rank) {
                Ok(worker) => Some(load(worker, rank)),
                Err(reason) => {
                    rejected.add(reason);
                    None
                }
            })
            .collect();
        let late = self.poll.publish(&loads)?;
        self.tell_rejected(&rejected, late);
        Ok(())
    }

    fn tell_rejected(&mut self, rejected: &Rejected, late: usize) {
        let had = std::mem::replace(&mut self.had_rejected, rejected.count > 0);
        for reason in &rejected.reasons {
            let engine = &self.name;
            if had {
                debug!(%engine, "rejected: {reason}");
            } else {
                warn!(%engine, "rejected: {reason}");
            }
        }
        if rejected.count > rejected.reasons.len() {
            debug!(engine = %self.name, "rejected entries in all: {}", rejected.count);
        }
        if late > 0 {
            debug!(engine = %self.name, "loads of workers that left or that a later poll reported: {late}");
        }
        metrics::counter!(crate::REJECTED, "engine" => self.name.clone())
            .increment((rejected.count + late) as u64);
    }

    fn succeeded(&mut self) {
        let failures = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.last_success = Some(Instant::now());
            std::mem::take(&mut state.failures)
        };
        if failures > 0 {
            info!(engine = %self.name, "answers again, after {failures} failed polls");
        }
        self.veto(false);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        metrics::gauge!(crate::LAST_SUCCESS, "engine" => self.name.clone()).set(now.as_secs_f64());
    }

    fn failed(&mut self, failure: &Failure) {
        // Fails only if the begin did, or the pool is busy: then the loads stay until the next poll.
        let cleared = self.poll.publish(&[]);
        let reason = one_line(failure);
        let ours = failure.is_ours();
        let (failures, before) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if !ours {
                state.failures = state.failures.saturating_add(1);
            }
            (state.failures, state.last_failure.replace(reason.clone()))
        };
        let engine = &self.name;
        let news = if ours { before.as_ref() != Some(&reason) } else { failures == 1 };
        if news {
            warn!(%engine, "no loads: {reason}");
        } else {
            debug!(%engine, "no loads, {failures} failures in a row: {reason}");
        }
        if let Err(error) = cleared {
            warn!(%engine, "its loads stay: {error}");
        }
        if failures == self.refusals && !ours {
            warn!(%engine, "vetoed: {failures} polls in a row failed, the last: {reason}");
        }
        if failures >= self.refusals {
            self.veto(true);
        }
    }

    /// Each time anew: the host may have added a worker again meanwhile, with vetoes of its own.
    fn veto(&self, on: bool) {
        for &worker in &*self.workers {
            match self.pool.veto(worker, Vetoes::HEALTH, on) {
                Ok(()) | Err(evenkeel::Error::Unknown { .. }) => {}
                Err(error) => {
                    warn!(engine = %self.name, %worker, "health veto not changed: {error}")
                }
            }
        }
        metrics::gauge!(crate::VETOED, "engine" => self.name.clone()).set(f64::from(u8::from(on)));
    }
}

/// The worker that a rank's load is of.
fn worker(workers: &[WorkerId], rank: Option<u32>) -> Result<WorkerId, String> {
    match (rank, workers) {
        (None, &[only]) => Ok(only),
        (None, _) => Err(format!(
            "the load of all {} ranks together, which is no load of any one of them",
            workers.len()
        )),
        (Some(rank), _) => workers.get(rank as usize).copied().ok_or_else(|| {
            format!("rank {rank}; the engine has the ranks 0 to {}", workers.len() - 1)
        }),
    }
}

fn load(worker: WorkerId, rank: &RankLoad) -> Load {
    Load {
        worker,
        tokens: rank.tokens,
        running: rank.running,
        waiting: rank.waiting,
        timestamp: rank.timestamp,
    }
}

fn is_not_found(result: &Result<Vec<u8>, Failure>) -> bool {
    matches!(result, Err(Failure::Status(StatusCode::NOT_FOUND)))
}

/// From `now` to the next of the clock's ticks, which are at `phase` and each interval later. Ticks
/// that went by during a slow poll are left out.
fn until_tick(now: Duration, phase: Duration, interval: Duration) -> Duration {
    match now.checked_sub(phase) {
        None => phase - now,
        Some(since) => {
            const SECOND: u128 = 1_000_000_000;
            let into = since.as_nanos() % interval.as_nanos();
            interval - Duration::new((into / SECOND) as u64, (into % SECOND) as u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use evenkeel::PoolConfig;
    use http::HeaderMap;

    use super::*;

    /// Polled by nobody.
    fn engine(pool: &Pool) -> Engine {
        let workers: Arc<[_]> = [pool.add(1, Default::default()).unwrap()].into();
        let (current, oldest) = (Uri::default(), Uri::default());
        Engine {
            name: "engine:1".into(),
            pool: pool.clone(),
            poll: pool.poll(Some(&workers)),
            workers,
            client: Client {
                host: "engine".into(),
                port: 1,
                tls: None,
                headers: HeaderMap::new(),
                connection: None,
            },
            paths: Paths { current, oldest, by_oldest: 0 },
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            refusals: 2,
            state: Arc::default(),
            had_rejected: false,
        }
    }

    #[test]
    fn what_this_process_lacks_is_no_refusal_of_the_engine() {
        let pool = Pool::new(PoolConfig::default()).unwrap();
        let mut engine = engine(&pool);
        let failures = |engine: &Engine| engine.state.lock().unwrap().failures;
        let mut fail = |code| {
            engine.poll.begin().unwrap();
            engine.publish(parse(br#"[{"num_tokens":5}]"#).unwrap()).unwrap();
            engine.poll.begin().unwrap();
            engine.failed(&Failure::Connect(io::Error::from_raw_os_error(code)));
            let stats = &pool.stats().unwrap()[0];
            assert_eq!(stats.load, None, "{code}");
            (failures(&engine), stats.vetoes)
        };
        for code in [libc::EMFILE, libc::ENFILE] {
            assert_eq!([fail(code), fail(code)], [(0, Vetoes::NONE); 2], "{code}");
        }
        assert_eq!(fail(libc::ECONNREFUSED), (1, Vetoes::NONE));
        assert_eq!(fail(libc::EMFILE), (1, Vetoes::NONE));
        assert_eq!(fail(libc::ECONNRESET), (2, Vetoes::HEALTH));
    }

    #[test]
    fn a_slow_poll_leaves_ticks_out() {
        let ms = Duration::from_millis;
        for (now, left) in
            [(0, 300), (299, 1), (300, 1000), (301, 999), (1299, 1), (1300, 1000), (7450, 850)]
        {
            assert_eq!(until_tick(ms(now), ms(300), ms(1000)), ms(left), "at {now} ms");
        }
        // An interval below the clock's resolution still waits.
        assert!(until_tick(ms(5), ms(0), Duration::from_nanos(1)) > Duration::ZERO);
    }
}
