//! What arrived where, for tests that judge a router from the engine's side.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use serde_json::{Value, json};

use super::ranks::Ranks;

/// An hour of samples at ten a second.
const SAMPLES: usize = 36_000;
const ROOMS: usize = 100_000;
const POLLS: usize = 10_000;

/// A request's part in prefill and decode.
#[derive(Debug, Serialize)]
pub struct Room {
    pub bootstrap_room: u64,
    pub bootstrap_host: Option<String>,
    pub bootstrap_port: Option<u16>,
    pub rank: usize,
}

#[derive(Debug, Default)]
pub struct Record {
    since_unix_ms: u64,
    /// Requests that never got to a rank, by status.
    rejected: BTreeMap<u16, u64>,
    /// With the outstanding requests of each rank.
    samples: VecDeque<(u64, Vec<u32>)>,
    cv_sum: f64,
    cv_samples: u64,
    rooms: VecDeque<Room>,
    polls: VecDeque<u64>,
}

impl Record {
    pub fn new(since_unix_ms: u64) -> Self {
        Self { since_unix_ms, ..Self::default() }
    }

    pub fn reject(&mut self, status: u16) {
        *self.rejected.entry(status).or_default() += 1;
    }

    pub fn room(&mut self, room: Room) {
        push(&mut self.rooms, room, ROOMS);
    }

    pub fn poll(&mut self, unix_ms: u64) {
        push(&mut self.polls, unix_ms, POLLS);
    }

    pub fn sample(&mut self, unix_ms: u64, outstanding: Vec<u32>) {
        if let Some(cv) = cv(&outstanding) {
            self.cv_sum += cv;
            self.cv_samples += 1;
        }
        push(&mut self.samples, (unix_ms, outstanding), SAMPLES);
    }

    pub fn json(&self, ranks: &Ranks, unix_ms: u64) -> Value {
        let times: Vec<_> = self.samples.iter().map(|(unix_ms, _)| unix_ms).collect();
        let outstanding: Vec<_> = self.samples.iter().map(|(_, outstanding)| outstanding).collect();
        let rank = |(index, rank): (usize, &super::ranks::Rank)| {
            let mut json = json!(rank.counts);
            json["rank"] = index.into();
            json["outstanding"] = rank.outstanding.into();
            json["running"] = rank.running.len().into();
            json["peak_outstanding"] = rank.peak_outstanding.into();
            json
        };
        let mean = (self.cv_samples > 0).then(|| self.cv_sum / self.cv_samples as f64);
        json!({
            "unix_ms": unix_ms,
            "since_unix_ms": self.since_unix_ms,
            "ranks": Value::from_iter(ranks.ranks.iter().enumerate().map(rank)),
            "rejected": self.rejected,
            "outstanding_cv": { "mean": mean, "samples": self.cv_samples },
            "samples": { "unix_ms": times, "outstanding": outstanding },
            "rooms": self.rooms,
            "polls_unix_ms": self.polls,
        })
    }
}

/// The newest stay.
fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(item);
}

/// Standard deviation ÷ mean over the ranks; none where all are idle.
fn cv(outstanding: &[u32]) -> Option<f64> {
    let count = outstanding.len() as f64;
    let mean = outstanding.iter().map(|&of| f64::from(of)).sum::<f64>() / count;
    let squares: f64 = outstanding.iter().map(|&of| (f64::from(of) - mean).powi(2)).sum();
    (mean > 0.0).then(|| (squares / count).sqrt() / mean)
}
