//! The command `evenkeel`.

mod demo;
mod deployment;
mod load;
mod metrics;
mod mock_engine;
mod model;
mod net;
mod new_file;
mod report;
mod route;
mod series;
mod simulate;
mod table;
mod trace;
mod workload;

use std::fmt::Display;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use evenkeel::Policy;

use crate::demo::DemoOptions;
use crate::deployment::DeploymentOptions;
use crate::load::LoadOptions;
use crate::mock_engine::MockEngineOptions;
use crate::route::RouteOptions;

/// Worker selection for LLM routers
#[derive(Parser)]
#[command(name = "evenkeel", version)]
struct Cli {
    /// End when the standard input does: with whoever started this, however that ends
    #[arg(long, global = true, hide = true)]
    ends_with_stdin: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Simulate(SimulateOptions),
    MockEngine(MockEngineOptions),
    Route(Box<RouteOptions>),
    Load(LoadOptions),
    Demo(DemoOptions),
}

/// Compare the policies on a simulated deployment
///
/// Requests run in virtual time against prefill ranks and decode ranks in lock step. The real pools
/// make every choice, fed by real polls; only the engines are a model, by default calibrated to a
/// measured deployment.
///
/// Printed are, for each policy, the mean over the seeds (± standard deviation) and the change
/// against round_robin. Outstanding requests (from dispatch to last token), running batches and KV
/// tokens are sampled once a simulated second.
#[derive(Args)]
struct SimulateOptions {
    /// Trace to replay [default: a built-in synthetic agentic workload]
    ///
    /// Conversations (each sends its next request after the last response): AgentX, one session a
    /// line, {"req":[[start_s, input_tokens, output_tokens, cached_input_tokens, api_time_s,
    /// think_time_s], …]}; or as published, one conversation a .json file, or a folder of them.
    ///
    /// Requests at moments of their own: Mooncake, one a line, {"timestamp": ms, "input_length",
    /// "output_length"}; CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens (Azure) or
    /// time_s,input_tokens,output_tokens.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Leave the sub-agents of the trace out; otherwise each is a conversation like any other
    #[arg(long)]
    no_sub_agents: bool,

