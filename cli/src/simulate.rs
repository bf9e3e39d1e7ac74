//! Runs every policy on the same requests and sums up what it did.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evenkeel::{Error, Policy, Tuning};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use crate::deployment::{Deployment, Step};
use crate::metrics::{Measured, Metric};
use crate::model::{Setup, Simulation, Traffic};
use crate::trace::Trace;
use crate::{SimulateOptions, table, trace, workload};

/// How far a run advances between two moves of the progress bar.
const STRIDE: Duration = Duration::from_secs(60);

/// A policy under one load.
pub struct Row {
    pub policy: &'static str,
    pub load: Load,
    /// By seed.
    pub runs: Vec<Measured>,
}

/// What the policies are compared under.
#[derive(Clone, Copy, PartialEq)]
pub enum Load {
    Concurrency(u32),
    RateScale(f64),
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

/// The text to print.
pub fn run(options: &SimulateOptions) -> Result<String> {
    let trace = match &options.trace {
        Some(path) => trace::read(path, !options.no_sub_agents)?,
        None => Trace::Conversations(workload::synthetic(0)),
    };
    let rows = compare(options, &trace)?;
    if options.json {
        table::json(&rows)
    } else if options.csv {
        table::csv(&rows)
    } else {
        Ok(describe(options, &trace) + &table::text(&rows))
    }
}

fn deployment(options: &SimulateOptions) -> Deployment {
    let preset = options.preset.deployment();
    Deployment {
        prefill: options.prefill_time.unwrap_or(preset.prefill),
        prefill_tokens_per_s: options.prefill_rate.unwrap_or(preset.prefill_tokens_per_s),
        transfer: options.transfer.unwrap_or(preset.transfer),
        transfer_tokens_per_s: options.transfer_rate.unwrap_or(preset.transfer_tokens_per_s),
        step: options.step.unwrap_or(preset.step),
        kv_capacity: options.kv_capacity.or(preset.kv_capacity),
        think_cap: options.think_cap.unwrap_or(preset.think_cap),
        ..preset
    }
}

fn compare(options: &SimulateOptions, trace: &Trace) -> Result<Vec<Row>> {
    let loads: Vec<(Load, Traffic)> = match trace {
        Trace::Conversations(conversations) => (options.concurrency.iter())
            .map(|&concurrency| {
                (Load::Concurrency(concurrency), Traffic::Closed { conversations, concurrency })
            })
            .collect(),
        Trace::Arrivals(arrivals) => (options.rate_scale.iter())
            .map(|&rate| (Load::RateScale(rate), Traffic::Open { arrivals, rate }))
            .collect(),
    };
    let mut cases = Vec::new();
    let mut strides = 0;
    for (load, traffic) in loads {
        let end = end(options, traffic)?;
        strides += end.as_nanos().div_ceil(STRIDE.as_nanos()) as u64;
        cases.extend(options.policies.iter().map(|&policy| (load, traffic, end, policy)));
    }
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} simulated minutes")?;
    let total = strides * options.policies.len() as u64 * options.seeds;
    let progress = ProgressBar::new(total).with_style(style);
    let deployment = deployment(options);
    let tuning = Tuning {
        choices: options.choices,
        request_tokens: options.request_tokens.unwrap_or(deployment.step.request_tokens()),
        hash_load_factor: options.hash_load_factor,
        ..Tuning::default()
    };

    let rows = cases
        .into_par_iter()
        .map(|(load, traffic, end, policy)| {
            let runs = (1..=options.seeds)
                .into_par_iter()
                .map(|seed| {
                    let setup = Setup {
                        traffic,
                        deployment,
                        policy,
                        prefill_policy: options.prefill_policy,
                        tuning,
                        ranks: options.ranks,
                        prefill_ranks: options.prefill_ranks,
                        prefill_counts_to_the_end: options.prefill_counts_to_the_end,
                        seed,
                        poll_interval: options.poll_interval,
                        poll_delay: options.poll_delay,
                        warm_up: options.warm_up,
                    };
                    measure(setup, end, &progress).with_context(|| format!("{policy}, seed {seed}"))
                })
                .collect::<Result<Vec<_>>>()?;
            Ok(Row { policy: short_name(policy), load, runs })
        })
        .collect::<Result<Vec<_>>>();
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

fn measure(setup: Setup, end: Duration, progress: &ProgressBar) -> Result<Measured, Error> {
    let mut simulation = Simulation::new(setup)?;
    let mut reached = Duration::ZERO;
    while reached < end {
        reached = end.min(reached + STRIDE);
        simulation.run_until(reached)?;
        progress.inc(1);
    }
    Ok(simulation.measured())
}

fn describe(options: &SimulateOptions, trace: &Trace) -> String {
    let path = match &options.trace {
        Some(path) => path.display().to_string(),
        None => "built-in synthetic workload".to_string(),
    };
    let [duration, poll_interval] =
        [options.duration, options.poll_interval].map(humantime::format_duration);
    let SimulateOptions { ranks, seeds, .. } = options;
    let Step { base, per_request, per_million_kv_tokens } = deployment(options).step;
    let [base, per_request, per_token] =
        [base, per_request, per_million_kv_tokens].map(|time| time.as_secs_f64() * 1e3);
    format!(
        "{path}: {trace}\n\
         step {base} ms + {per_request} ms × largest batch + {per_token} ms × largest KV in millions of tokens\n\
         ranks {ranks}, poll interval {poll_interval}, duration {duration}, seeds {seeds}\n"
    )
}
