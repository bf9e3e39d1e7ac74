//! What was measured, as figures.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use comfy_table::{Table, presets};
use serde::Serialize;

use super::Measured;
use super::client::{End, Failure, Outcome};
use super::engines::Report;

#[derive(Serialize)]
pub struct Figures {
    pub requests: usize,
    pub finished: usize,
    pub left: usize,
    pub errors: BTreeMap<String, usize>,
    /// From sending to the end of the response.
    pub latency_ms: Option<Quantiles>,
    /// To its first bytes, less what the engine says that it took itself.
    pub added_ms: Option<Quantiles>,
    /// From the first bytes to the end, a token.
    pub per_token_ms: Option<Quantiles>,
    pub engines: Option<Spread>,
    pub ranks: Option<Spread>,
    pub at_engines: Totals,
    pub bursts: Vec<Burst>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
}

/// How evenly outstanding requests were spread, over the samples at which there were any.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean of standard deviation ÷ mean.
    pub outstanding_cv: f64,
    pub mean: f64,
    /// Mean of the largest.
    pub busiest: f64,
    pub samples: usize,
}

#[derive(Default, Serialize)]
pub struct Totals {
    begun: u64,
    finished: u64,
    aborted: u64,
    failed: u64,
    pub outstanding: u32,
}

/// How many requests of a burst arrived where.
#[derive(Serialize)]
pub struct Burst {
    pub engines: Extremes,
    pub ranks: Extremes,
    pub errors: usize,
}

#[derive(Clone, Copy, Serialize)]
pub struct Extremes {
    pub min: u64,
    pub max: u64,
}

impl Figures {
    pub fn of(Measured { outcomes, reports, until_unix_ms }: &Measured) -> Self {
        let finished: Vec<&Outcome> =
            outcomes.iter().filter(|outcome| matches!(outcome.end, End::Finished)).collect();
        let quantiles = |time: fn(&Outcome) -> Option<f64>| {
            Quantiles::of(finished.iter().filter_map(|outcome| time(outcome)).collect())
        };
        let mut errors = BTreeMap::new();
        for failure in outcomes.iter().filter_map(Outcome::failure) {
            *errors.entry(name(failure)).or_default() += 1;
        }
        let rows = joined(reports, *until_unix_ms);
        let of_engines =
            rows.iter().map(|engines| engines.iter().map(|ranks| ranks.iter().sum()).collect());
        let of_ranks = rows.iter().map(|engines| engines.concat());
        Self {
            requests: outcomes.len(),
            finished: finished.len(),
            left: outcomes.iter().filter(|outcome| matches!(outcome.end, End::Left)).count(),
            errors,
            latency_ms: quantiles(|outcome| Some(ms(outcome.whole))),
            added_ms: quantiles(|outcome| Some(ms(outcome.first?) - ms(outcome.engine?))),
            per_token_ms: quantiles(|outcome| {
                let per_token =
                    ms(outcome.whole - outcome.first?) / f64::from(outcome.later_tokens);
                Some(per_token).filter(|_| outcome.later_tokens > 0)
            }),
            engines: Spread::of(of_engines),
            ranks: Spread::of(of_ranks),
            at_engines: Totals::of(reports),
            bursts: Vec::new(),
        }
    }

    /// There were requests, and each of them failed.
    pub fn all_failed(&self, burst_size: usize) -> bool {
        let began = self.requests > 0 || !self.bursts.is_empty();
        let in_bursts = self.bursts.iter().all(|burst| burst.errors == burst_size);
        began && self.finished + self.left == 0 && in_bursts
    }

    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        let mut row = |title: &str, value: String| {
            table.add_row([title.to_owned(), value]);
        };
        row("requests", self.requests.to_string());
        row("finished", self.finished.to_string());
        row("clients that left", self.left.to_string());
        let errors: Vec<_> = self.errors.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        row("errors", if errors.is_empty() { "none".into() } else { errors.join(", ") });
        for (title, times) in [
            ("latency", self.latency_ms),
            ("added to the first token", self.added_ms),
            ("a token", self.per_token_ms),
        ] {
            if let Some(Quantiles { p50, p99 }) = times {
                row(&format!("{title}, p50 / p99"), format!("{p50:.2} / {p99:.2} ms"));
            }
        }
        for (title, spread) in [("engines", self.engines), ("ranks", self.ranks)] {
            if let Some(Spread { outstanding_cv, mean, busiest, .. }) = spread {
                row(&format!("outstanding CV over {title}"), format!("{outstanding_cv:.4}"));
                row(&format!("mean / busiest of {title}"), format!("{mean:.1} / {busiest:.1}"));
            }
        }
        row("outstanding at the end", self.at_engines.outstanding.to_string());
        for (nth, burst) in self.bursts.iter().enumerate() {
            let Burst { engines, ranks, errors } = burst;
            let text = format!(
                "engines {} to {}, ranks {} to {}, {errors} errors",
                engines.min, engines.max, ranks.min, ranks.max
            );
            row(&format!("burst {}", nth + 1), text);
        }
        table
    }
}

