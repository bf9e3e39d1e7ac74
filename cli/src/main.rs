//! The command `evenkeel`.

mod model;
mod simulate;
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

/// Worker selection for LLM routers
#[derive(Parser)]
#[command(name = "evenkeel", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Simulate(SimulateOptions),
}

/// Compare the policies on a simulated deployment
///
/// Agentic conversations run in virtual time against one prefill server and decode ranks in lock
/// step. The real pool makes every choice; only the engines are a model, calibrated to a measured
/// deployment (DeepSeek-V4-Pro on MI355X).
///
/// Printed are means of samples, one a simulated second: how unevenly the outstanding requests
/// (from dispatch to last token) are spread over the ranks, as standard deviation ÷ mean, and the
/// running batch of the busiest rank, for which every decode step waits.
#[derive(Args)]
struct SimulateOptions {
    /// AgentX file to replay [default: a built-in synthetic workload]
    ///
    /// One session a line: {"req":[[start_s, input_tokens, output_tokens, cached_input_tokens,
    /// api_time_s, think_time_s], …]}, times in seconds or null. Other fields and objects of
    /// sub-agents are ignored.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Conversations at a time; several numbers, separated by commas, are compared
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "192",
          value_parser = |text: &str| number(text, 1..=1_000_000u32))]
    concurrency: Vec<u32>,

    /// Decode ranks
    #[arg(long, value_name = "N", default_value = "8",
          value_parser = |text: &str| number(text, 1..=u16::MAX))]
    ranks: u16,

    /// Runs of each policy, with the seeds 1 to N; their means are printed
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = |text: &str| number(text, 1..=10_000u64))]
    seeds: u64,

    /// Simulated time that is measured, after ten minutes that are not: 1h, 90s
    #[arg(long, value_name = "TIME", default_value = "1h",
          value_parser = |text: &str| time(text, Duration::from_secs(1)))]
    duration: Duration,

    /// Simulated time between two polls of the ranks' loads: 1s, 250ms
    #[arg(long, value_name = "TIME", default_value = "1s",
          value_parser = |text: &str| time(text, Duration::from_millis(1)))]
    poll_interval: Duration,

    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,
}

fn number<T: FromStr + PartialOrd + Display>(
    text: &str,
    allowed: RangeInclusive<T>,
) -> Result<T, String> {
    text.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        format!("expected a whole number from {} to {}", allowed.start(), allowed.end())
    })
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
    let Cli { command: Command::Simulate(options) } = Cli::parse();
    let printed = simulate::run(&options).and_then(|text| Ok(print(&text)?));
    match printed {
        Ok(()) => ExitCode::SUCCESS,
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
