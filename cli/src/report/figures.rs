//! What the report draws.

use anyhow::Result;
use evenkeel::Policy;
use maud::{Markup, PreEscaped, html};

use super::chart::{self, Axis, Chart, Line};
use super::mean_of_seeds;
use crate::SimulateOptions;
use crate::metrics::{METRICS, Metric};
use crate::series::Series;
use crate::simulate::{self, Load, Row};

/// Of the rows of one load, those whose series were kept.
pub fn over_time(rows: &[Row]) -> Result<Markup> {
    let kept: Vec<(&Row, &Series)> =
        rows.iter().filter_map(|row| Some((row, row.series.as_ref()?))).collect();
    let Some(&(Row { load, .. }, any)) = kept.first() else { return Ok(html! {}) };
    let time = Time::of(any);
    let ranks: Vec<_> = any.kept_ranks().collect();
    let how = format!(
        "At {load}, seed 1; means of windows of {}, the same scales for all policies.",
        humantime::format_duration(any.window())
    );
    let chart = |row: &Row, y: &str, most: f64, lines: Vec<Line>| {
        let title = format!("{}: {y} over time", row.policy);
        figure(
            row.policy,
            "",
            &Chart { title, x: time.axis(), y: up_to(y, most), lines, mark: None },
        )
    };
    let batches = kept.iter().flat_map(|(_, series)| &series.busiest_batch.points);
    let most_in_batch = largest(batches.copied());
    let outstanding = kept.iter().flat_map(|(_, series)| &series.outstanding);
    let most_outstanding = largest(outstanding.flat_map(|line| &line.points).copied());
    Ok(html! {
        h2 { "Over time: the busiest rank's batch" }
        p.soft { "Each decode step of all ranks waits for it. " (how) }
        div.charts {
            @for (row, series) in &kept {
                @let line = time.line(color_of(row.policy), &series.busiest_batch.points);
                (chart(row, "requests in largest batch", most_in_batch, vec![line])?)
            }
        }
        h2 { "Over time: outstanding requests of every rank" }
        p.soft {
            "The closer together the lines, the more even. " (how)
            @if ranks.len() < any.ranks { " Of " (any.ranks) " ranks " (ranks.len()) " are shown." }
        }
        ul.legend {
            @for (color, rank) in ranks.iter().enumerate() {
                li { (PreEscaped(chart::swatch(color))) "rank " (rank) }
            }
        }
        div.charts {
            @for (row, series) in &kept {
                @let lines = series.outstanding.iter().enumerate();
                @let lines = lines.map(|(color, line)| time.line(color, &line.points)).collect();
                (chart(row, "outstanding requests", most_outstanding, lines)?)
            }
        }
    })
}

