//! Loads: what engines report, and which report counts. All here is under the writer lock.

use crate::id::WorkerId;
use crate::region::{Region, record};
use crate::snapshot::NO_LOAD;
use crate::sync::{AtomicU64, Ordering};

/// What an engine reported of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// The worker.
    pub worker: WorkerId,
    /// Tokens that it holds (SGLang's `num_total_tokens`). `u64::MAX` is no load: the entry is
    /// rejected, and the worker has none.
    pub tokens: u64,
    /// Running requests, if known; for statistics.
    pub running: Option<u32>,
    /// Waiting requests, if known; for statistics.
    pub waiting: Option<u32>,
    /// When the engine says that it sampled, in any unit: compared for equality alone. The one
    /// that the last report had means "nothing new". 0 counts as none.
    pub timestamp: Option<u64>,
}

/// A poll's place in the order of all polls, and its time.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) number: u64,
    pub(crate) at: u64,
}

/// Stores a report of an active worker, unless its poll has reported the worker already or a later
/// poll has. `mark` is the worker's tokens in flight when the poll began. Returns whether the
/// report is accepted.
pub(crate) fn store(region: &Region, load: &Load, mark: u32, begun: Begun) -> bool {
    let record = region.record(load.worker.slot());
    let get = |index: usize| record[index].load(Ordering::Relaxed);
    let put = |index: usize, value: u64| record[index].store(value, Ordering::Relaxed);
    if load.tokens == NO_LOAD || get(record::LOAD_BEGUN) >= begun.number {
        return false;
    }
    put(record::LOAD_BEGUN, begun.number);
    let timestamp = load.timestamp.unwrap_or(0);
    let nothing_new = timestamp != 0 && get(record::LOAD_TIMESTAMP) == timestamp;
    if nothing_new && get(record::LOAD_TOKENS) != NO_LOAD {
        return true;
    }
    // None while it changes, so that a writer lost in between leaves none and not a mixture.
    forget(record);
    put(record::LOAD_REQUESTS, pack_requests(load.running, load.waiting));
    put(record::LOAD_TIMESTAMP, timestamp);
    put(record::LOAD_BEGUN_AT, begun.at);
    put(record::LOAD_MARK, mark.into());
    put(record::LOAD_TOKENS, load.tokens);
    true
}

/// The poll was answered without the worker of this slot: it has no load, unless a later poll has
/// brought one.
pub(crate) fn store_absence(region: &Region, slot: usize, begun: Begun) {
    let record = region.record(slot);
    if record[record::LOAD_BEGUN].load(Ordering::Relaxed) < begun.number {
        record[record::LOAD_BEGUN].store(begun.number, Ordering::Relaxed);
        forget(record);
    }
}

/// The worker has no load.
pub(crate) fn forget(record: &[AtomicU64]) {
    record[record::LOAD_TOKENS].store(NO_LOAD, Ordering::Relaxed);
    record[record::LOAD_TIMESTAMP].store(0, Ordering::Relaxed);
}

/// `u32::MAX`: unknown.
fn pack_requests(running: Option<u32>, waiting: Option<u32>) -> u64 {
    u64::from(running.unwrap_or(u32::MAX)) << 32 | u64::from(waiting.unwrap_or(u32::MAX))
}

/// Running and waiting requests, as [`store`] packed them.
pub(crate) fn unpack_requests(packed: u64) -> (Option<u32>, Option<u32>) {
    let known = |requests: u32| (requests != u32::MAX).then_some(requests);
    (known((packed >> 32) as u32), known(packed as u32))
}
