//! A router before LLM engines: an HTTP/1.1 proxy whose every request is counted on one DP rank, from
//! the choice to the last byte or to the client's leaving.
//!
//! ```text
//! options ──▶ cluster (engines as workers, monitor)
//! client ──▶ downstream ──▶ proxy, pair ──▶ upstream, body ──▶ engine
//! ```

mod options;
mod json;
mod upstream;
mod body;
mod cluster;
mod pair;
mod proxy;
mod downstream;
mod status;

use std::io::{self, Write};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hyper_util::server::graceful::GracefulShutdown;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use self::cluster::Cluster;
use self::options::Log;
pub use self::options::RouteOptions;
use crate::net::{listen, raise_descriptor_limit};

/// Of the monitor's histogram.
const POLL_SECONDS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
/// Counters of engines that left are told for so long.
const LONGEST_IDLE: Duration = Duration::from_secs(600);

struct Router {
    options: RouteOptions,
    mode: Mode,
    monitor_metrics: PrometheusHandle,
    started: Instant,
}

enum Mode {
    Single(Box<Cluster>),
    Pairs { prefill: Box<Cluster>, decode: Box<Cluster> },
}

pub fn run(options: RouteOptions) -> Result<ExitCode> {
    let flags = options;
    let options = flags.with_file()?;
    log(&options);
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.threads)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // The accepting task is one of the runtime's like all others.
        tokio::spawn(serve(flags, options)).await?
    })
}

fn log(options: &RouteOptions) {
    // Where the log can't be written, nothing can be said of it either; it ends nothing.
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_writer(io::stderr)
        .with_max_level(options.log_level);
    match options.log {
        Log::Text => log.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).init(),
        Log::Json => log.json().init(),
    }
}

async fn serve(flags: RouteOptions, options: RouteOptions) -> Result<ExitCode> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let monitor_metrics = PrometheusBuilder::new()
        .set_buckets(&POLL_SECONDS)?
        .idle_timeout(MetricKindMask::COUNTER | MetricKindMask::HISTOGRAM, Some(LONGEST_IDLE))
        .install_recorder()?;
    let cluster = || Cluster::new(&options).map(Box::new);
    let mode = match options.engine.is_empty() {
        false => Mode::Single(cluster()?),
        true => Mode::Pairs { prefill: cluster()?, decode: cluster()? },
    };
    let router = Arc::new(Router {
        options: options.clone(),
        mode,
        monitor_metrics,
        started: Instant::now(),
    });
    router.set(&options).await?;
    tokio::spawn(keep_up(router.clone()));
    let listener =
        listen(options.listen).with_context(|| format!("cannot listen on {}", options.listen))?;
    writeln!(io::stdout(), "http://{}", listener.local_addr()?)?;
    tracing::info!(listen = %listener.local_addr()?, "ready");

    let graceful = GracefulShutdown::new();
    let mut refused = false;
    let mut current = options.clone();
    loop {
        select! {
            () = any(&mut terminate) => break,
            _ = hangup.recv() => match router.reload(&flags, &current).await {
                Ok(read) => {
                    current = read;
                    tracing::info!("the configuration was read again");
                }
                Err(error) => tracing::error!("the configuration stays as it was: {error:#}"),
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    refused = false;
                    tokio::spawn(downstream::converse(router.clone(), stream, peer, graceful.watcher()));
                }
                // No descriptor is left, or the client is gone: others may be served later.
                Err(error) => {
                    if !std::mem::replace(&mut refused, true) {
                        tracing::warn!("a connection can't be accepted: {error}");
                    }
                    sleep(Duration::from_millis(10)).await;
                }
            },
        }
    }
    drop(listener);
    tracing::info!(connections = graceful.count(), "draining");
    let drained = select! {
        () = graceful.shutdown() => true,
        () = sleep(options.drain_timeout) => false,
        () = any(&mut terminate) => false,
    };
    if drained {
        tracing::info!("drained");
        return Ok(ExitCode::SUCCESS);
    }
    tracing::warn!("ended before all responses had");
    process::exit(1);
}

/// Samples of histograms are held until somebody sums them up.
async fn keep_up(router: Arc<Router>) {
    loop {
        sleep(Duration::from_secs(5)).await;
        router.monitor_metrics.run_upkeep();
    }
}

async fn any(signals: &mut [Signal; 2]) {
    let [one, other] = signals;
    select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

impl Router {
    fn clusters(&self) -> impl Iterator<Item = (&'static str, &Cluster)> {
        let (one, other) = match &self.mode {
            Mode::Single(cluster) => (("engines", &**cluster), None),
            Mode::Pairs { prefill, decode } => {
                (("prefill", &**prefill), Some(("decode", &**decode)))
            }
        };
        std::iter::once(one).chain(other)
    }

    async fn set(&self, options: &RouteOptions) -> Result<()> {
        match &self.mode {
            Mode::Single(cluster) => cluster.set(&options.engine, options.tuning()?, options).await,
            Mode::Pairs { prefill, decode } => {
                let (one, other) = (options.prefill_tuning()?, options.decode_tuning()?);
                prefill.set(&options.prefill, one, options).await?;
                decode.set(&options.decode, other, options).await
            }
        }
    }

    /// What holds then; if anything is wrong, what held before does.
    async fn reload(&self, flags: &RouteOptions, current: &RouteOptions) -> Result<RouteOptions> {
        let options = flags.with_file()?;
        if options.engine.is_empty() != self.options.engine.is_empty() {
            bail!("engines and prefill-decode pairs change into each other only by a new start");
        }
        if options.lasting() != self.options.lasting() {
            bail!("only engines, policies and what these go by change without a new start");
        }
        if let Err(error) = self.set(&options).await {
            // Of a pair one side may have changed already.
            let restored = self.set(current).await;
            restored.with_context(|| format!("{error:#}; and what was before is not all back"))?;
            return Err(error);
        }
        Ok(options)
    }
}
