//! What is measured in a run: samples, one a simulated second, and the times of every request.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::series::Series;

/// A day; what takes longer counts as that.
const LONGEST_US: u64 = 24 * 60 * 60 * 1_000_000;

/// A decode rank at the moment of a sample.
#[derive(Clone, Copy)]
pub struct RankSample {
    pub outstanding: u32,
    pub running: u32,
    /// Tokens, those of prompts on their way among them.
    pub kv: u64,
}

/// One run's figures. NaN: nothing to tell from.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub tok_s_gpu: f64,
    pub tpot_p50_ms: f64,
    pub tpot_p90_ms: f64,
    pub ttft_p50_ms: f64,
    pub ttft_p90_ms: f64,
    pub outstanding_cv: f64,
    pub batch_cv: f64,
    pub busiest_batch: f64,
    pub kv_busiest_over_mean: f64,
    pub busiest_share: f64,
    pub rank_mean_dev: f64,
    pub waiting_share: f64,
}

pub struct Metric {
    /// In JSON and CSV.
    pub name: &'static str,
    pub title: &'static str,
    pub decimals: usize,
    pub of: fn(&Measured) -> f64,
}

macro_rules! metrics {
    ($($name:ident $title:literal $decimals:literal)*) => {
        /// In the order of the tables.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: stringify!($name),
            title: $title,
            decimals: $decimals,
            of: |measured| measured.$name,
        }),*];
    };
}

metrics! {
    tok_s_gpu "output throughput, tok/s/GPU" 1
    tpot_p50_ms "TPOT p50, ms" 2
    tpot_p90_ms "TPOT p90, ms" 2
    ttft_p50_ms "TTFT p50, ms" 0
    ttft_p90_ms "TTFT p90, ms" 0
    outstanding_cv "outstanding requests, CV over ranks" 3
    batch_cv "running batch, CV over ranks" 3
    busiest_batch "busiest rank's batch" 1
    kv_busiest_over_mean "busiest / mean rank, KV tokens" 2
    busiest_share "most often busiest rank, share of time" 3
    rank_mean_dev "rank's mean batch, largest deviation" 3
    waiting_share "in flight, not yet decoding, share" 3
}

#[derive(Default)]
struct Sums {
    samples: u32,
    outstanding_cv: f64,
    batch_cv: f64,
    busiest_batch: f64,
    kv_busiest_over_mean: f64,
    outstanding: u64,
    running: u64,
}

pub struct Recorder {
    sums: Sums,
    /// By rank.
    running: Vec<u64>,
    /// By rank, in samples; ranks that tie share one.
    busiest: Vec<f64>,
    /// In microseconds, to a part in a thousand.
    tpot: Histogram<u32>,
    ttft: Histogram<u32>,
    tokens: u64,
    /// If they are asked for.
    pub series: Option<Series>,
}

impl Recorder {
    pub fn new(ranks: usize) -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, LONGEST_US, 3).expect("the bounds are allowed");
        Self {
            sums: Sums::default(),
            running: vec![0; ranks],
            busiest: vec![0.0; ranks],
            tpot: histogram(),
            ttft: histogram(),
            tokens: 0,
            series: None,
        }
    }

    pub fn tokens(&mut self, tokens: u64) {
        self.tokens += tokens;
    }

    pub fn first_token(&mut self, after: Duration) {
        self.ttft.saturating_record(after.as_micros() as u64);
    }

    /// `tokens` were made in `time` after the first one.
    pub fn response(&mut self, time: Duration, tokens: u32) {
        if tokens > 0 {
            self.tpot.saturating_record((time / tokens).as_micros() as u64);
        }
    }

    pub fn sample(&mut self, ranks: impl Iterator<Item = RankSample> + Clone) {
        let outstanding = ranks.clone().map(|rank| f64::from(rank.outstanding));
        let running = ranks.clone().map(|rank| f64::from(rank.running));
        let kv = ranks.clone().map(|rank| rank.kv as f64);
        let busiest_batch = largest(running.clone());
        let sums = &mut self.sums;
        sums.samples += 1;
        sums.outstanding_cv += coefficient_of_variation(outstanding.clone());
        sums.batch_cv += coefficient_of_variation(running);
        sums.busiest_batch += busiest_batch;
        sums.kv_busiest_over_mean += largest_over_mean(kv);

        if let Some(series) = &mut self.series {
            series.sample(busiest_batch, outstanding);
        }
        let is_busiest = |rank: &RankSample| f64::from(rank.running) == busiest_batch;
        let share = 1.0 / ranks.clone().filter(is_busiest).count() as f64;
        for (index, rank) in ranks.enumerate() {
            sums.outstanding += u64::from(rank.outstanding);
            sums.running += u64::from(rank.running);
            self.running[index] += u64::from(rank.running);
            if is_busiest(&rank) {
                self.busiest[index] += share;
            }
        }
    }

    /// `time` was measured on so many GPUs.
    pub fn measured(&self, time: Duration, gpus: u32) -> Measured {
        let Sums { samples, outstanding_cv, batch_cv, busiest_batch, kv_busiest_over_mean, .. } =
            self.sums;
        let samples = f64::from(samples);
        let mean_running = self.sums.running as f64 / self.running.len() as f64;
        let deviations = self.running.iter().map(|&sum| (sum as f64 - mean_running).abs());
        Measured {
            tok_s_gpu: self.tokens as f64 / time.as_secs_f64() / f64::from(gpus),
            tpot_p50_ms: quantile_ms(&self.tpot, 0.5),
            tpot_p90_ms: quantile_ms(&self.tpot, 0.9),
            ttft_p50_ms: quantile_ms(&self.ttft, 0.5),
            ttft_p90_ms: quantile_ms(&self.ttft, 0.9),
            outstanding_cv: outstanding_cv / samples,
            batch_cv: batch_cv / samples,
            busiest_batch: busiest_batch / samples,
            kv_busiest_over_mean: kv_busiest_over_mean / samples,
            busiest_share: largest(self.busiest.iter().copied()) / samples,
            rank_mean_dev: largest(deviations) / mean_running,
            waiting_share: 1.0 - self.sums.running as f64 / self.sums.outstanding as f64,
        }
    }
}

