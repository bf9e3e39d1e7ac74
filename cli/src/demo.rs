//! The whole loop on one machine: an engine that pretends, the router, clients; a policy after the
//! other.

use std::io::{BufRead, BufReader};
use std::process::{self, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use evenkeel::Policy;
use indicatif::{ProgressBar, ProgressStyle};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::json;
use tokio::time::interval;

use crate::deployment::Preset;
use crate::load::client::{Ask, Target};
use crate::load::engines::Engines;
use crate::load::figures::Figures;
use crate::load::{self, Measured};
use crate::model::Conversation;
use crate::{number, print, simulate, time, workload};

const POLICIES: [Policy; 4] = [
    Policy::RoundRobin,
    Policy::PowerOfTwoTokens,
    Policy::PowerOfTwoRequests,
    Policy::LeastRequests,
];
const RANKS: u32 = 8;
/// How much faster than real time the engine decodes, clients think and the router polls.
const TIME_SCALE: u32 = 10;
/// Tokens of a streamed event: fewer would measure the machine.
const STREAM_INTERVAL: u32 = 32;

/// See the policies at work: engine, router and clients on this machine, in two minutes
///
/// A mock engine with 8 DP ranks in lock step, `evenkeel route` before it and agentic clients, all on
/// loopback at ports that are free. Each policy has its turn under the same load. All passes ten
/// times as fast as real; times of tokens are told as they really were, added latency as measured.
#[derive(Args)]
pub struct DemoOptions {
    /// Time of each policy that is measured
    #[arg(long, value_name = "TIME", default_value = "18s",
          value_parser = |text: &str| time(text, Duration::from_millis(100)))]
    duration: Duration,

    /// Time before that
    #[arg(long, value_name = "TIME", default_value = "4s",
          value_parser = |text: &str| time(text, Duration::ZERO))]
    warm_up: Duration,

    /// Clients
    #[arg(long, value_name = "N", default_value = "192",
          value_parser = |text: &str| number(text, 1..=10_000u32))]
    clients: u32,
}

/// A process of this program, which ends with its owner.
struct Child {
    process: process::Child,
    url: String,
}

impl Child {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(arguments)
            .arg("--ends-with-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take().context("its output is piped")?;
        let mut child = Self { process, url: String::new() };
        BufReader::new(stdout).read_line(&mut child.url)?;
        child.url.truncate(child.url.trim_end().len());
        ensure!(!child.url.is_empty(), "evenkeel {} does not start", arguments[0]);
        Ok(child)
    }

    fn target(&self) -> Result<Target> {
        self.url.parse().map_err(|error: String| anyhow!(error))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

pub fn run(options: &DemoOptions) -> Result<ExitCode> {
    let bar = ProgressBar::new(POLICIES.len() as u64 * turn(options).as_millis() as u64);
    bar.set_style(ProgressStyle::with_template("{msg:14} {wide_bar} {percent:>3} % {eta:>4}")?);
    // Clients and progress share a thread: the others are the router's and the engine's.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for policy in POLICIES {
        let name = simulate::short_name(policy);
        bar.set_message(name);
        let before = bar.position();
        let measured = runtime.block_on(async {
            tokio::select! {
                measured = measure(options, policy) => measured,
                never = advance(&bar) => match never {},
            }
        })?;
        bar.set_position(before + turn(options).as_millis() as u64);
        rows.push((name, Figures::of(&measured)));
    }
    bar.finish_and_clear();
    print(&format!("{}\n{}", table(&rows)?, LEGEND))?;
    Ok(ExitCode::SUCCESS)
}

fn turn(options: &DemoOptions) -> Duration {
    options.warm_up + options.duration
}

async fn advance(bar: &ProgressBar) -> std::convert::Infallible {
    let tick = Duration::from_millis(100);
    let mut ticks = interval(tick);
    loop {
        ticks.tick().await;
        bar.inc(tick.as_millis() as u64);
    }
}

async fn measure(options: &DemoOptions, policy: Policy) -> Result<Measured> {
    let (ranks, scale) = (RANKS.to_string(), TIME_SCALE.to_string());
    let events = STREAM_INTERVAL.to_string();
    let engine = Child::start(&[
        "mock-engine",
        "--dp-size",
        &ranks,
        "--time-scale",
        &scale,
        "--stream-interval",
        &events,
    ])?;
    let spec = format!("{},dp_size={RANKS}", engine.url);
    let poll_interval = format!("{}ms", 1_000 / TIME_SCALE);
    let router = Child::start(&[
        "route",
        "--listen",
        "127.0.0.1:0",
        "--engine",
        &spec,
        "--policy",
        policy.name(),
        "--poll-interval",
        &poll_interval,
        "--log-level",
        "error",
    ])?;
    let conversations = workload::synthetic(1);
    let clients = (0..options.clients as usize)
        .map(|client| {
            let own = conversations.iter().skip(client).step_by(options.clients as usize);
            asks(own.cloned().collect(), client as u64)
        })
        .collect();
    let engines = Engines(vec![engine.target()?]);
    load::closed_loop(&router.target()?, &engines, clients, options.warm_up, options.duration).await
}

/// One conversation after the other, from somewhere in the first on: not all have just begun.
fn asks(conversations: Vec<Conversation>, client: u64) -> impl Iterator<Item = Ask> + Send {
    let longest_pause = Preset::DeepseekV4Mi355x.deployment().think_cap;
    let turns = conversations.concat();
    let first = conversations.first().map_or(1, Vec::len);
    let begun = Xoshiro256PlusPlus::seed_from_u64(client).random_range(0..first);
    turns.into_iter().skip(begun).map(move |turn| {
        let body = json!({ "text": "as long as said below", "stream": true,
            "sampling_params": { "max_new_tokens": turn.output },
            "mock": { "input_tokens": turn.input, "cached_tokens": turn.input - turn.uncached } });
        Ask {
            think: turn.think.min(longest_pause) / TIME_SCALE,
            body: body.to_string().into(),
            stream: true,
            later_tokens: turn.output.saturating_sub(STREAM_INTERVAL),
            leaves_after: None,
        }
    })
}

const LEGEND: &str = "\
CV: standard deviation ÷ mean of the requests outstanding on the 8 DP ranks, sampled ten times a second.
busiest: the rank with the most of them, in times of the mean. All ranks' steps wait for it.
added latency: to the first token, beside what the engine took; clients and engine are in it.
";

fn table(rows: &[(&str, Figures)]) -> Result<Table> {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "policy",
        "requests",
        "outstanding CV",
        "busiest rank",
        "ms a token p50",
        "p99",
        "added latency p50 ms",
        "p99",
    ]);
    for (name, figures) in rows {
        ensure!(figures.errors.is_empty(), "{name}: clients met errors: {:?}", figures.errors);
        let nothing = || format!("{name}: nothing was measured; a longer --duration is needed");
        let spread = figures.ranks.with_context(nothing)?;
        let per_token = figures.per_token_ms.with_context(nothing)?;
        let added = figures.added_ms.with_context(nothing)?;
        let scale = f64::from(TIME_SCALE);
        table.add_row([
            (*name).to_owned(),
            figures.requests.to_string(),
            format!("{:.3}", spread.outstanding_cv),
            format!("{:.2} ×", spread.busiest / spread.mean),
            format!("{:.2}", per_token.p50 * scale),
            format!("{:.2}", per_token.p99 * scale),
            format!("{:.2}", added.p50),
            format!("{:.2}", added.p99),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    Ok(table)
}
