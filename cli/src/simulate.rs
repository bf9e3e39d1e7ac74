//! Runs every policy on the same conversations and sums up what it did.

use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use evenkeel::{Error, Policy};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use serde::Serialize;

use crate::model::{Conversation, Measured, Setup, Simulation, Timing};
use crate::{SimulateOptions, trace, workload};

const POLICIES: [(&str, Policy); 4] = [
    ("round_robin", Policy::RoundRobin),
    ("tokens", Policy::PowerOfTwoTokens),
    ("requests", Policy::PowerOfTwoRequests),
    ("least_requests", Policy::LeastRequests),
];

const WARM_UP: Duration = Duration::from_secs(10 * 60);

/// How far a run advances between two moves of the progress bar.
const STRIDE: Duration = Duration::from_secs(60);

/// Means over the seeds.
#[derive(Serialize)]
struct Row {
    policy: &'static str,
    concurrency: u32,
    outstanding_cv: f64,
    busiest_batch: f64,
}

/// The text to print.
pub fn run(options: &SimulateOptions) -> Result<String> {
    let conversations = match &options.trace {
        Some(file) => trace::read_agentx(file)?,
        None => workload::synthetic(0),
    };
    let rows = compare(options, &conversations)?;
    let mut text = if options.json {
        serde_json::to_string_pretty(&rows)?
    } else {
        describe(options) + &table(&rows).to_string()
    };
    text.push('\n');
    Ok(text)
}

fn compare(options: &SimulateOptions, conversations: &[Conversation]) -> Result<Vec<Row>> {
    let cases: Vec<_> = options
        .concurrency
        .iter()
        .flat_map(|&concurrency| POLICIES.map(|(name, policy)| (concurrency, name, policy)))
        .collect();
    let strides = (WARM_UP + options.duration).as_nanos().div_ceil(STRIDE.as_nanos());
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} simulated minutes")?;
    let progress =
        ProgressBar::new(cases.len() as u64 * options.seeds * strides as u64).with_style(style);

    let rows = cases
        .into_par_iter()
        .map(|(concurrency, name, policy)| {
            let runs = (1..=options.seeds)
                .into_par_iter()
                .map(|seed| {
                    let setup = Setup {
                        conversations,
                        timing: Timing::default(),
                        policy,
                        concurrency,
                        ranks: options.ranks,
                        seed,
                        poll_interval: options.poll_interval,
                        warm_up: WARM_UP,
                    };
                    measure(setup, options.duration, &progress)
                })
                .collect::<Result<Vec<_>, Error>>()?;
            let mean =
                |of: fn(&Measured) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
            Ok(Row {
                policy: name,
                concurrency,
                outstanding_cv: mean(|run| run.outstanding_cv),
                busiest_batch: mean(|run| run.busiest_batch),
            })
        })
        .collect::<Result<Vec<_>, Error>>();
    progress.finish_and_clear();
    Ok(rows?)
}

fn measure(setup: Setup, duration: Duration, progress: &ProgressBar) -> Result<Measured, Error> {
    let mut simulation = Simulation::new(setup)?;
    let end = setup.warm_up + duration;
    let mut reached = Duration::ZERO;
    while reached < end {
        reached = end.min(reached + STRIDE);
        simulation.run_until(reached)?;
        progress.inc(1);
    }
    Ok(simulation.measured())
}

fn describe(options: &SimulateOptions) -> String {
    let workload = match &options.trace {
        Some(file) => file.display().to_string(),
        None => "built-in synthetic workload".to_string(),
    };
    let [duration, poll_interval] =
        [options.duration, options.poll_interval].map(humantime::format_duration);
    let SimulateOptions { ranks, seeds, .. } = options;
    format!(
        "{workload}\n\
         ranks {ranks}, poll interval {poll_interval}, duration {duration}, seeds {seeds}\n"
    )
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "concurrency",
        "policy",
        "outstanding requests, CV over ranks",
        "busiest rank's batch",
    ]);
    for row in rows {
        table.add_row([
            row.concurrency.to_string(),
            row.policy.to_string(),
            format!("{:.3}", row.outstanding_cv),
            format!("{:.1}", row.busiest_batch),
        ]);
    }
    for column in [0, 2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