    /// Of a trace of conversations, how many at a time; several numbers, separated by commas, are
    /// compared [default: 192]
    #[arg(long, value_name = "N,…", value_delimiter = ',',
          value_parser = |text: &str| number(text, 1..=1_000_000u32))]
    concurrency: Option<Vec<u32>>,

    /// How much faster than recorded requests at moments of their own arrive; several are compared
    /// [default: 1]
    #[arg(long, value_name = "X,…", value_delimiter = ',',
          value_parser = |text: &str| number(text, 0.001..=1_000.0))]
    rate_scale: Option<Vec<f64>>,

    /// Policies of the decode ranks
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = policy,
          default_value = "round_robin,tokens,requests,least_requests")]
    policies: Vec<Policy>,

    /// Runs of each policy, with the seeds 1 to N
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = |text: &str| number(text, 1..=10_000u64))]
    seeds: u64,

    /// Simulated time that is measured, at most to the end of the trace: 1h, 90s
    #[arg(long, value_name = "TIME", default_value = "1h",
          value_parser = |text: &str| time(text, Duration::from_secs(1)))]
    duration: Duration,

    /// Simulated time before that
    #[arg(long, value_name = "TIME", default_value = "10m",
          value_parser = |text: &str| time(text, Duration::ZERO))]
    warm_up: Duration,

    /// Simulated time between two polls of the ranks' loads: 1s, 250ms
    #[arg(long, value_name = "TIME", default_value = "1s",
          value_parser = |text: &str| time(text, Duration::from_millis(1)))]
    poll_interval: Duration,

    /// From the moment that a rank's load is sampled to the one when it is published
    #[arg(long, value_name = "TIME", default_value = "0s",
          value_parser = |text: &str| time(text, Duration::ZERO))]
    poll_delay: Duration,

    #[command(flatten)]
    deployment: DeploymentOptions,

    /// Decode ranks
    #[arg(long, value_name = "N", default_value = "8",
          value_parser = |text: &str| number(text, 1..=u16::MAX))]
    ranks: u16,

    /// Prefill ranks, which share the prefill rate; 1: one FIFO server
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = |text: &str| number(text, 1..=u16::MAX))]
    prefill_ranks: u16,

    /// Policy of the prefill ranks
    #[arg(long, value_name = "NAME", value_parser = policy, default_value = "least_requests")]
    prefill_policy: Policy,

    /// Under power_of_two, how many ranks are drawn; as many as there are: all are looked at
    #[arg(long, value_name = "N", default_value = "2",
          value_parser = |text: &str| number(text, 2..=255u32))]
    choices: u32,

    /// Under balanced, how many KV tokens cost a step as much as one more request [default: what the
    /// step says, b ÷ c; as many as can be, if KV tokens cost nothing]
    #[arg(long, value_name = "TOKENS", value_parser = |text: &str| number(text, 0..=u32::MAX))]
    request_tokens: Option<u32>,

    /// Under consistent_hashing, which goes by the conversation, how many percent of the mean of all
    /// ranks a rank may have in flight: 100 to 10000, or 0 for no bound
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = hash_load_factor)]
    hash_load_factor: u32,

    /// A request counts on its prefill rank until its response ends, not until its first token
    #[arg(long)]
    prefill_counts_to_the_end: bool,

    /// Longer pauses between response and next request are cut [default: the preset's]
    #[arg(long, value_name = "TIME", value_parser = |text: &str| time(text, Duration::ZERO))]
    think_cap: Option<Duration>,

    /// Print a JSON array instead of tables
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print CSV instead of tables
    #[arg(long)]
    csv: bool,

    /// Write a report, one HTML file with tables and charts, as well
    ///
    /// The charts over time are those of the first load and the first seed. For the chart of
    /// request_tokens there are more runs, under the first load.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

fn number<T: FromStr + PartialOrd + Display>(
    text: &str,
    allowed: RangeInclusive<T>,
) -> Result<T, String> {
    text.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        let whole = if T::from_str("0.5").is_err() { "whole " } else { "" };
        format!("expected a {whole}number from {} to {}", allowed.start(), allowed.end())
    })
}

fn hash_load_factor(text: &str) -> Result<u32, String> {
    match text {
        "0" => Ok(0),
        _ => number(text, 100..=10_000).map_err(|error| format!("{error}, or 0 for no bound")),
    }
}

fn policy(text: &str) -> Result<Policy, String> {
    let policy = Policy::ALL.into_iter().find(|policy| simulate::short_name(*policy) == text);
    policy.map_or_else(|| text.parse().map_err(|error: evenkeel::Error| error.to_string()), Ok)
}

fn time(text: &str, shortest: Duration) -> Result<Duration, String> {
    let longest = Duration::from_secs(30 * 24 * 60 * 60);
    humantime::parse_duration(text)
        .ok()
        .filter(|time| (shortest..=longest).contains(time))
        .ok_or_else(|| {
            let [shortest, longest] = [shortest, longest].map(humantime::format_duration);
            format!("expected a time such as 1h, 90s or 250ms, from {shortest} to {longest}")
        })
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.ends_with_stdin {
        std::thread::spawn(|| {
            io::copy(&mut io::stdin(), &mut io::sink()).ok();
            std::process::exit(0);
        });
    }
    let ended = match cli.command {
        Command::Simulate(options) => simulate::run(&options).map(|()| ExitCode::SUCCESS),
        Command::MockEngine(options) => mock_engine::run(options),
        Command::Route(options) => route::run(*options),
        Command::Load(options) => load::run(&options),
        Command::Demo(options) => demo::run(&options),
    };
    match ended {
        Ok(code) => code,
        Err(error) => {
            // Nowhere is left to say that this failed too.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
