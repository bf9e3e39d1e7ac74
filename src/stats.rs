//! What a pool can be asked about its workers.

use crate::id::WorkerId;
use crate::load::unpack_requests;
use crate::region::{Region, header, record};
use crate::snapshot::{NO_LOAD, live_tokens};
use crate::sync::{self, Ordering};
use crate::worker::{Label, Slot, Vetoes, read_label};
use std::num::NonZeroU64;

/// Whether a worker takes new requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum WorkerState {
    /// It does, if it is eligible.
    Active = 1,
    /// It was removed; its last requests still run.
    Draining = 2,
}

/// One worker as it is now. Fields are read one after the other while traffic runs; at rest they
/// fit together: requests dispatched = finished + in_flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerStats {
    /// Its id.
    pub worker: WorkerId,
    /// The caller's name for it.
    pub key: u64,
    /// Active or draining.
    pub state: WorkerState,
    /// Its vetoes.
    pub vetoes: Vetoes,
    /// Its weight.
    pub weight: u32,
    /// Its cap; 0: none.
    pub max_in_flight: u32,
    /// Requests in flight.
    pub in_flight: u32,
    /// Requests that ended on it, since it was added.
    pub finished: u64,
    /// Tokens in flight.
    pub tokens: u32,
    /// Polled tokens plus credit for what began and ended here since the poll was sent; without a
    /// load the tokens in flight.
    pub live_tokens: u64,
    /// Its load, if it has one.
    pub load: Option<LoadStats>,
    /// Its label.
    pub label: Label,
}

/// A worker's load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadStats {
    /// See [`Load::tokens`](crate::Load::tokens).
    pub tokens: u64,
    /// See [`Load::running`](crate::Load::running).
    pub running: Option<u32>,
    /// See [`Load::waiting`](crate::Load::waiting).
    pub waiting: Option<u32>,
    /// See [`Load::timestamp`](crate::Load::timestamp).
    pub timestamp: Option<u64>,
    /// Milliseconds since the poll began that brought it.
    pub age_ms: u64,
}

/// Sums over a pool. `finished`, `abandoned`, `saturated`, `anomalies`, `rejected_loads` and
/// `version` never decrease over the pool's life.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Active workers.
    pub workers: u32,
    /// Draining workers.
    pub draining: u32,
    /// Requests in flight, those on draining workers among them.
    pub in_flight: u64,
    /// Requests that ended.
    pub finished: u64,
    /// Requests dropped by [`Pool::abandon`](crate::Pool::abandon).
    pub abandoned: u64,
    /// Dispatches refused because every worker was at its cap.
    pub saturated: u64,
    /// Ends, grows and retargets of what was not in flight, and ends with other tokens than were.
    pub anomalies: u64,
    /// Entries of load reports that were rejected.
    pub rejected_loads: u64,
    /// Views published: one a change of members, one a report.
    pub version: u64,
}

/// The worker of this slot; none if the slot is vacant. Under the writer lock. Loads expire after
/// `load_max_age` nanoseconds; 0: never.
pub(crate) fn of_slot(region: &Region, slot: usize, load_max_age: u64) -> Option<WorkerStats> {
    let line = Slot::of(region, slot)?;
    let word = line.word();
    if word.is_vacant() {
        return None;
    }
    let record = region.record(slot);
    let get = |index: usize| record[index].load(Ordering::Relaxed);
    let age = sync::now().saturating_sub(get(record::LOAD_BEGUN_AT));
    let tokens = get(record::LOAD_TOKENS);
    let expired = load_max_age > 0 && age >= load_max_age;
    let load = (tokens != NO_LOAD && !expired).then(|| {
        let (running, waiting) = unpack_requests(get(record::LOAD_REQUESTS));
        let timestamp = NonZeroU64::new(get(record::LOAD_TIMESTAMP)).map(NonZeroU64::get);
        LoadStats { tokens, running, waiting, timestamp, age_ms: age / 1_000_000 }
    });
    let polled = load.map_or(NO_LOAD, |load| load.tokens);
    let generation = line.generation();
    let config = line.config();
    Some(WorkerStats {
        worker: WorkerId::new(slot, generation),
        key: region.keys()[slot].load(Ordering::Relaxed),
        state: if word.is_closed() { WorkerState::Draining } else { WorkerState::Active },
        vetoes: config.vetoes(),
        weight: config.weight(),
        max_in_flight: config.max_in_flight(),
        in_flight: word.in_flight(),
        finished: line.finished(generation) - get(record::FINISHED_BASE),
        tokens: word.tokens(),
        live_tokens: live_tokens(polled, get(record::LOAD_MARK), word),
        load,
        label: read_label(record),
    })
}

/// Sums over these slots. Under the writer lock.
pub(crate) fn totals<'a>(
    region: &Region,
    slots: impl Iterator<Item = (usize, Slot<'a>)>,
) -> Totals {
    let of = |index: usize| region.header(index).load(Ordering::Relaxed);
    let mut totals = Totals {
        abandoned: of(header::ABANDONED),
        saturated: of(header::SATURATED),
        anomalies: of(header::ANOMALIES),
        rejected_loads: of(header::REJECTED),
        version: of(header::VERSION),
        ..Totals::default()
    };
    for (_, line) in slots {
        let word = line.word();
        totals.workers += u32::from(!word.is_closed());
        totals.draining += u32::from(word.is_closed() && !word.is_vacant());
        totals.in_flight += u64::from(word.in_flight());
        totals.finished += line.finished_by_all();
    }
    totals
}
