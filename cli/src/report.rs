//! The report: what was measured, as one page of HTML that needs nothing else.

mod chart;
mod figures;

use std::env;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::metrics::METRICS;
use crate::simulate::{self, Loaded, Row};
use crate::trace::Trace;
use crate::{SimulateOptions, table};

const STYLE: &str = include_str!("report/style.css");

/// `balanced` are the rows for the chart of `request_tokens`.
pub fn html(
    options: &SimulateOptions,
    trace: &Trace,
    loads: &[Loaded],
    rows: &[Row],
    balanced: &[Row],
) -> Result<String> {
    let source = simulate::source(options);
    let first = rows.chunk_by(|one, other| one.load == other.load).next().unwrap_or_default();
    let dark = format!("@media screen and (prefers-color-scheme: dark){{{}}}", chart::dark_css());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                meta http-equiv="Content-Security-Policy"
                    content="default-src 'none'; style-src 'unsafe-inline'";
                title { "evenkeel simulate: " (source) }
                style { (PreEscaped(STYLE)) (PreEscaped(dark)) }
            }
            body {
                h1 { "Worker selection, simulated" }
                p { (source) ": " (trace) ". " (settings_in_short(options, loads)) }
                p.soft {
                    "A calibrated model of a deployment, not the deployment: it shows the order and the "
                    "size of the differences between policies. evenkeel's docs/simulate.md says what is "
                    "modelled, what was fitted and how far off it is."
                }
                h2 { "Results" }
                p.soft { (seeds(options)) @if table::baseline(rows).is_some() {
                    " In small type: the change against round_robin."
                } }
                @for rows in rows.chunk_by(|one, other| one.load == other.load) { (results(rows)) }
                (figures::over_time(first)?)
                (figures::evenness(options, rows, first)?)
                (figures::request_tokens(options, balanced)?)
                (terms())
                (how_it_was_made(options, trace, loads)?)
            }
        }
    };
    Ok(page.into_string())
}

fn settings_in_short(options: &SimulateOptions, loads: &[Loaded]) -> String {
    format!(
        "Preset {}, {} decode ranks, poll interval {}, {} after a warm-up of {}.",
        preset(options),
        options.ranks,
        humantime::format_duration(options.poll_interval),
        simulate::measured_time(options, loads),
        humantime::format_duration(options.warm_up),
    )
}

fn seeds(options: &SimulateOptions) -> String {
    match options.seeds {
        1 => "One run each, seed 1.".into(),
        seeds => format!("Mean ± standard deviation of the seeds 1 to {seeds}."),
    }
}

/// Where deviations aren't shown.
fn mean_of_seeds(options: &SimulateOptions) -> String {
    match options.seeds {
        1 => "Seed 1.".into(),
        seeds => format!("Mean of the seeds 1 to {seeds}."),
    }
}

fn results(rows: &[Row]) -> Markup {
    let baseline = table::baseline(rows);
    html! {
        div.scroll {
            table {
                caption { (rows[0].load) }
                thead { tr { th {} @for row in rows { th scope="col" { (row.policy) } } } }
                tbody {
                    @for metric in METRICS {
                        tr {
                            th scope="row" { (metric.title) }
                            @for row in rows {
                                td {
                                    (table::mean(row, metric))
                                    @if let Some(change) = table::change(row, baseline, metric) {
                                        small { (change) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn terms() -> Markup {
    let terms = [
        (
            "outstanding",
            "Requests dispatched to a rank and not ended: in prefill, on their way, waiting or decoding.",
        ),
        (
            "running batch",
            "Requests that decode on a rank. A step takes a + b × batch + c × KV of the rank that takes longest.",
        ),
        (
            "CV",
            "Coefficient of variation over the ranks: standard deviation ÷ mean, sampled once a simulated second. 0 is even.",
        ),
        (
            "TPOT",
            "Time per output token: from the first to the last token ÷ tokens after the first.",
        ),
        ("TTFT", "Time to first token: from the arrival of a request."),
        ("KV tokens", "Tokens in a rank's KV cache, those of prompts on their way among them."),
        ("p50, p90", "The value that half, nine tenths of the requests don't exceed."),
        (
            "busiest rank",
            "At the moment of a sample, the one with the most; by batch where nothing else is said.",
        ),
    ];
    html! {
        h2 { "Words" }
        dl { @for (term, meaning) in terms { dt { (term) } dd { (meaning) } } }
    }
}

fn preset(options: &SimulateOptions) -> String {
    let name =
        options.deployment.preset.to_possible_value().map(|value| value.get_name().to_string());
    let changed = simulate::deployment(options) != options.deployment.preset.deployment();
    name.unwrap_or_default() + if changed { " with changes" } else { "" }
}

fn how_it_was_made(options: &SimulateOptions, trace: &Trace, loads: &[Loaded]) -> Result<Markup> {
    let deployment = simulate::deployment(options);
    let time = |time: Duration| humantime::format_duration(time).to_string();
    let compared: Vec<_> = loads.iter().map(|loaded| loaded.load.to_string()).collect();
    let settings = [
        ("version", format!("evenkeel {}", env!("CARGO_PKG_VERSION"))),
        ("trace", format!("{}: {trace}", simulate::source(options))),
        (
            "sub-agents of the trace",
            if options.no_sub_agents { "left out" } else { "conversations like any other" }.into(),
        ),
        ("load", compared.join(", ")),
        (
            "seeds",
            match options.seeds {
                1 => "1".into(),
                seeds => format!("1 to {seeds}"),
            },
        ),
        (
            "measured time",
            format!(
                "{}, after a warm-up of {}",
                simulate::measured_time(options, loads),
                time(options.warm_up),
            ),
        ),
        ("poll interval", time(options.poll_interval)),
        ("poll delay, sampled to published", time(options.poll_delay)),
        ("preset", preset(options)),
        ("decode step", deployment.step.to_string()),
        ("request_tokens of balanced", simulate::request_tokens(options).to_string()),
        (
            "load factor of consistent_hashing",
            match options.hash_load_factor {
                0 => "no bound".into(),
                percent => format!("{percent} %"),
            },
        ),
        ("decode ranks", options.ranks.to_string()),
        (
            "KV tokens that a rank has room for",
            deployment.kv_capacity.map_or("no limit".into(), |tokens| tokens.to_string()),
        ),
        ("prefill ranks", options.prefill_ranks.to_string()),
        ("policy of the prefill ranks", simulate::short_name(options.prefill_policy).into()),
        (
            "a request counts on its prefill rank",
            if options.prefill_counts_to_the_end {
                "until its response ends"
            } else {
                "until its first token"
            }
            .into(),
        ),
        ("prefill, each prompt", time(deployment.prefill)),
        ("prefill, all ranks", format!("{} uncached tokens/s", deployment.prefill_tokens_per_s)),
        (
            "transfer into a decode rank",
            format!(
                "{} after the last of {} tokens/s",
                time(deployment.transfer),
                deployment.transfer_tokens_per_s
            ),
        ),
        ("longest pause between response and next request", time(deployment.think_cap)),
        ("GPUs, prefill and decode", deployment.gpus.to_string()),
    ];
    let arguments: Vec<_> =
        env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let command =
        shlex::try_join(arguments.iter().map(String::as_str)).context("the command line")?;
    Ok(html! {
        h2 { "How it was made" }
        pre { code { (command) } }
        table.settings {
            tbody { @for (name, value) in settings { tr { th scope="row" { (name) } td { (value) } } } }
        }
    })
}