fn name(failure: Failure) -> String {
    match failure {
        Failure::Connect => "connect".into(),
        Failure::NoResponse => "no response".into(),
        Failure::Status(code) => format!("status {code}"),
        Failure::Broken => "broken".into(),
        Failure::Late => "late".into(),
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// At each moment that all engines have a sample of: the outstanding requests of each engine's ranks.
fn joined(reports: &[Report], until_unix_ms: u64) -> Vec<Vec<&[u32]>> {
    let mut moments: HashMap<u64, Vec<&[u32]>> = HashMap::new();
    for report in reports {
        for (&unix_ms, ranks) in report.samples.unix_ms.iter().zip(&report.samples.outstanding) {
            if unix_ms <= until_unix_ms {
                moments.entry(unix_ms).or_default().push(ranks);
            }
        }
    }
    moments.into_values().filter(|engines| engines.len() == reports.len()).collect()
}

impl Spread {
    fn of(samples: impl Iterator<Item = Vec<u32>>) -> Option<Self> {
        let mut sums = Self { outstanding_cv: 0.0, mean: 0.0, busiest: 0.0, samples: 0 };
        for sample in samples {
            let count = sample.len() as f64;
            let mean = sample.iter().map(|&of| f64::from(of)).sum::<f64>() / count;
            if mean == 0.0 {
                continue;
            }
            let squares: f64 = sample.iter().map(|&of| (f64::from(of) - mean).powi(2)).sum();
            sums.outstanding_cv += (squares / count).sqrt() / mean;
            sums.mean += mean;
            sums.busiest += f64::from(sample.into_iter().max().unwrap_or(0));
            sums.samples += 1;
        }
        let samples = sums.samples as f64;
        (sums.samples > 0).then(|| Self {
            outstanding_cv: sums.outstanding_cv / samples,
            mean: sums.mean / samples,
            busiest: sums.busiest / samples,
            ..sums
        })
    }
}

impl Quantiles {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[(share * values.len() as f64) as usize];
        (!values.is_empty()).then(|| Self { p50: at(0.5), p99: at(0.99) })
    }
}

impl Totals {
    fn of(reports: &[Report]) -> Self {
        let mut totals = Self::default();
        for rank in reports.iter().flat_map(|report| &report.ranks) {
            totals.begun += rank.begun;
            totals.finished += rank.finished;
            totals.aborted += rank.aborted;
            totals.failed += rank.failed;
            totals.outstanding += rank.outstanding;
        }
        totals
    }
}

impl Burst {
    pub fn of(reports: &[Report], errors: usize) -> Self {
        let ranks =
            |report: &Report| report.ranks.iter().map(|rank| rank.begun).collect::<Vec<_>>();
        let ranks: Vec<Vec<u64>> = reports.iter().map(ranks).collect();
        Self {
            engines: Extremes::of(ranks.iter().map(|ranks| ranks.iter().sum())),
            ranks: Extremes::of(ranks.iter().flatten().copied()),
            errors,
        }
    }
}

impl Extremes {
    fn of(counts: impl Iterator<Item = u64> + Clone) -> Self {
        Self { min: counts.clone().min().unwrap_or(0), max: counts.max().unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::engines::Samples;
    use super::*;

    fn report(unix_ms: &[u64], outstanding: &[&[u32]]) -> Report {
        let outstanding = outstanding.iter().map(|ranks| ranks.to_vec()).collect();
        Report { ranks: Vec::new(), samples: Samples { unix_ms: unix_ms.to_vec(), outstanding } }
    }

    #[test]
    fn samples_join_by_their_times() {
        let one = report(&[100, 200, 300, 400], &[&[1, 3], &[9, 9], &[0, 0], &[5, 5]]);
        let other = report(&[100, 300, 400], &[&[2, 2], &[0, 0], &[7, 7]]);
        let measured =
            Measured { outcomes: Vec::new(), reports: vec![one, other], until_unix_ms: 300 };
        let figures = Figures::of(&measured);
        let engines = Spread { outstanding_cv: 0.0, mean: 4.0, busiest: 4.0, samples: 1 };
        assert_eq!(figures.engines, Some(engines));
        let ranks =
            Spread { outstanding_cv: 0.5f64.sqrt() / 2.0, mean: 2.0, busiest: 3.0, samples: 1 };
        assert_eq!(figures.ranks, Some(ranks));
    }
}
