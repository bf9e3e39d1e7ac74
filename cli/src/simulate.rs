//! Runs every policy on the same requests and sums up what it did.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evenkeel::{Error, Policy, Tuning};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use crate::deployment::Deployment;
use crate::metrics::{Measured, Metric};
use crate::model::{Setup, Simulation, Traffic};
use crate::new_file::NewFile;
use crate::series::Series;
use crate::trace::Trace;
use crate::{SimulateOptions, report, table, trace, workload};

/// How far a run advances between two moves of the progress bar.
const STRIDE: Duration = Duration::from_secs(60);

/// A policy under one load.
pub struct Row {
    pub policy: &'static str,
    pub load: Load,
    /// What `balanced` goes by.
    pub request_tokens: u32,
    /// By seed.
    pub runs: Vec<Measured>,
    /// Of the first seed, if a report draws it.
    pub series: Option<Series>,
}

/// What the policies are compared under.
#[derive(Clone, Copy, PartialEq)]
pub enum Load {
    Concurrency(u32),
    RateScale(f64),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Concurrency(concurrency) => write!(f, "concurrency {concurrency}"),
            Self::RateScale(rate) => write!(f, "rate × {rate}"),
        }
    }
}

impl Row {
    pub fn mean(&self, metric: &Metric) -> f64 {
        self.runs.iter().map(metric.of).sum::<f64>() / self.runs.len() as f64
    }

    /// Of the sample that the seeds are; none of a single one.
    pub fn standard_deviation(&self, metric: &Metric) -> Option<f64> {
        let mean = self.mean(metric);
        let squares: f64 = self.runs.iter().map(|run| ((metric.of)(run) - mean).powi(2)).sum();
        (self.runs.len() > 1).then(|| (squares / (self.runs.len() - 1) as f64).sqrt())
    }
}

/// Without the family, as the published measurement has it.
pub fn short_name(policy: Policy) -> &'static str {
    let name = policy.name();
    name.strip_prefix("power_of_two:").unwrap_or(name)
}

pub fn run(options: &SimulateOptions) -> Result<()> {
    let report = options.report.as_deref().map(NewFile::at).transpose()?;
    if let (Some(report), Some(trace)) = (&report, &options.trace) {
        ensure!(!report.is(trace), "{}: the report would replace the trace", trace.display());
    }
    let trace = match &options.trace {
        Some(path) => trace::read(path, !options.no_sub_agents)?,
        None => Trace::Conversations(workload::synthetic(0)),
    };
    let loads = loads(options, &trace)?;
    let (rows, balanced) = compare(options, &loads)?;
    if let Some(file) = report {
        file.write(&report::html(options, &trace, &loads, &rows, &balanced)?)?;
    }
    let text = if options.json {
        table::json(&rows)?
    } else if options.csv {
        table::csv(&rows)?
    } else {
        let note = request_tokens_note(options);
        format!("{}{}\n{note}\n", describe(options, &trace, &loads), table::text(&rows))
    };
    Ok(crate::print(&text)?)
}

pub fn deployment(options: &SimulateOptions) -> Deployment {
    let deployment = options.deployment.deployment();
    Deployment { think_cap: options.think_cap.unwrap_or(deployment.think_cap), ..deployment }
}

/// What all policies run under.
#[derive(Clone, Copy)]
pub struct Loaded<'a> {
    pub load: Load,
    traffic: Traffic<'a>,
    end: Duration,
}

