//! What an engine says of its ranks' loads: the truth, in the shapes of several versions, and lies.

use serde::Serialize;
use serde_json::{Value, json};

use super::faults::Faults;
pub use super::faults::Shape;
use super::ranks::Ranks;

/// An entry of `/v1/loads`.
#[derive(Clone, Debug, Serialize)]
pub struct RankLoad {
    pub timestamp: f64,
    pub dp_rank: usize,
    pub num_running_reqs: usize,
    pub num_waiting_reqs: usize,
    pub num_waiting_uncached_tokens: u64,
    pub num_used_tokens: u64,
    pub num_total_tokens: u64,
    pub num_active_tokens: u64,
    pub max_total_num_tokens: u64,
    pub max_running_requests: usize,
    pub token_usage: f64,
    pub gen_throughput: f64,
    pub cache_hit_rate: f64,
    pub utilization: f64,
    pub total_prefill_uncached_tokens: u64,
    pub total_prefill_busy_us: u128,
    pub decode_moments: Option<()>,
}

/// `throughputs`: tokens a second, by rank.
pub fn measure(ranks: &Ranks, throughputs: &[f64], timestamp: f64) -> Vec<RankLoad> {
    let loads = ranks.ranks.iter().zip(throughputs).enumerate();
    let mut loads: Vec<_> = loads
        .map(|(dp_rank, (rank, &gen_throughput))| RankLoad {
            timestamp,
            dp_rank,
            num_running_reqs: rank.running.len(),
            num_waiting_reqs: rank.outstanding as usize - rank.running.len(),
            num_waiting_uncached_tokens: 0,
            num_used_tokens: rank.kv,
            num_total_tokens: rank.kv,
            num_active_tokens: rank.kv,
            max_total_num_tokens: ranks.kv_capacity,
            max_running_requests: ranks.max_running,
            token_usage: rank.kv as f64 / ranks.kv_capacity as f64,
            gen_throughput,
            cache_hit_rate: rank.cached as f64 / rank.input.max(1) as f64,
            utilization: rank.running.len() as f64 / ranks.max_running as f64,
            total_prefill_uncached_tokens: rank.prefilled,
            total_prefill_busy_us: rank.prefill_busy.as_micros(),
            decode_moments: None,
        })
        .collect();
    for flight in ranks.flights().filter(|flight| !flight.running) {
        let load = &mut loads[flight.rank];
        load.num_total_tokens += u64::from(flight.input);
        if !flight.prefilled {
            load.num_waiting_uncached_tokens += u64::from(flight.uncached);
        }
    }
    loads
}

/// `frozen`: as measured when the faults began.
pub fn told(mut now: Vec<RankLoad>, frozen: &[RankLoad], faults: &Faults) -> Vec<RankLoad> {
    for (load, frozen) in now.iter_mut().zip(frozen) {
        let timestamp = load.timestamp;
        if faults.loads_frozen {
            *load = RankLoad { timestamp, ..frozen.clone() };
        }
        if faults.timestamps_frozen {
            load.timestamp = frozen.timestamp;
        }
        if let Some(tokens) = faults.loads_tokens {
            (load.num_running_reqs, load.num_waiting_reqs) = (0, 0);
            load.num_used_tokens = tokens;
            load.num_total_tokens = tokens;
            load.num_active_tokens = tokens;
        }
    }
    if let Some(claimed) = faults.dp_size {
        let last = now.last().cloned();
        now.truncate(claimed.into());
        now.extend(
            (now.len()..claimed.into())
                .filter_map(|dp_rank| Some(RankLoad { dp_rank, ..last.clone()? })),
        );
    }
    now
}

/// The body of `/v1/loads`; none where it is unknown.
pub fn v1(loads: &[RankLoad], shape: Shape, now: &str) -> Option<String> {
    let head = |name: &str, content: Value| {
        json!({ "timestamp": now, "version": concat!("mock-", env!("CARGO_PKG_VERSION")),
            "accelerator": null, "num_accelerators": loads.len(), name: content })
        .to_string()
    };
    let every_second = |spoil: &dyn Fn(&mut Value)| {
        let mut loads = json!(loads);
        for load in loads.as_array_mut().into_iter().flatten().step_by(2) {
            spoil(load);
        }
        head("loads", loads)
    };
    Some(match shape {
        Shape::V1 => head("loads", json!(loads)),
        Shape::Aggregate => {
            let sum = |of: fn(&RankLoad) -> u64| loads.iter().map(of).sum::<u64>();
            let running = sum(|load| load.num_running_reqs as u64);
            let waiting = sum(|load| load.num_waiting_reqs as u64);
            let content = json!({ "total_running_reqs": running, "total_waiting_reqs": waiting,
                "total_reqs": running + waiting,
                "total_tokens": sum(|load| load.num_total_tokens) });
            head("aggregate", content)
        }
        Shape::List => return None,
        Shape::Html => "<!doctype html><title>502 Bad Gateway</title>".into(),
        Shape::Truncated => {
            let mut body = head("loads", json!(loads));
            body.truncate(body.len() / 2);
            body
        }
        Shape::WrongTypes => every_second(&|load| {
            load["num_total_tokens"] = load["num_total_tokens"].to_string().into();
        }),
        Shape::MinusOne => every_second(&|load| {
            for (name, value) in load.as_object_mut().into_iter().flatten() {
                if name.starts_with("num_") {
                    *value = (-1).into();
                }
            }
        }),
    })
}

/// The body of `/get_load`.
pub fn list(loads: &[RankLoad]) -> String {
    let entry = |load: &RankLoad| {
        json!({ "dp_rank": load.dp_rank,
            "num_reqs": load.num_running_reqs + load.num_waiting_reqs,
            "num_waiting_reqs": load.num_waiting_reqs, "num_tokens": load.num_total_tokens })
    };
    Value::from_iter(loads.iter().map(entry)).to_string()
}
