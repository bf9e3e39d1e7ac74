//! Sends load to a router over HTTP, and judges the router from the side of the mock engines behind it.

pub mod client;
pub mod engines;
pub mod figures;

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use hyper::body::Bytes;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::client::{Ask, Connection, Outcome, Target};
use self::engines::{Engines, Report};
use self::figures::{Burst, Figures};
use crate::{number, print, time};

/// Send load to a router and judge it from its engines' side
///
/// Clients send a request, read the response, think, and send the next, each over a connection of its
/// own; then come bursts, if asked for. Each prompt is a new one and follows from the seed: with
/// `mock-engine --service lognormal:…` every router meets the same work. What the engines saw is read
/// from `/control/report` of mock engines. Fails if each request failed.
#[derive(Args)]
pub struct LoadOptions {
    /// The router: http://127.0.0.1:8000
    #[arg(value_name = "URL")]
    router: Target,

    /// A mock engine behind it; may be repeated
    #[arg(long, value_name = "URL")]
    engine: Vec<Target>,

    /// Clients
    #[arg(long, value_name = "N", default_value = "140",
          value_parser = |text: &str| number(text, 0..=100_000u32))]
    clients: u32,

    /// Pause before each request: 300ms, or exp:300ms, exponential with this mean
    #[arg(long, value_name = "TIME", default_value = "exp:300ms")]
    think: Think,

    /// Time that is measured; 0s: bursts only
    #[arg(long, value_name = "TIME", default_value = "60s",
          value_parser = |text: &str| time(text, Duration::ZERO))]
    duration: Duration,

    /// Time before that
    #[arg(long, value_name = "TIME", default_value = "5s",
          value_parser = |text: &str| time(text, Duration::ZERO))]
    warm_up: Duration,

    /// Of prompts, pauses and who leaves
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Output tokens of each request
    #[arg(long, value_name = "N", default_value = "8",
          value_parser = |text: &str| number(text, 1..=1_000_000u32))]
    tokens: u32,

    /// Ask for whole responses instead of streams
    #[arg(long, conflicts_with = "leave")]
    whole: bool,

    /// Share of the requests whose client leaves half way: before the first token or between two
    #[arg(long, value_name = "SHARE", default_value = "0",
          value_parser = |text: &str| number(text, 0.0..=1.0))]
    leave: f64,

    /// Bursts after that: requests at one instant, the next when all have ended
    #[arg(long, value_name = "N", default_value = "0",
          value_parser = |text: &str| number(text, 0..=10_000u32))]
    bursts: u32,

    /// Requests of a burst
    #[arg(long, value_name = "N", default_value = "64",
          value_parser = |text: &str| number(text, 1..=10_000u32))]
    burst_size: u32,

    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug)]
enum Think {
    Always(Duration),
    Exponential(Duration),
}

impl FromStr for Think {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("exp:") {
            Some(mean) => time(mean, Duration::ZERO).map(Self::Exponential),
            None => time(text, Duration::ZERO).map(Self::Always),
        }
    }
}

pub fn run(options: &LoadOptions) -> Result<ExitCode> {
    // One thread: clients have to leave the machine to the router.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let figures = runtime.block_on(measure(options))?;
    let text = match options.json {
        true => serde_json::to_string_pretty(&figures)? + "\n",
        false => figures.table().to_string() + "\n",
    };
    print(&text)?;
    let all_failed = figures.all_failed(options.burst_size as usize);
    Ok(if all_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn measure(options: &LoadOptions) -> Result<Figures> {
    let engines = Engines(options.engine.clone());
    let mut measured = Measured::default();
    if options.duration > Duration::ZERO {
        let clients = (0..options.clients).map(|client| asks(options, client)).collect();
        measured =
            closed_loop(&options.router, &engines, clients, options.warm_up, options.duration)
                .await?;
    }
    let mut figures = Figures::of(&measured);
    figures.bursts = bursts(options, &engines).await?;
    Ok(figures)
}

/// What a client asks for, one after the other; the same whatever becomes of it.
fn asks(options: &LoadOptions, client: u32) -> impl Iterator<Item = Ask> + Send + use<> {
    let &LoadOptions { seed, think, tokens, whole, leave, .. } = options;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ (u64::from(client) << 32));
    (0u64..).map(move |nth| Ask {
        think: match think {
            Think::Always(time) => time,
            Think::Exponential(mean) => {
                let of_mean: f64 = Exp1.sample(&mut rng);
                mean.mul_f64(of_mean)
            }
        },
        body: body(&format!("client {client} asks {nth} of {seed}"), tokens, !whole),
        stream: !whole,
        later_tokens: tokens - 1,
        leaves_after: rng.random_bool(leave).then(|| rng.random_range(0..tokens)),
    })
}

fn body(prompt: &str, tokens: u32, stream: bool) -> Bytes {
    let body = json!({ "text": prompt, "sampling_params": { "max_new_tokens": tokens },
        "stream": stream });
    body.to_string().into()
}

/// What came of a time with load.
#[derive(Default)]
pub struct Measured {
    /// Of the requests begun in that time.
    pub outcomes: Vec<Outcome>,
    /// Of each engine, when all clients had ended.
    pub reports: Vec<Report>,
    pub until_unix_ms: u64,
}

/// Each client sends what it asks for until the time is over, and reads its last response to the end.
pub async fn closed_loop(
    router: &Target,
    engines: &Engines,
    clients: Vec<impl Iterator<Item = Ask> + Send + 'static>,
    warm_up: Duration,
    duration: Duration,
) -> Result<Measured> {
    let from = Instant::now() + warm_up;
    let until = from + duration;
    let mut running = JoinSet::new();
    for asks in clients {
        running.spawn(client::converse(router.clone(), asks, until));
    }
    sleep_until(from).await;
    engines.reset().await?;
    sleep_until(until).await;
    let until_unix_ms = engines::unix_ms();
    let mut outcomes = running.join_all().await.concat();
    outcomes.retain(|outcome| outcome.began >= from);
    Ok(Measured { outcomes, reports: engines.settled().await?, until_unix_ms })
}

async fn bursts(options: &LoadOptions, engines: &Engines) -> Result<Vec<Burst>> {
    let mut connections: Vec<Option<Connection>> = (0..options.burst_size).map(|_| None).collect();
    let mut bursts = Vec::new();
    for round in 0..options.bursts {
        engines.reset().await?;
        for connection in &mut connections {
            let router = &options.router;
            client::open(connection, router).await.with_context(|| router.to_string())?;
        }
        let mut asked = JoinSet::new();
        for (nth, mut connection) in connections.drain(..).enumerate() {
            let ask = Ask {
                think: Duration::ZERO,
                body: body(
                    &format!("burst {round} asks {nth} of {}", options.seed),
                    options.tokens,
                    !options.whole,
                ),
                stream: !options.whole,
                later_tokens: options.tokens - 1,
                leaves_after: None,
            };
            let router = options.router.clone();
            asked.spawn(async move {
                let outcome = client::send(&mut connection, &router, &ask).await;
                (connection, outcome)
            });
        }
        let mut failures = 0;
        for (connection, outcome) in asked.join_all().await {
            failures += usize::from(outcome.failure().is_some());
            connections.push(connection);
        }
        let reports = engines.settled().await?;
        if reports.is_empty() {
            bail!("bursts are judged by the engines; --engine is needed");
        }
        bursts.push(Burst::of(&reports, failures));
    }
    Ok(bursts)
}
