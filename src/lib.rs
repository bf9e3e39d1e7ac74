//! docs
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

pub use error::{Error, Invalid};
pub use id::{WorkerId, key};
pub use in_flight::InFlight;
pub use load::Load;
pub use picker::Picker;
pub use policy::{METRIC_VARIABLE, Policy, Request, Tuning};
pub use poll::Poll;
pub use pool::{Pool, PoolConfig};
pub use stats::{LoadStats, Totals, WorkerState, WorkerStats};
pub use ticket::{Stale, Ticket};
pub use word::MAX_IN_FLIGHT;
pub use worker::{Label, MAX_LABEL, MAX_WEIGHT, Vetoes, WorkerConfig, WorkerUpdate};
