//! Engines as workers of a pool, a worker for each DP rank, and the monitor that asks them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Result};
use evenkeel::{
    InFlight, Pool, PoolConfig, Request, Tuning, Vetoes, WorkerConfig, WorkerId, WorkerStats,
};
use evenkeel_monitor::{CertificateDer, Engine, EngineStatus, Monitor, Options, tls, worker_label};
use hyper::header::HeaderValue;
use tokio::sync::Mutex;

use super::options::{EngineSpec, RouteOptions};
use super::upstream::Upstream;

/// Workers at a time, draining ones among them.
const CAPACITY: u32 = 8192;

/// One rank of an engine.
pub struct Worker {
    pub upstream: Arc<Upstream>,
    pub rank: u32,
    pub dp_size: u32,
    /// The rank, where there are several.
    pub rank_header: Option<HeaderValue>,
}

/// A request on its worker, counted until this is dropped.
pub struct Chosen {
    pub worker: Arc<Worker>,
    pub in_flight: InFlight<'static>,
}

pub struct Cluster {
    pub pool: Pool,
    /// Of active workers and of those that drain.
    workers: RwLock<HashMap<WorkerId, Arc<Worker>>>,
    engines: Mutex<HashMap<String, Known>>,
    monitor: Option<Monitor>,
    roots: Vec<CertificateDer<'static>>,
}

struct Known {
    upstream: Arc<Upstream>,
    workers: Vec<WorkerId>,
    /// For polls.
    bearer: Option<String>,
}

impl Cluster {
    /// Without engines.
    pub fn new(options: &RouteOptions) -> Result<Self> {
        let pool = Pool::new(PoolConfig { capacity: CAPACITY, ..PoolConfig::default() })?;
        let roots = options.roots()?;
        let monitor = match options.no_polls {
            true => None,
            false => Some(Monitor::new(
                &pool,
                Options {
                    interval: options.poll_interval,
                    timeout: options.poll_timeout,
                    refusals: options.poll_refusals,
                    roots: roots.clone(),
                },
            )?),
        };
        Ok(Self { pool, workers: RwLock::default(), engines: Mutex::default(), monitor, roots })
    }

    /// Makes these the engines. Those that stay keep their requests, counts and connections; those
    /// that go get no new requests.
    pub async fn set(
        &self,
        specs: &[EngineSpec],
        tuning: Tuning,
        options: &RouteOptions,
    ) -> Result<()> {
        let mut engines = self.engines.lock().await;
        let labels: Vec<Vec<String>> = specs
            .iter()
            .map(|spec| (0..spec.dp_size).map(|rank| worker_label(&spec.name, rank)).collect())
            .collect();
        let stats = self.pool.stats()?.into_iter();
        let silent = stats.filter(|worker| worker.vetoes.contains(Vetoes::HEALTH));
        let silent: HashSet<WorkerId> = silent.map(|worker| worker.worker).collect();
        let is_silent = |name: &String| {
            engines
                .get(name)
                .is_some_and(|known| known.workers.iter().any(|id| silent.contains(id)))
        };
        let members: Vec<_> = specs
            .iter()
            .zip(&labels)
            .flat_map(|(spec, labels)| {
                // A rank more of an engine that answers nothing waits for its answer, too.
                let vetoes = if is_silent(&spec.name) { Vetoes::HEALTH } else { Vetoes::NONE };
                labels.iter().map(move |label| {
                    let config = WorkerConfig {
                        weight: spec.weight,
                        max_in_flight: spec.max_in_flight,
                        vetoes,
                        label,
                        ..WorkerConfig::default()
                    };
                    (evenkeel::key(label), Some(config))
                })
            })
            .collect();
        let bearer = options.poll_key()?;
        let upstreams = self.upstreams(specs, &engines, options)?;
        let now = self.change(specs, &labels, &members, upstreams, &bearer)?;
        self.pool.tune(tuning)?;
        let before = std::mem::replace(&mut *engines, now);

        let Some(monitor) = &self.monitor else { return Ok(()) };
        for (name, old) in before {
            let stays = |new: &Known| {
                new.workers == old.workers
                    && new.bearer == old.bearer
                    && new.upstream.is_https() == old.upstream.is_https()
            };
            if !engines.get(&name).is_some_and(stays) {
                monitor.remove(&name).await;
            }
        }
        let polled: Vec<String> = monitor.engines().into_iter().map(|engine| engine.name).collect();
        for spec in specs.iter().filter(|spec| !polled.contains(&spec.name)) {
            monitor.add(Engine {
                url: spec.url.clone(),
                workers: engines[&spec.name].workers.clone(),
                bearer: bearer.clone(),
            })?;
        }
        Ok(())
    }

