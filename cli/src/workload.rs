//! A synthetic agentic workload with the lengths and pauses of the AgentX traces, for when no trace
//! is at hand.

use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::model::{Conversation, Turn};

const CONVERSATIONS: usize = 2_000;
const SMALLEST_CONTEXT: f64 = 6_000.0;
const LARGEST_CONTEXT: f64 = 900_000.0;

pub fn synthetic(seed: u64) -> Vec<Conversation> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    (0..CONVERSATIONS).map(|_| conversation(&mut rng)).collect()
}

/// A context that starts uncached and grows by what each turn adds, until it is compacted: then it
/// is shorter, but none of it is cached.
fn conversation(rng: &mut impl Rng) -> Conversation {
    let turns = log_normal(rng, 46.0, 0.9).clamp(3.0, 600.0) as usize;
    let mut context = log_normal(rng, 48_000.0, 0.95).clamp(SMALLEST_CONTEXT, LARGEST_CONTEXT);
    let mut uncached = context;
    (0..turns)
        .map(|index| {
            if index > 0 {
                uncached = log_normal(rng, 690.0, 1.3);
                context += uncached;
                if context > LARGEST_CONTEXT || rng.random_bool(0.021) {
                    context = SMALLEST_CONTEXT.max(context * rng.random_range(0.4..1.0));
                    uncached = context;
                }
            }
            Turn {
                input: context as u32,
                uncached: uncached as u32,
                output: log_normal(rng, 216.0, 1.18).max(1.0) as u32,
                think: think_time(rng),
            }
        })
        .collect()
}

/// A tool's run takes seconds; a person's answer may take an hour.
fn think_time(rng: &mut impl Rng) -> Duration {
    Duration::from_secs_f64(3.0 + log_normal(rng, 7.0, 2.3))
}

fn log_normal(rng: &mut impl Rng, median: f64, sigma: f64) -> f64 {
    let normal: f64 = rng.sample(StandardNormal);
    median * (sigma * normal).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_published_figures_of_agentx() {
        for seed in 0..5 {
            let turns: Vec<Turn> = synthetic(seed).concat();
            let input = Distribution::of(&turns, |turn| f64::from(turn.input));
            let output = Distribution::of(&turns, |turn| f64::from(turn.output));
            let uncached = Distribution::of(&turns, |turn| f64::from(turn.uncached));
            let think = Distribution::of(&turns, |turn| turn.think.as_secs_f64());
            let figures = [
                ("input p10", input.quantile(0.10), 42_000.0),
                ("input p50", input.quantile(0.50), 104_000.0),
                ("input p90", input.quantile(0.90), 234_000.0),
                ("input p99", input.quantile(0.99), 499_000.0),
                ("input mean", input.mean(), 122_000.0),
                ("input CV", input.cv(), 0.76),
                ("output p50", output.quantile(0.50), 216.0),
                ("output mean", output.mean(), 440.0),
                ("output CV", output.cv(), 1.68),
                ("uncached p50", uncached.quantile(0.50), 728.0),
                ("uncached mean", uncached.mean(), 4_500.0),
                ("think p50", think.quantile(0.50), 10.0),
            ];
            for (name, ours, published) in figures {
                let bound = if name == "input p99" { 0.15 } else { 0.10 };
                assert!(
                    (ours / published - 1.0).abs() <= bound,
                    "{name} is {ours}, published is {published} (seed {seed})"
                );
            }
        }
    }

    struct Distribution(Vec<f64>);

    impl Distribution {
        fn of(turns: &[Turn], value: impl Fn(&Turn) -> f64) -> Self {
            let mut values: Vec<f64> = turns.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            Self(values)
        }

        fn quantile(&self, share: f64) -> f64 {
            self.0[(share * self.0.len() as f64) as usize]
        }

        fn mean(&self) -> f64 {
            self.0.iter().sum::<f64>() / self.0.len() as f64
        }

        fn cv(&self) -> f64 {
            let mean = self.mean();
            let squares: f64 = self.0.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / self.0.len() as f64).sqrt() / mean
        }
    }
}
