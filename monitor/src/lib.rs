//! Polls LLM engines for their loads and health, for a pool of [`evenkeel`].
//!
//! ```no_run
//! use evenkeel::{Pool, PoolConfig, WorkerConfig};
//! use evenkeel_monitor::{Engine, Monitor, Options, host_port, worker_label};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Pool::new(PoolConfig::default())?;
//! let url = "http://10.0.0.1:30000".parse()?;
//! let name = host_port(&url)?;
//! let mut workers = Vec::new();
//! for rank in 0..8 {
//!     let label = worker_label(&name, rank);
//!     let config = WorkerConfig { label: &label, ..Default::default() };
//!     workers.push(pool.add(evenkeel::key(&label), config)?);
//! }
//! let monitor = Monitor::new(&pool, Options::default())?;
//! monitor.add(Engine { url, workers, bearer: None })?;
//! // … dispatch from the pool, from any thread …
//! monitor.remove(&name).await;
//! monitor.stop().await;
//! # Ok(()) }
//! ```
//!
//! # A poll
//! One poll asks one engine for all of its ranks: `GET /v1/loads?include=core`, and `/get_load` if the
//! engine answers 404 to that. Which of the two it knows is remembered until a poll fails, for 60
//! polls at most. Each engine has a task, a clock and a connection of its own, so that one that is slow,
//! hangs or lies delays no other. The first poll is at once, the second after a random part of
//! the interval, the others at that clock's ticks; ticks that go by while an answer is awaited are left out.
//!
//! The pool's [`Poll`](evenkeel::Poll) begins when the question is sent. So what the pool counts while
//! the answer is under way is credited on top of it, a late answer does not replace one that was asked
//! for later, and a rank whose `timestamp` is the one it had last time is nothing new.
//! Ranks that the answer leaves out have no load.
//!
//! [`parse`] says which numbers are read in the three shapes of answers. An entry that is of no use
//! is rejected by itself, with a line of log; the load of a whole engine counts only if the engine has one rank, as
//! no part of it is known to be any rank's.
//!
//! # Failure
//! A poll fails if there is no connection or no complete answer in time, a status other than 200 (redirects
//! are not followed), a body that is compressed, larger than [`MAX_BODY`] or no report, or headers beyond
//! 64 or 16 KiB. The engine's workers have no load then: none, and not a number. After
//! [`Options::refusals`] failures in a row they get [`Vetoes::HEALTH`](evenkeel::Vetoes::HEALTH). Each
//! success lifts it, also where the host has set it; so a worker that is added with it gets no request before
//! its engine has answered. Other vetoes are not touched. A poll that failed for want of something of this
//! process, a descriptor or the pool's lock, is no refusal: it counts towards no veto.
//!
//! A metrics recorder or a log subscriber that panics ends the polls of the engine that it was told of; the
//! panic hook says so, and [`EngineStatus::last_success_age`] grows from then on.
//!
//! # Metrics
//! By the [`metrics`] facade, each with the label `engine` = `host:port`:
//!
//! | name | | |
//! |---|---|---|
//! | `evenkeel_monitor_polls_total` | counter | polls, by `outcome`: `ok`, or why they failed: `connect`, `timeout`, `http`, `status`, `encoding`, `too_large`, `body`, `pool` |
//! | `evenkeel_monitor_poll_seconds` | histogram | how long polls took, failed ones too |
//! | `evenkeel_monitor_rejected_entries_total` | counter | entries of reports that were rejected |
//! | `evenkeel_monitor_vetoed` | gauge | 1 while the engine's workers have the health veto of the monitor, else 0 |
//! | `evenkeel_monitor_last_success_timestamp_seconds` | gauge | Unix time of the last poll that succeeded |
//!
//! Logs go to [`tracing`]: the first failure in a row, a veto, the first rejections in a row at level warn, a recovery at
//! info, what repeats at debug. Neither has the bearer key, and what an engine sent is told in one line, control
//! characters escaped.
//!
//! # Cost
//! 200 engines of 8 ranks, polled once a second, take about 5 % of one core of a virtual machine
//! (`ci/monitor.sh` measures it). A poll allocates, in proportion to the answer. Polls run on
//! the runtime's threads and take the pool's writer lock, for microseconds, to begin, to publish and to veto; should
//! others keep the lock, each waits as the pool's methods do, at most one second. No choice ever
//! waits for a poll.
#![deny(missing_docs, unsafe_code)]

mod report;
pub mod tls;
mod client;
mod engine;
mod monitor;

pub use client::MAX_BODY;
pub use http::Uri;
pub use monitor::{Engine, EngineStatus, Error, Monitor, Options, host_port, port, worker_label};
pub use report::{MAX_DEPTH, MAX_RANKS, MAX_TOKENS, ParseError, RankLoad, Rejected, Report, parse};
pub use tokio_rustls::rustls::pki_types::CertificateDer;

const POLLS: &str = "evenkeel_monitor_polls_total";
const POLL_SECONDS: &str = "evenkeel_monitor_poll_seconds";
const REJECTED: &str = "evenkeel_monitor_rejected_entries_total";
const VETOED: &str = "evenkeel_monitor_vetoed";
const LAST_SUCCESS: &str = "evenkeel_monitor_last_success_timestamp_seconds";

fn describe_metrics() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_counter!(POLLS, Unit::Count, "Polls of an engine, by outcome");
    describe_histogram!(POLL_SECONDS, Unit::Seconds, "How long a poll of an engine took");
    describe_counter!(REJECTED, Unit::Count, "Entries of an engine's reports that were rejected");
    describe_gauge!(VETOED, "Whether an engine's workers have the monitor's health veto");
    describe_gauge!(
        LAST_SUCCESS,
        Unit::Seconds,
        "Unix time of an engine's last poll that succeeded"
    );
}
