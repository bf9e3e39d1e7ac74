//! What each part of a deployment takes, in time and memory, and presets with their sources.

use std::fmt;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::{number, time};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deployment {
    /// Each prompt, whatever its length.
    pub prefill: Duration,
    /// Of uncached tokens, by all prefill ranks together.
    pub prefill_tokens_per_s: f64,
    /// From the last token on the link until the KV is usable.
    pub transfer: Duration,
    /// Of whole prompts, into each decode rank.
    pub transfer_tokens_per_s: f64,
    pub step: Step,
    /// Tokens that a decode rank has room for.
    pub kv_capacity: Option<u64>,
    pub think_cap: Duration,
    /// Prefill and decode.
    pub gpus: u32,
}

/// What a decode step costs a rank. All ranks wait for the one that takes longest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub base: Duration,
    pub per_request: Duration,
    pub per_million_kv_tokens: Duration,
}

impl Step {
    pub fn time(&self, batch: u32, kv_tokens: u64) -> Duration {
        self.base
            + self.per_request * batch
            + self.per_million_kv_tokens.mul_f64(kv_tokens as f64 / 1e6)
    }

    /// How many KV tokens cost a step as much as one more request.
    pub fn request_tokens(&self) -> u32 {
        let tokens =
            1e6 * self.per_request.as_secs_f64() / self.per_million_kv_tokens.as_secs_f64();
        tokens as u32 // Saturates where tokens cost nothing.
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [base, per_request, per_million_kv_tokens] =
            [self.base, self.per_request, self.per_million_kv_tokens]
                .map(|time| time.as_secs_f64() * 1e3);
        write!(
            f,
            "of the busiest rank, {base} ms + {per_request} ms × batch + {per_million_kv_tokens} ms × \
             KV in millions of tokens"
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Preset {
    /// DeepSeek-V4-Pro on 8 + 8 MI355X: found by ci/calibrate.py for a published measurement on
    /// AgentX. Its sparse attention makes KV tokens free.
    #[value(name = "deepseek-v4-mi355x")]
    DeepseekV4Mi355x,
    /// The same with full attention over an MLA cache: 70 KB a token read at 4 TB/s cost 17 ms a
    /// million tokens. Derived, not measured.
    MlaFullAttention,
    /// OPT-13B on 8 + 8 A100-80GB: the step as DistServe fitted it. Prefill and transfer are
    /// derived: 26 GFLOP a token at 130 TFLOP/s a GPU, 0.8 MB of KV a token over 40 GB/s and 60,000
    /// tokens of it beside the weights.
    #[value(name = "opt13b-a100")]
    Opt13bA100,
}

impl Preset {
    pub fn deployment(self) -> Deployment {
        let deepseek = Deployment {
            prefill: Duration::from_millis(18),
            prefill_tokens_per_s: 200_000.0,
            transfer: Duration::from_millis(1_100),
            transfer_tokens_per_s: 1_150_000.0,
            step: Step {
                base: Duration::from_micros(7_580),
                per_request: Duration::from_micros(332),
                per_million_kv_tokens: Duration::ZERO,
            },
            kv_capacity: None,
            think_cap: Duration::from_millis(5_300),
            gpus: 16,
        };
        match self {
            Self::DeepseekV4Mi355x => deepseek,
            Self::MlaFullAttention => Deployment {
                step: Step { per_million_kv_tokens: Duration::from_millis(17), ..deepseek.step },
                ..deepseek
            },
            Self::Opt13bA100 => Deployment {
                prefill: Duration::from_millis(1),
                prefill_tokens_per_s: 40_000.0,
                transfer: Duration::from_millis(50),
                transfer_tokens_per_s: 50_000.0,
                step: Step {
                    base: Duration::from_micros(19_930),
                    per_request: Duration::from_nanos(38_500),
                    per_million_kv_tokens: Duration::from_millis(627),
                },
                kv_capacity: Some(60_000),
                ..deepseek
            },
        }
    }
}

/// Of whatever runs on the model: a preset and what differs from it.
#[derive(Args, Clone, Debug)]
pub struct DeploymentOptions {
    /// What parts of the deployment take
    #[arg(long, value_enum, default_value = "deepseek-v4-mi355x")]
    pub preset: Preset,

    /// Decode step: a + b × batch + c × KV of the rank that takes longest, in ms, ms and ms per million
    /// tokens [default: the preset's]
    #[arg(long, value_name = "A,B,C", value_parser = step)]
    step: Option<Step>,

    /// Tokens that a decode rank has room for [default: the preset's]
    #[arg(long, value_name = "TOKENS", value_parser = |text: &str| number(text, 1..=u64::MAX))]
    kv_capacity: Option<u64>,

    /// What each prompt takes in prefill, whatever its length [default: the preset's]
    #[arg(long, value_name = "TIME", value_parser = |text: &str| time(text, Duration::ZERO))]
    prefill_time: Option<Duration>,

    /// Uncached tokens a second of all prefill ranks [default: the preset's]
    #[arg(long, value_name = "TOKENS", value_parser = |text: &str| number(text, 1.0..=1e12))]
    prefill_rate: Option<f64>,

    /// Latency of the KV's way from prefill to its decode rank [default: the preset's]
    #[arg(long, value_name = "TIME", value_parser = |text: &str| time(text, Duration::ZERO))]
    transfer: Option<Duration>,

    /// Prompt tokens a second into each decode rank, one prompt after the other [default: the
    /// preset's]
    #[arg(long, value_name = "TOKENS", value_parser = |text: &str| number(text, 1.0..=1e12))]
    transfer_rate: Option<f64>,
}

impl DeploymentOptions {
    pub fn deployment(&self) -> Deployment {
        let preset = self.preset.deployment();
        Deployment {
            prefill: self.prefill_time.unwrap_or(preset.prefill),
            prefill_tokens_per_s: self.prefill_rate.unwrap_or(preset.prefill_tokens_per_s),
            transfer: self.transfer.unwrap_or(preset.transfer),
            transfer_tokens_per_s: self.transfer_rate.unwrap_or(preset.transfer_tokens_per_s),
            step: self.step.unwrap_or(preset.step),
            kv_capacity: self.kv_capacity.or(preset.kv_capacity),
            ..preset
        }
    }
}

fn step(text: &str) -> Result<Step, String> {
    let ms: Option<Vec<_>> = text
        .split(',')
        .map(|part| {
            let ms: f64 = part.trim().parse().ok().filter(|ms| (0.0..=60_000.0).contains(ms))?;
            Some(Duration::from_secs_f64(ms / 1e3))
        })
        .collect();
    match ms.as_deref() {
        Some(&[base, per_request, per_million_kv_tokens]) => {
            Ok(Step { base, per_request, per_million_kv_tokens })
        }
        _ => Err("expected three numbers from 0 to 60000, such as 7.58,0.332,17".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_costs_for_each_request_and_each_token() {
        let step = Step {
            per_million_kv_tokens: Duration::from_millis(5),
            ..Preset::DeepseekV4Mi355x.deployment().step
        };
        assert_eq!(step.time(10, 2_000_000), Duration::from_micros(7_580 + 3_320 + 10_000));
    }

    #[test]
    fn a_request_weighs_what_it_costs_in_tokens() {
        let request_tokens = |preset: Preset| preset.deployment().step.request_tokens();
        assert_eq!(request_tokens(Preset::DeepseekV4Mi355x), u32::MAX);
        assert_eq!(request_tokens(Preset::MlaFullAttention), 19_529);
        assert_eq!(request_tokens(Preset::Opt13bA100), 61);
    }
}