fn loads<'a>(options: &SimulateOptions, trace: &'a Trace) -> Result<Vec<Loaded<'a>>> {
    let loads: Vec<(Load, Traffic)> = match trace {
        Trace::Conversations(conversations) => {
            let open =
                "--rate-scale is for requests at moments of their own, these are conversations";
            ensure!(options.rate_scale.is_none(), "{open}: use --concurrency");
            let concurrency = options.concurrency.as_deref().unwrap_or(&[192]);
            let closed = |&concurrency| {
                (Load::Concurrency(concurrency), Traffic::Closed { conversations, concurrency })
            };
            concurrency.iter().map(closed).collect()
        }
        Trace::Arrivals(arrivals) => {
            let closed =
                "--concurrency is for conversations, these are requests at moments of their own";
            ensure!(options.concurrency.is_none(), "{closed}: use --rate-scale");
            let rates = options.rate_scale.as_deref().unwrap_or(&[1.0]);
            let open = |&rate| (Load::RateScale(rate), Traffic::Open { arrivals, rate });
            rates.iter().map(open).collect()
        }
    };
    let until = |(load, traffic)| Ok(Loaded { load, traffic, end: end(options, traffic)? });
    loads.into_iter().map(until).collect()
}

/// How long is measured, of each load where they differ.
pub fn measured_time(options: &SimulateOptions, loads: &[Loaded]) -> String {
    let mut times: Vec<_> = loads.iter().map(|loaded| loaded.end - options.warm_up).collect();
    times.dedup();
    let times: Vec<_> = (times.into_iter())
        .map(|time| {
            let seconds = humantime::format_duration(Duration::from_secs(time.as_secs()));
            let cut = if time < options.duration { " to the end of the trace" } else { "" };
            format!("{seconds}{cut}")
        })
        .collect();
    times.join(", ")
}

/// A row of the tables for each load and policy; and for a report, under the first load, rows that
/// show what `request_tokens` does to `balanced`, with `least_requests` and `least_tokens` beside.
fn compare(options: &SimulateOptions, loads: &[Loaded]) -> Result<(Vec<Row>, Vec<Row>)> {
    let request_tokens = request_tokens(options);
    let mut cases = Vec::new();
    for (index, &Loaded { load, traffic, end }) in loads.iter().enumerate() {
        let keep_series = options.report.is_some() && index == 0;
        cases.extend(options.policies.iter().map(|&policy| Case {
            load,
            traffic,
            end,
            policy,
            request_tokens,
            keep_series,
        }));
    }
    let compared = cases.len();
    if options.report.is_some() {
        let first = Case { keep_series: false, ..cases[0] };
        let policies = [Policy::LeastRequests, Policy::LeastTokens];
        cases.extend(policies.map(|policy| Case { policy, ..first }));
        let asked = deployment(options).step.request_tokens();
        cases.extend(request_tokens_around(asked).into_iter().map(|request_tokens| Case {
            policy: Policy::Balanced,
            request_tokens,
            ..first
        }));
    }
    let mut rows = measure_all(options, &cases)?;
    let balanced = rows.split_off(compared);
    Ok((rows, balanced))
}

/// In even steps on a logarithmic axis.
fn request_tokens_around(asked: u32) -> Vec<u32> {
    let scaled = |from: u32, by: f64, powers: RangeInclusive<i32>| -> Vec<u32> {
        let values = powers.map(|power| (f64::from(from) * by.powi(power)).round());
        values
            .filter(|value| (1.0..=f64::from(u32::MAX)).contains(value))
            .map(|value| value as u32)
            .collect()
    };
    match asked {
        0 => scaled(1, 8.0, 0..=7),
        u32::MAX => scaled(asked, 8.0, -7..=0),
        _ => scaled(asked, 4.0, -4..=4),
    }
}

/// A run but for its seed.
#[derive(Clone, Copy)]
struct Case<'a> {
    load: Load,
    traffic: Traffic<'a>,
    end: Duration,
    policy: Policy,
    request_tokens: u32,
    /// Of its first run.
    keep_series: bool,
}

