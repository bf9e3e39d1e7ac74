//! An engine that only pretends: real HTTP, real streams at the pace of a decode model, no model.
//! Routers are tested with it, and judged by what it reports.

mod faults;
mod generate;
mod http;
mod loads;
mod ranks;
mod report;

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{self, ExitCode};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rand::SeedableRng;
use rand_distr::LogNormal;
use rand_xoshiro::Xoshiro256PlusPlus;
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use self::faults::Faults;
use self::loads::RankLoad;
use self::ranks::{End, Ranks};
use self::report::Record;
use crate::deployment::{Deployment, DeploymentOptions, Step};
use crate::net::listen;
use crate::{number, time};

/// Pretend to be an LLM engine with DP ranks, to test routers with
///
/// Answers /generate and /v1/chat/completions with as many tokens as asked for, at the pace of the
/// decode model of `simulate`, in real time; reports loads as SGLang does; misbehaves on demand.
/// Prints its URL when it is ready. GET /control/report says what arrived where.
#[derive(Args, Clone, Debug)]
pub struct MockEngineOptions {
    /// Address to listen on; port 0: any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// DP ranks
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = |text: &str| number(text, 1..=1024u16))]
    dp_size: u16,

    /// Part in a prefill-decode pair
    #[arg(long, value_enum, default_value = "both")]
    role: Role,

    /// What decides how long a response takes: lockstep (the model below), or
    /// lognormal:mean=600ms,cv=1.5 (a time that follows from the prompt and the seed, whatever the
    /// load)
    #[arg(long, value_name = "MODE", default_value = "lockstep")]
    service: Service,

    /// Of response times and of what breaks off by chance
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    #[command(flatten)]
    deployment: DeploymentOptions,

    /// Requests that a rank decodes at a time
    #[arg(long, value_name = "N", default_value = "4096",
          value_parser = |text: &str| number(text, 1..=1_000_000usize))]
    max_running_requests: usize,

    /// How much faster than all that time passes
    #[arg(long, value_name = "X", default_value = "1",
          value_parser = |text: &str| number(text, 0.001..=1e6))]
    time_scale: f64,

    /// Tokens of a streamed chunk
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = |text: &str| number(text, 1..=1_000_000u32))]
    stream_interval: u32,

    /// Time between two samples of what is outstanding
    #[arg(long, value_name = "TIME", default_value = "100ms",
          value_parser = |text: &str| time(text, Duration::from_millis(1)))]
    sample_interval: Duration,

    /// How to misbehave from the start: what POST /control takes, as '{"loads_hang": true}'; but not
    /// down_ms and exit
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = faults::at_start)]
    faults: Faults,

    /// On SIGTERM or SIGINT finish the responses first; a second signal ends them
    #[arg(long)]
    drain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Role {
    Both,
    /// Answers after prefill, with one token
    Prefill,
    /// As both, for requests with a bootstrap room
    Decode,
}

#[derive(Clone, Copy, Debug)]
pub enum Service {
    LockStep,
    /// Of seconds.
    LogNormal(LogNormal<f64>),
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "lockstep" {
            return Ok(Self::LockStep);
        }
        let log_normal = || {
            let (mean, cv) = text.strip_prefix("lognormal:mean=")?.split_once(",cv=")?;
            let mean = time(mean, Duration::from_millis(1)).ok()?.as_secs_f64();
            let cv = number(cv, 0.0..=100.0).ok()?;
            LogNormal::from_mean_cv(mean, cv).ok().map(Self::LogNormal)
        };
        log_normal().ok_or_else(|| "expected lockstep, or as lognormal:mean=600ms,cv=1.5".into())
    }
}

impl MockEngineOptions {
    /// In real time.
    fn deployment(&self) -> Deployment {
        let deployment = self.deployment.deployment();
        let Step { base, per_request, per_million_kv_tokens } = deployment.step;
        let faster = |time: Duration| time.div_f64(self.time_scale);
        Deployment {
            prefill: faster(deployment.prefill),
            prefill_tokens_per_s: deployment.prefill_tokens_per_s * self.time_scale,
            transfer: faster(deployment.transfer),
            transfer_tokens_per_s: deployment.transfer_tokens_per_s * self.time_scale,
            step: Step {
                base: faster(base),
                per_request: faster(per_request),
                per_million_kv_tokens: faster(per_million_kv_tokens),
            },
            ..deployment
        }
    }
}

struct Engine {
    options: MockEngineOptions,
    state: Mutex<State>,
    /// Something may be due earlier than the stepper believes.
    wake: Notify,
}

struct State {
    ranks: Ranks,
    record: Record,
    faults: Faults,
    /// The loads when the faults began.
    frozen: Vec<RankLoad>,
    /// Requests since then.
    arrived: u32,
    begun: u32,
    rng: Xoshiro256PlusPlus,
    /// Tokens a second of each rank, over the last sample interval.
    throughputs: Vec<f64>,
    made: Vec<u64>,
}

impl State {
    fn loads(&self) -> Vec<RankLoad> {
        loads::measure(&self.ranks, &self.throughputs, unix_time().as_secs_f64())
    }
}

