//! What the router tells of itself.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel::{Vetoes, WorkerState};
use serde_json::{Value, json};

use super::Router;
use super::cluster::Cluster;

/// What has happened since the start.
pub struct Counters {
    pub requests: AtomicU64,
    pub retries: AtomicU64,
    pub saturated: AtomicU64,
    pub empty: AtomicU64,
    pub failed: AtomicU64,
    pub broken: AtomicU64,
    pub client_left: AtomicU64,
}

pub static COUNTERS: Counters = Counters {
    requests: AtomicU64::new(0),
    retries: AtomicU64::new(0),
    saturated: AtomicU64::new(0),
    empty: AtomicU64::new(0),
    failed: AtomicU64::new(0),
    broken: AtomicU64::new(0),
    client_left: AtomicU64::new(0),
};

pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    /// With their names and what they count.
    fn all(&self) -> [(&'static str, &'static str, u64); 7] {
        [
            ("requests", "Requests for engines", &self.requests),
            ("retries", "Tries of a request on another worker", &self.retries),
            ("saturated", "Requests refused because every worker was at its cap", &self.saturated),
            ("empty", "Requests refused because there was no worker", &self.empty),
            ("failed", "Requests that no engine began to answer", &self.failed),
            ("broken", "Responses that broke off", &self.broken),
            (
                "client_left",
                "Requests whose client left before their end, or sent no whole body",
                &self.client_left,
            ),
        ]
        .map(|(name, help, counter)| (name, help, counter.load(Ordering::Relaxed)))
    }
}

fn vetoes(vetoes: Vetoes) -> Vec<&'static str> {
    let all = [(Vetoes::HOST, "host"), (Vetoes::HEALTH, "health"), (Vetoes::OPERATOR, "operator")];
    all.into_iter().filter(|(veto, _)| vetoes.contains(*veto)).map(|(_, name)| name).collect()
}

fn state(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Active => "active",
        WorkerState::Draining => "draining",
    }
}

pub fn json(router: &Router) -> Result<Value, evenkeel::Error> {
    let mut pools = serde_json::Map::new();
    for (name, cluster) in router.clusters() {
        pools.insert(name.into(), pool(cluster)?);
    }
    let counters: serde_json::Map<_, _> =
        COUNTERS.all().into_iter().map(|(name, _, value)| (name.into(), value.into())).collect();
    Ok(json!({ "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": router.started.elapsed().as_secs(), "totals": counters, "pools": pools }))
}

fn pool(cluster: &Cluster) -> Result<Value, evenkeel::Error> {
    let workers: Vec<Value> = cluster
        .stats()?
        .iter()
        .map(|worker| {
            let load = worker.load.map(|load| {
                json!({ "tokens": load.tokens, "running": load.running, "waiting": load.waiting,
                    "age_ms": load.age_ms })
            });
            json!({ "label": &*worker.label, "state": state(worker.state),
                "vetoes": vetoes(worker.vetoes), "weight": worker.weight,
                "max_in_flight": worker.max_in_flight, "in_flight": worker.in_flight,
                "finished": worker.finished, "tokens": worker.tokens,
                "live_tokens": worker.live_tokens, "load": load })
        })
        .collect();
    let engines: Vec<Value> = cluster
        .engines()
        .into_iter()
        .map(|engine| {
            json!({ "name": engine.name, "failures": engine.failures, "vetoed": engine.vetoed,
                "last_failure": engine.last_failure,
                "last_success_age_ms": engine.last_success_age.map(|age| age.as_millis() as u64) })
        })
        .collect();
    let totals = cluster.pool.totals()?;
    Ok(json!({ "policy": cluster.pool.tuning().policy.name(), "in_flight": totals.in_flight,
        "finished": totals.finished, "draining": totals.draining, "anomalies": totals.anomalies,
        "workers": workers, "engines": engines }))
}

/// In Prometheus' text form, the monitor's among them.
pub fn prometheus(router: &Router) -> Result<String, evenkeel::Error> {
    let mut text = router.monitor_metrics.render();
    for (name, help, value) in COUNTERS.all() {
        family(&mut text, &format!("evenkeel_route_{name}_total"), "counter", help);
        let _ = writeln!(text, "evenkeel_route_{name}_total {value}");
    }
    let mut workers = Vec::new();
    for (pool, cluster) in router.clusters() {
        for worker in cluster.stats()? {
            // A label is a URL's host, a port and a rank: nothing in it needs an escape.
            let labels = format!("pool=\"{pool}\",worker=\"{}\"", &*worker.label);
            let labels = format!("{{{labels},state=\"{}\"}}", state(worker.state));
            workers.push((labels, worker));
        }
    }
    let mut each = |name: &str, kind, help, value: &dyn Fn(&evenkeel::WorkerStats) -> u64| {
        family(&mut text, name, kind, help);
        for (labels, worker) in &workers {
            let _ = writeln!(text, "{name}{labels} {}", value(worker));
        }
    };
    each("evenkeel_worker_in_flight", "gauge", "Requests on the worker", &|worker| {
        worker.in_flight.into()
    });
    each("evenkeel_worker_live_tokens", "gauge", "Reported tokens, with credit", &|worker| {
        worker.live_tokens
    });
    each("evenkeel_worker_vetoed", "gauge", "Whether it gets no new requests", &|worker| {
        u64::from(worker.vetoes != Vetoes::NONE)
    });
    each("evenkeel_worker_finished_total", "counter", "Requests that have ended", &|worker| {
        worker.finished
    });
    family(&mut text, "evenkeel_pool_anomalies_total", "counter", "Ends that fitted no request");
    for (pool, cluster) in router.clusters() {
        let anomalies = cluster.pool.totals()?.anomalies;
        let _ = writeln!(text, "evenkeel_pool_anomalies_total{{pool=\"{pool}\"}} {anomalies}");
    }
    Ok(text)
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}