    /// Of each engine, with the connections that it has.
    fn upstreams(
        &self,
        specs: &[EngineSpec],
        engines: &HashMap<String, Known>,
        options: &RouteOptions,
    ) -> Result<Vec<Arc<Upstream>>> {
        let tls = match specs.iter().any(EngineSpec::is_https) {
            true => Some(tls::connector(&self.roots)?),
            false => None,
        };
        let upstream = |spec: &EngineSpec| match engines.get(&spec.name) {
            Some(known) if known.upstream.is_of(spec) => known.upstream.clone(),
            _ => Arc::new(Upstream::new(spec, tls.as_ref(), options)),
        };
        Ok(specs.iter().map(upstream).collect())
    }

    /// Whoever is dispatched to a new worker waits for its entry, which is made under one lock with it.
    fn change(
        &self,
        specs: &[EngineSpec],
        labels: &[Vec<String>],
        members: &[(u64, Option<WorkerConfig<'_>>)],
        upstreams: Vec<Arc<Upstream>>,
        bearer: &Option<String>,
    ) -> Result<HashMap<String, Known>> {
        let mut workers = self.workers.write().unwrap_or_else(PoisonError::into_inner);
        self.pool.set_members(members).context("the engines")?;
        let mut now = HashMap::new();
        for ((spec, labels), upstream) in specs.iter().zip(labels).zip(upstreams) {
            let mut ids = Vec::new();
            for (rank, label) in (0..).zip(labels) {
                let id = self.pool.find(evenkeel::key(label))?;
                let worker = Worker {
                    upstream: upstream.clone(),
                    rank,
                    dp_size: spec.dp_size,
                    rank_header: (spec.dp_size > 1).then(|| rank.into()),
                };
                workers.insert(id, Arc::new(worker));
                ids.push(id);
            }
            now.insert(spec.name.clone(), Known { upstream, workers: ids, bearer: bearer.clone() });
        }
        let alive: Vec<WorkerId> = self.pool.stats()?.iter().map(|stats| stats.worker).collect();
        workers.retain(|id, _| alive.contains(id));
        Ok(now)
    }

    /// Chooses a worker, and counts the request on it.
    pub fn dispatch(&self, request: &Request<'_>) -> Result<Chosen, evenkeel::Error> {
        let ticket = self.pool.dispatch(request)?;
        let id = ticket.worker();
        let in_flight = self.pool.guard_owned(ticket);
        let worker = {
            let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
            workers.get(&id).cloned()
        };
        let worker = worker.ok_or(evenkeel::Error::Unknown { worker: id })?;
        Ok(Chosen { worker, in_flight })
    }

    /// The workers of all ranks of this one's engine.
    pub fn exclude_engine(&self, of: &Worker, excluded: &mut Vec<WorkerId>) {
        let workers = self.workers.read().unwrap_or_else(PoisonError::into_inner);
        let same = workers.iter().filter(|(_, worker)| worker.upstream.name == of.upstream.name);
        excluded.extend(same.map(|(id, _)| *id));
    }

    pub fn stats(&self) -> Result<Vec<WorkerStats>, evenkeel::Error> {
        self.pool.stats()
    }

    pub fn engines(&self) -> Vec<EngineStatus> {
        self.monitor.as_ref().map(Monitor::engines).unwrap_or_default()
    }
}