fn quantile_ms(histogram: &Histogram<u32>, share: f64) -> f64 {
    if histogram.is_empty() {
        return f64::NAN;
    }
    histogram.value_at_quantile(share) as f64 / 1e3
}

fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

/// 1 where all are 0, which is as even as can be.
fn largest_over_mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let mean = mean(values.clone());
    if mean > 0.0 { largest(values) / mean } else { 1.0 }
}

/// Standard deviation ÷ mean; 0 where all are 0.
fn coefficient_of_variation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let average = mean(values.clone());
    let variance = mean(values.map(|value| (value - average).powi(2)));
    if average > 0.0 { variance.sqrt() / average } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(samples: &[[(u32, u32, u64); 2]]) -> Measured {
        let mut recorder = Recorder::new(2);
        for sample in samples {
            recorder.sample(sample.iter().map(|&(outstanding, running, kv)| RankSample {
                outstanding,
                running,
                kv,
            }));
        }
        recorder.measured(Duration::from_secs(1), 1)
    }

    fn assert_close(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
    }

    #[test]
    fn samples_are_averaged() {
        let measured = measured(&[[(1, 1, 100), (3, 3, 300)], [(4, 2, 0), (4, 2, 0)]]);
        assert_close(measured.outstanding_cv, 0.25);
        assert_close(measured.batch_cv, 0.25);
        assert_close(measured.busiest_batch, 2.5);
        assert_close(measured.kv_busiest_over_mean, 1.25);
        assert_close(measured.waiting_share, 4.0 / 12.0);
    }

    #[test]
    fn ranks_that_tie_share_the_sample() {
        let [tie, first, second] =
            [[(0, 2, 0), (0, 2, 0)], [(0, 3, 0), (0, 1, 0)], [(0, 0, 0), (0, 4, 0)]];
        assert_close(measured(&[tie, tie]).busiest_share, 0.5);
        assert_close(measured(&[first, first, second]).busiest_share, 2.0 / 3.0);
        assert_close(measured(&[tie, first]).busiest_share, 0.75);
    }

    #[test]
    fn a_rank_that_deviates_always_is_seen() {
        let measured = measured(&[[(0, 3, 0), (0, 1, 0)], [(0, 3, 0), (0, 1, 0)]]);
        assert_close(measured.rank_mean_dev, 0.5);
    }

    #[test]
    fn an_even_mean_hides_swings() {
        let measured = measured(&[[(0, 3, 0), (0, 1, 0)], [(0, 1, 0), (0, 3, 0)]]);
        assert_close(measured.rank_mean_dev, 0.0);
        assert_close(measured.batch_cv, 0.5);
    }

    #[test]
    fn times_are_quantiles_and_tokens_are_per_second_and_gpu() {
        let mut recorder = Recorder::new(1);
        for ms in 1..=100 {
            recorder.first_token(Duration::from_millis(ms));
            recorder.response(Duration::from_millis(10 * ms), 10);
        }
        recorder.response(Duration::ZERO, 0);
        recorder.tokens(960);
        let measured = recorder.measured(Duration::from_secs(3), 16);
        for (value, expected) in [
            (measured.tpot_p50_ms, 50.0),
            (measured.tpot_p90_ms, 90.0),
            (measured.ttft_p50_ms, 50.0),
            (measured.ttft_p90_ms, 90.0),
        ] {
            assert!((value / expected - 1.0).abs() < 1e-3, "{value}, not {expected}");
        }
        assert_close(measured.tok_s_gpu, 20.0);
    }

    #[test]
    fn nothing_finished_has_no_quantile() {
        assert!(measured(&[[(1, 1, 1), (1, 1, 1)]]).tpot_p50_ms.is_nan());
    }

    #[test]
    fn nothing_outstanding_is_even() {
        assert_eq!(coefficient_of_variation([0.0, 0.0].into_iter()), 0.0);
        assert_eq!(coefficient_of_variation([1.0, 3.0].into_iter()), 0.5);
        assert_eq!(largest_over_mean([0.0, 0.0].into_iter()), 1.0);
    }
}