/// `first` are the rows of the first load.
pub fn evenness(options: &SimulateOptions, rows: &[Row], first: &[Row]) -> Result<Markup> {
    let cv = |row: &Row| row.mean(metric("outstanding_cv"));
    let kv = |row: &Row| row.mean(metric("kv_busiest_over_mean"));
    let seeds = mean_of_seeds(options);
    let by_load = first.iter().map(|Row { policy, .. }| {
        let rows = rows.iter().filter(|row| row.policy == *policy);
        let mut points: Vec<_> = rows.map(|row| (load(row), cv(row))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        labelled(policy, points)
    });
    let (least, most) = (smallest(rows.iter().map(load)), largest(rows.iter().map(load)));
    let beside = 0.03 * (most - least);
    let load_title = match first[0].load {
        Load::Concurrency(_) => "concurrency, conversations",
        Load::RateScale(_) => "rate × recorded",
    };
    let largest_kv = largest(first.iter().map(kv));
    Ok(html! {
        h2 { "Evenness" }
        div.charts {
            @if least < most {
                (figure(
                    "CV of outstanding requests, by load",
                    &format!("Lower is more even. {seeds}"),
                    &Chart {
                        title: "outstanding CV against load, a line a policy".into(),
                        x: Axis::linear(load_title, least - beside, most + beside),
                        y: up_to("outstanding CV", largest(rows.iter().map(cv))),
                        lines: by_load.collect(),
                        mark: None,
                    },
                )?)
            }
            (figure(
                "KV tokens and CV of outstanding requests",
                &format!("The lower left corner is even in both. At {}. {seeds}", first[0].load),
                &Chart {
                    title: "KV ratio against outstanding CV, a point a policy".into(),
                    x: up_to("outstanding CV", largest(first.iter().map(cv))),
                    y: Axis::linear("KV, busiest ÷ mean rank", 1.0, 1.1 * largest_kv - 0.1),
                    lines: first.iter().map(|row| labelled(row.policy, vec![(cv(row), kv(row))])).collect(),
                    mark: None,
                },
            )?)
        }
    })
}

/// `rows` are of `balanced` with several `request_tokens`, in their order, and of the policies that
/// it comes close to at both ends.
pub fn request_tokens(options: &SimulateOptions, rows: &[Row]) -> Result<Markup> {
    let tpot = |row: &Row| row.mean(metric("tpot_p50_ms"));
    let tokens = |row: &&Row| f64::from(row.request_tokens);
    let (balanced, others): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.policy == simulate::short_name(Policy::Balanced));
    let (from, to) = (smallest(balanced.iter().map(tokens)), largest(balanced.iter().map(tokens)));
    let across = others.iter().map(|row| Line {
        dots: false,
        ..labelled(row.policy, vec![(from, tpot(row)), (to, tpot(row))])
    });
    let curve =
        labelled(balanced[0].policy, balanced.iter().map(|row| (tokens(row), tpot(row))).collect());
    let (least, most) = (smallest(rows.iter().map(tpot)), largest(rows.iter().map(tpot)));
    let room = (most - least).max(0.02 * most);
    let asked = simulate::deployment(options).step.request_tokens();
    let says = match asked {
        u32::MAX => "asked: all it can be".to_string(),
        tokens => format!("asked: {tokens}"),
    };
    Ok(html! {
        h2 { "What request_tokens does to balanced" }
        p {
            "balanced goes by requests × request_tokens + live tokens: the larger request_tokens, the "
            "more it orders like least_requests; at 0 it orders like least_tokens. "
            (simulate::request_tokens_note(options))
        }
        div.charts {
            (figure(
                "TPOT p50, by request_tokens",
                &format!("At {}. {}", rows[0].load, mean_of_seeds(options)),
                &Chart {
                    title: "TPOT p50 against request_tokens".into(),
                    x: Axis::logarithmic("request_tokens, KV tokens", from, to),
                    y: Axis::linear("TPOT p50, ms", least - 0.1 * room, most + 0.25 * room),
                    lines: across.chain([curve]).collect(),
                    // An axis of powers has no place for 0.
                    mark: Some((f64::from(asked).max(from), says)),
                },
            )?)
        }
    })
}

fn figure(caption: &str, note: &str, chart: &Chart) -> Result<Markup> {
    let svg = PreEscaped(chart.svg()?);
    Ok(html! {
        figure role="img" aria-label=(chart.title) {
            figcaption { (caption) @if !note.is_empty() { small { (note) } } }
            (svg)
        }
    })
}

/// How a series goes along an axis.
struct Time {
    unit: &'static str,
    /// In units.
    window: f64,
    end: f64,
}

impl Time {
    fn of(series: &Series) -> Self {
        let window = series.window().as_secs_f64();
        let end = window * series.busiest_batch.points.len() as f64;
        let (unit, seconds) = if end > 300.0 { ("min", 60.0) } else { ("s", 1.0) };
        Self { unit, window: window / seconds, end: end / seconds }
    }

    fn axis(&self) -> Axis {
        Axis::linear(format!("time after the warm-up, {}", self.unit), 0.0, self.end)
    }

    fn line(&self, color: usize, values: &[f64]) -> Line {
        let middle = |index: usize| (index as f64 + 0.5) * self.window;
        let points = values.iter().enumerate().map(|(index, &value)| (middle(index), value));
        Line { label: None, color, dots: false, points: points.collect() }
    }
}

fn labelled(policy: &str, points: Vec<(f64, f64)>) -> Line {
    Line { label: Some(policy.into()), color: color_of(policy), dots: true, points }
}

/// The same in all charts of all reports.
fn color_of(policy: &str) -> usize {
    Policy::ALL.iter().position(|other| simulate::short_name(*other) == policy).unwrap_or(0)
}

/// From 0.
fn up_to(title: &str, most: f64) -> Axis {
    Axis::linear(title, 0.0, 1.1 * most)
}

fn load(row: &Row) -> f64 {
    match row.load {
        Load::Concurrency(concurrency) => concurrency.into(),
        Load::RateScale(rate) => rate,
    }
}

fn metric(name: &str) -> &'static Metric {
    METRICS.iter().find(|metric| metric.name == name).expect("a metric of this name")
}

fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NEG_INFINITY, f64::max)
}

fn smallest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}