fn measure_all(options: &SimulateOptions, cases: &[Case]) -> Result<Vec<Row>> {
    let strides = |case: &Case| case.end.as_nanos().div_ceil(STRIDE.as_nanos()) as u64;
    let total = cases.iter().map(strides).sum::<u64>() * options.seeds;
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} simulated minutes")?;
    let progress = ProgressBar::new(total).with_style(style);
    let rows = (cases.into_par_iter())
        .map(|case| {
            let mut runs = (1..=options.seeds)
                .into_par_iter()
                .map(|seed| {
                    measure(options, case, seed, &progress)
                        .with_context(|| format!("{}, {}, seed {seed}", case.load, case.policy))
                })
                .collect::<Result<Vec<_>>>()?;
            Ok(Row {
                policy: short_name(case.policy),
                load: case.load,
                request_tokens: case.request_tokens,
                series: runs[0].1.take(),
                runs: runs.into_iter().map(|(measured, _)| measured).collect(),
            })
        })
        .collect();
    progress.finish_and_clear();
    rows
}

/// Where a trace ends, nothing comes after it that could be measured.
fn end(options: &SimulateOptions, traffic: Traffic) -> Result<Duration> {
    let end = options.warm_up + options.duration;
    let Traffic::Open { arrivals, rate } = traffic else { return Ok(end) };
    let last = arrivals.last().map_or(Duration::ZERO, |arrival| arrival.at.div_f64(rate));
    ensure!(
        last >= options.warm_up + Duration::from_secs(1),
        "the trace ends {} after its start: too soon for a --warm-up of {}",
        humantime::format_duration(Duration::from_secs(last.as_secs())),
        humantime::format_duration(options.warm_up),
    );
    Ok(end.min(last))
}

fn measure(
    options: &SimulateOptions,
    case: &Case,
    seed: u64,
    progress: &ProgressBar,
) -> Result<(Measured, Option<Series>), Error> {
    let mut simulation = Simulation::new(Setup {
        traffic: case.traffic,
        deployment: deployment(options),
        policy: case.policy,
        prefill_policy: options.prefill_policy,
        tuning: Tuning {
            choices: options.choices,
            request_tokens: case.request_tokens,
            hash_load_factor: options.hash_load_factor,
            ..Tuning::default()
        },
        ranks: options.ranks,
        prefill_ranks: options.prefill_ranks,
        prefill_counts_to_the_end: options.prefill_counts_to_the_end,
        seed,
        poll_interval: options.poll_interval,
        poll_delay: options.poll_delay,
        warm_up: options.warm_up,
    })?;
    if case.keep_series && seed == 1 {
        simulation.keep(Series::new(case.end - options.warm_up, options.ranks.into()));
    }
    let mut reached = Duration::ZERO;
    while reached < case.end {
        reached = case.end.min(reached + STRIDE);
        simulation.run_until(reached)?;
        progress.inc(1);
    }
    Ok((simulation.measured(), simulation.into_series()))
}

/// What is replayed.
pub fn source(options: &SimulateOptions) -> String {
    match &options.trace {
        Some(path) => path.display().to_string(),
        None => "built-in synthetic workload".to_string(),
    }
}

fn describe(options: &SimulateOptions, trace: &Trace, loads: &[Loaded]) -> String {
    let path = source(options);
    let duration = measured_time(options, loads);
    let poll_interval = humantime::format_duration(options.poll_interval);
    let SimulateOptions { ranks, seeds, .. } = options;
    let step = deployment(options).step;
    format!(
        "{path}: {trace}\n\
         step {step}\n\
         ranks {ranks}, poll interval {poll_interval}, duration {duration}, seeds {seeds}\n"
    )
}

/// What `balanced` goes by.
pub fn request_tokens(options: &SimulateOptions) -> u32 {
    options.request_tokens.unwrap_or(deployment(options).step.request_tokens())
}

pub fn request_tokens_note(options: &SimulateOptions) -> String {
    let asked = deployment(options).step.request_tokens();
    let why = match asked {
        u32::MAX => ", as large as can be: tokens cost nothing",
        _ => ": so many tokens cost as much as one more request",
    };
    let given = options.request_tokens.map(|given| format!(" The rows of balanced have {given}."));
    format!("The step asks for request_tokens {asked}{why}.{}", given.unwrap_or_default())
}