impl Engine {
    fn new(options: MockEngineOptions) -> Self {
        let dp_size = usize::from(options.dp_size);
        let deployment = options.deployment();
        // The loads have to name one.
        let kv_capacity = deployment.kv_capacity.unwrap_or(16_000_000);
        let ranks = Ranks::new(
            dp_size,
            options.role,
            options.service,
            deployment,
            kv_capacity,
            options.max_running_requests,
        );
        let state = State {
            ranks,
            record: Record::new(unix_ms()),
            faults: Faults::default(),
            frozen: Vec::new(),
            arrived: 0,
            begun: 0,
            rng: Xoshiro256PlusPlus::seed_from_u64(options.seed),
            throughputs: vec![0.0; dp_size],
            made: vec![0; dp_size],
        };
        let engine = Self { state: Mutex::new(state), wake: Notify::new(), options };
        engine.misbehave(engine.options.faults.clone());
        engine
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }

    fn misbehave(&self, faults: Faults) {
        let mut state = self.state();
        state.frozen = state.loads();
        (state.arrived, state.begun) = (0, 0);
        state.faults = faults;
        if !state.faults.requests_hang {
            self.release(&mut state);
        }
    }

    fn release(&self, state: &mut State) {
        let now = Instant::now();
        state.ranks.advance(now);
        state.ranks.release(now);
        self.wake.notify_one();
    }

    /// The one timer of all requests.
    async fn step(&self) -> Infallible {
        loop {
            let next = self.state().ranks.advance(Instant::now());
            let due = async {
                match next {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            select! {
                () = due => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// At multiples of the interval in unix time, so that the samples of several engines join.
    async fn sample(&self) -> Infallible {
        let interval = self.options.sample_interval.as_millis() as u64;
        let mut next = (unix_ms() / interval + 1) * interval;
        loop {
            sleep(Duration::from_millis(next).saturating_sub(unix_time())).await;
            let unix_ms = next.max(unix_ms() / interval * interval);
            next = unix_ms + interval;
            let state = &mut *self.state();
            let ranks = &state.ranks.ranks;
            let outstanding = ranks.iter().map(|rank| rank.outstanding).collect();
            state.record.sample(unix_ms, outstanding);
            for ((rank, made), throughput) in
                ranks.iter().zip(&mut state.made).zip(&mut state.throughputs)
            {
                *throughput =
                    (rank.made - *made) as f64 / self.options.sample_interval.as_secs_f64();
                *made = rank.made;
            }
        }
    }
}

/// What a client of `/control` wants of the process; it has its answer first.
#[derive(Clone, Copy, Debug)]
enum Order {
    Down(Duration),
    Exit(u8),
}

fn unix_time() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

fn unix_ms() -> u64 {
    unix_time().as_millis() as u64
}

pub fn run(options: MockEngineOptions) -> Result<ExitCode> {
    // One thread: engines have to leave the machine to the router.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = listen(options.listen)
            .with_context(|| format!("cannot listen on {}", options.listen))?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (stop, stopped) = oneshot::channel::<Infallible>();
        tokio::spawn(async move {
            let mut signalled = async || {
                select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            };
            signalled().await;
            drop(stop);
            signalled().await;
            process::exit(1);
        });
        writeln!(io::stdout(), "http://{}", listener.local_addr()?)?;
        serve(listener, options, async { drop(stopped.await) }).await.map(ExitCode::from)
    })
}

/// Until `stop`, or until a client asks for the end; then it is the exit code that the client gave.
pub async fn serve(
    listener: TcpListener,
    options: MockEngineOptions,
    stop: impl Future<Output = ()>,
) -> Result<u8> {
    let engine = Arc::new(Engine::new(options));
    select! {
        code = accept(&engine, listener, stop) => code,
        never = engine.step() => match never {},
        never = engine.sample() => match never {},
    }
}

async fn accept(
    engine: &Arc<Engine>,
    mut listener: TcpListener,
    stop: impl Future<Output = ()>,
) -> Result<u8> {
    let address = listener.local_addr()?;
    let mut connections = JoinSet::new();
    let graceful = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        let order = select! {
            () = &mut stop => break,
            accepted = listener.accept() => {
                match accepted {
                    Ok((stream, _)) => {
                        let watcher = graceful.watcher();
                        connections.spawn(converse(engine.clone(), stream, watcher));
                    }
                    // No descriptor is left, or the client is gone: others may be served later.
                    Err(_) => sleep(Duration::from_millis(10)).await,
                }
                None
            }
            Some(ended) = connections.join_next() => ended.ok().flatten(),
        };
        match order {
            None => {}
            Some(Order::Exit(code)) => return Ok(code),
            Some(Order::Down(time)) => {
                drop(listener);
                engine.state().ranks.fail_all();
                connections = JoinSet::new();
                select! {
                    () = &mut stop => return Ok(0),
                    () = sleep(time) => {}
                }
                listener = listen(address)?;
            }
        }
    }
    drop(listener);
    if engine.options.drain {
        graceful.shutdown().await;
    }
    Ok(0)
}

async fn converse(engine: Arc<Engine>, stream: TcpStream, watcher: Watcher) -> Option<Order> {
    // Without it a token waits for the acknowledgement of the one before.
    stream.set_nodelay(true).ok();
    let order = OnceLock::new();
    let service = service_fn(|request| http::respond(&engine, request, &order));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    // A client that left early is no error here; its requests are counted as aborted.
    watcher.watch(connection).await.ok();
    order.into_inner()
}
