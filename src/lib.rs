//! Which worker takes this request? A lock-free pool of workers that answers for a router, exactly
//! where it promises to be exact, from every thread.
//!
//! ```
//! use evenkeel::{Load, Pool, PoolConfig, Request, WorkerConfig};
//!
//! # fn main() -> Result<(), evenkeel::Error> {
//! let pool = Pool::new(PoolConfig::default())?;
//! for label in ["10.0.0.1:30000@0", "10.0.0.1:30000@1"] {
//!     pool.add(evenkeel::key(label), WorkerConfig { label, ..Default::default() })?;
//! }
//! let ticket = pool.dispatch(&Request { tokens: 1200, ..Default::default() })?;
//! let in_flight = pool.guard_owned(ticket); // moves into the response body
//! println!("send it to {}", in_flight.worker());
//! drop(in_flight); // the end of the response, however it ends
//! # Ok(()) }
//! ```
//!
//! A [`Pool`] holds the workers, their configuration and what engines reported of them. A [`Pool`]
//! or, faster and repeatable, a [`Picker`] chooses by a [`Policy`]: `pick` is advice, `dispatch`
//! chooses and counts in one step and returns a [`Ticket`], to be finished by hand or by an
//! [`InFlight`] guard. A [`Poll`] brings loads and credits what began and ended while it was under way.
//! The [`guide`] puts them together to a router.
//!
//! # What you may observe
//! * Two concurrent picks may return the same worker; a dispatch never unbalances so.
//! * A choice may compare a count that a finish has just lowered, or a report that was replaced
//!   meanwhile, but never half of one report and half of another in a dispatch.
//! * A pick may return a worker that is removed meanwhile. A dispatch that starts after `remove`
//!   returned never ends up on it, and its requests never move another worker's count.
//! * Statistics are read while traffic runs: fields of one worker fit together only at rest.
//!
//! Each race that is meant has its sentence, its bound and its model in `docs/benign-races.md`.
//!
//! # Progress
//! * *Wait-free*: ends in a bounded number of its own steps, whatever others do. `pick`, `tune`.
//! * *Lock-free*: repeats only if another thread got something done. `dispatch`, `begin`, `finish`,
//!   `finish_worker`, `grow`, `retarget`.
//! * *May block*: waits for another thread that changes the pool, at most one second, then fails
//!   with [`Error::Busy`]. All other methods of [`Pool`], and [`Poll`]'s.
//!
//! None of the first two waits for the last, and none of them allocates; nor does publishing.
//!
//! # Limits
//! * A worker has at most 1,048,575 requests and 4,294,967,295 tokens in flight.
//! * If a thread stops in the middle of a dispatch while its worker's slot is reused exactly 2,048
//!   times (or a multiple), the successor is counted for an instant. If it stops so in the finish of
//!   a ticket whose worker was abandoned, the successor loses a request.
//! * After a fork both processes have a pool of their own; the child's random streams are new, other
//!   than those of pickers with a seed.
//! * Not for signal handlers: the writers' methods wait for a lock that the interrupted thread may hold.
//! * A choice among more than 1,024 workers takes up to 16 KiB of stack, else 1 KiB.
#![deny(missing_docs, unsafe_code, clippy::disallowed_types)]

#[allow(unsafe_code, clippy::disallowed_types)]
mod sync;
mod word;
#[allow(unsafe_code)]
mod region;
mod id;
mod error;
mod worker;
mod snapshot;
mod policy;
mod ticket;
mod load;
mod stats;
mod writer;
mod pool;
mod poll;
mod in_flight;
mod picker;
#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
#[allow(unsafe_code)]
mod ffi;

pub use error::{Error, Invalid};
pub use id::{WorkerId, key};
pub use in_flight::InFlight;
pub use load::Load;
pub use picker::Picker;
pub use policy::{METRIC_VARIABLE, Policy, Request, Tuning};
pub use poll::Poll;
pub use pool::{Pool, PoolConfig};
pub use stats::{LoadStats, Totals, WorkerState, WorkerStats};
#[cfg(evenkeel_count_retries)]
#[doc(hidden)]
pub use sync::RETRIES;
pub use ticket::{Stale, Ticket};
pub use word::MAX_IN_FLIGHT;
pub use worker::{Label, MAX_LABEL, MAX_WEIGHT, Vetoes, WorkerConfig, WorkerUpdate};

#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

/// The README's Rust code compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
