//! docs
#![deny(missing_docs)]

mod sync;
mod word;
mod region;
mod worker;
mod snapshot;
mod policy;
mod ticket;
mod writer;
mod pool;
mod poll;
mod picker;
mod in_flight;
mod error;

pub use error::{Error, Invalid, Stale};
pub use in_flight::InFlight;
pub use picker::Picker;
pub use policy::{METRIC_VARIABLE, Policy, Request, Tuning};
pub use poll::Poll;
pub use pool::{Load, LoadStats, Pool, PoolConfig, Totals, WorkerState, WorkerStats};
pub use ticket::Ticket;
pub use word::MAX_IN_FLIGHT;
pub use worker::{Label, MAX_LABEL, MAX_WEIGHT, Vetoes, WorkerConfig, WorkerId, WorkerUpdate, key};
