//! The structs, numbers and objects that the header shows.

use super::growing::{Growing, growing};
use crate::picker::Picker;
use crate::policy::Policy;
use crate::poll::Poll;
use crate::pool::Pool;
use crate::stats::WorkerState;
use std::ffi::c_char;
use std::ptr;

/// cbindgen:ignore
pub(super) const EK_ALL: usize = usize::MAX;

/// The number of the ABI that this header is of. Libraries of other numbers have other contracts;
/// the shared library's SONAME ends with it. See ek_abi_version.
pub const EK_ABI_VERSION: u32 = 0;

/// The workers a router chooses from. Any thread, concurrently.
pub struct ek_pool(pub(super) Pool);

/// Chooses for one thread at a time, with its own random generator.
pub struct ek_picker(pub(super) Picker);

/// A question to an engine about a fixed set of workers, asked again and again. One thread at a
/// time.
pub struct ek_poll(pub(super) Poll);

/// Names one worker of one pool for all time; 0 is never a worker. See ek_worker_slot.
pub type ek_worker_id = u64;

/// A request in flight, from dispatch or begin to finish. Keep one object a request: it ends once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ek_ticket {
    /// The worker that the request counts on. 0: ended or never begun.
    pub worker: ek_worker_id,
    /// The library's own. See ek_ticket_tokens.
    pub opaque: u64,
}

/// What an engine reported of one worker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ek_load {
    /// The worker.
    pub worker: ek_worker_id,
    /// Tokens that it holds (SGLang's num_total_tokens). UINT64_MAX: none; the entry is rejected.
    pub tokens: u64,
    /// Running requests, for statistics. UINT32_MAX: unknown.
    pub running: u32,
    /// Waiting requests, for statistics. UINT32_MAX: unknown.
    pub waiting: u32,
    /// When the engine says that it sampled, in any unit: compared for equality alone. The one that
    /// the worker's last report had means "nothing new". 0: none.
    pub timestamp: u64,
}

/// What choices of a pool go by.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ek_tuning {
    /// Set by ek_tuning_init.
    pub struct_size: usize,
    /// For requests that name none: an ek_policy. EK_POLICY_DEFAULT is EK_POLICY_LEAST_REQUESTS.
    /// Default: EK_POLICY_LEAST_REQUESTS.
    pub policy: u32,
    /// How many distinct workers power_of_two draws: 2 to 255. Default: 2.
    pub choices: u32,
    /// Under balanced, how many tokens cost a step as much as one request more. Default: 0.
    pub request_tokens: u32,
    /// 1: under least_requests, least_tokens and balanced, workers without a load compete also
    /// where others have one. Default: 0.
    pub unreported_compete: u32,
    /// Under consistent_hashing, how many percent of the mean of the eligible workers, by weight, a
    /// worker may have in flight: 100 to 10,000, or 0 for no bound. Default: 0.
    pub hash_load_factor: u64,
}

/// What a pool is made with.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ek_pool_config {
    /// Set by ek_pool_config_init.
    pub struct_size: usize,
    /// The most workers at a time, draining ones among them: 1 to 65,535. Default: 1,024.
    pub capacity: u32,
    /// A load counts as none this many milliseconds after its poll began. 0: never. Default: 0.
    pub load_max_age_ms: u64,
    /// Fixes the cursor's start and the streams of pickers made with seed 0. 0: from the operating
    /// system. Default: 0.
    pub seed: u64,
    /// What choices go by, until ek_pool_tune. NULL: the defaults. Default: NULL.
    pub tuning: *const ek_tuning,
}

/// What a worker is added or updated with.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ek_worker_config {
    /// Set by ek_worker_config_init.
    pub struct_size: usize,
    /// Share of the requests that it gets, relative to the others': 0 to 1,000,000; with 0 it takes
    /// no new ones. Default: 1.
    pub weight: u32,
    /// The most requests it may have in flight: 1 to 1,048,575, or 0 for no cap. Default: 0.
    pub max_in_flight: u32,
    /// ek_veto bits, set on adding and on adding again; later by ek_pool_veto. Default: 0.
    pub vetoes: u32,
    /// 1: if a worker of this key is draining, add a new one, from 0, instead of reviving it.
    /// Default: 0.
    pub fresh: u32,
    /// For people: host:port or host:port@rank; at most 255 bytes before the NUL. NULL: empty.
    /// Default: NULL.
    pub label: *const c_char,
}

/// What a request asks of the choice.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ek_request {
    /// Set by ek_request_init.
    pub struct_size: usize,
    /// An ek_policy. Default: EK_POLICY_DEFAULT, the pool's, as tuned.
    pub policy: u32,
    /// Token cost that its worker carries until it ends. Default: 0.
    pub tokens: u64,
    /// Choose among these alone. Unknown, stale and repeated ids are ignored. Default: NULL.
    pub candidates: *const ek_worker_id,
    /// Default: EK_ALL.
    pub candidate_count: usize,
    /// Don't choose any of these. Unknown, stale and repeated ids are ignored. Default: NULL.
    pub excluded: *const ek_worker_id,
    /// Default: 0.
    pub excluded_count: usize,
    /// What consistent_hashing goes by: of a session, a user or a prompt's beginning, such as ek_key of
    /// its name. Default: 0, a hash like any.
    pub hash: u64,
}

/// One worker as it is now. Fields are read one after the other while traffic runs; at rest they
/// fit together: requests dispatched = finished + in_flight.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ek_worker_stats {
    /// Its id.
    pub worker: ek_worker_id,
    /// The caller's name for it.
    pub key: u64,
    /// An ek_worker_state.
    pub state: u32,
    /// ek_veto bits.
    pub vetoes: u32,
    /// Its weight.
    pub weight: u32,
    /// Its cap. 0: none.
    pub max_in_flight: u32,
    /// Requests in flight.
    pub in_flight: u32,
    /// 1: it has a load; 0: none, and the load_... fields are 0.
    pub has_load: u32,
    /// Requests that ended on it, since it was added.
    pub finished: u64,
    /// Tokens in flight.
    pub tokens: u64,
    /// Polled tokens plus credit for what began and ended here since the poll was sent; without a
    /// load the tokens in flight.
    pub live_tokens: u64,
    /// As reported.
    pub load_tokens: u64,
    /// As reported. UINT32_MAX: unknown.
    pub load_running: u32,
    /// As reported. UINT32_MAX: unknown.
    pub load_waiting: u32,
    /// As reported. 0: none.
    pub load_timestamp: u64,
    /// Milliseconds since the poll began that brought the load.
    pub load_age_ms: u64,
    /// Its label, with NUL.
    pub label: [c_char; 256],
}

/// Sums over a pool. finished, abandoned, saturated, anomalies, rejected_loads and version never
/// decrease over the pool's life.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ek_pool_totals {
    /// Active workers.
    pub workers: u32,
    /// Draining workers.
    pub draining: u32,
    /// Requests in flight, those on draining workers among them.
    pub in_flight: u64,
    /// Requests that ended.
    pub finished: u64,
    /// Requests dropped by ek_pool_abandon.
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

/// How a worker is chosen among the eligible ones.
#[repr(C)]
pub enum ek_policy {
    /// The pool's, as tuned.
    EK_POLICY_DEFAULT = 0,
    /// The next eligible slot after the last chosen one.
    EK_POLICY_ROUND_ROBIN = 1,
    /// Uniform.
    EK_POLICY_RANDOM = 2,
    /// Of two distinct uniform draws, the one with fewer polled tokens; if either has no load, or
    /// they are equal, the one with fewer requests in flight; then the first drawn.
    EK_POLICY_P2C_TOKENS = 3,
    /// Of two distinct uniform draws, the one with fewer requests in flight; on a tie, if both have
    /// a load, the one with fewer polled tokens; then the first drawn.
    EK_POLICY_P2C_REQUESTS = 4,
    /// Fewest requests in flight over all; ties by polled tokens, then uniformly at random. If one
    /// has a load, only those that have one compete, unless tuned otherwise.
    EK_POLICY_LEAST_REQUESTS = 5,
    /// Fewest live tokens over all: polled tokens plus credit for what began and ended since the poll
    /// was sent. Ties by requests in flight, then uniformly at random. Workers without a load as under
    /// least_requests; where those compete, with their tokens in flight.
    EK_POLICY_LEAST_TOKENS = 6,
    /// Smallest requests in flight × request_tokens + live tokens over all; ties uniformly at random.
    /// Workers without a load as under least_tokens.
    EK_POLICY_BALANCED = 7,
    /// The worker that the request's hash ranks first: rendezvous hashing by the workers' keys, shares
    /// by weight. A worker that comes or goes moves only its own hashes. One that is above
    /// hash_load_factor percent of the mean is passed over for the next in the hash's order. The
    /// placement is evenkeel's own, the same for all time, in Rust and in C.
    EK_POLICY_CONSISTENT_HASHING = 8,
}

/// Who has a reason not to choose a worker: one bit each. A worker is eligible only without any.
#[repr(C)]
#[allow(dead_code, reason = "names for the header")]
pub enum ek_veto {
    /// The host.
    EK_VETO_HOST = 1,
    /// Health checks.
    EK_VETO_HEALTH = 2,
    /// The operator.
    EK_VETO_OPERATOR = 4,
}

/// What ek_pool_update changes: one bit each.
#[repr(C)]
pub enum ek_field {
    /// weight.
    EK_FIELD_WEIGHT = 1,
    /// max_in_flight.
    EK_FIELD_MAX_IN_FLIGHT = 2,
    /// label.
    EK_FIELD_LABEL = 4,
}

/// Whether a worker takes new requests.
#[repr(C)]
pub enum ek_worker_state {
    /// It does, if it is eligible.
    EK_WORKER_ACTIVE = 1,
    /// It was removed; its last requests still run.
    EK_WORKER_DRAINING = 2,
}

use ek_policy::*;
use ek_worker_state::*;

const _: () = {
    // The core's numbers are the header's.
    assert!(EK_POLICY_ROUND_ROBIN as u32 == Policy::RoundRobin as u32);
    assert!(EK_POLICY_RANDOM as u32 == Policy::Random as u32);
    assert!(EK_POLICY_P2C_TOKENS as u32 == Policy::PowerOfTwoTokens as u32);
    assert!(EK_POLICY_P2C_REQUESTS as u32 == Policy::PowerOfTwoRequests as u32);
    assert!(EK_POLICY_LEAST_REQUESTS as u32 == Policy::LeastRequests as u32);
    assert!(EK_POLICY_LEAST_TOKENS as u32 == Policy::LeastTokens as u32);
    assert!(EK_POLICY_BALANCED as u32 == Policy::Balanced as u32);
    assert!(EK_POLICY_CONSISTENT_HASHING as u32 == Policy::ConsistentHashing as u32);
    assert!(EK_WORKER_ACTIVE as u32 == WorkerState::Active as u32);
    assert!(EK_WORKER_DRAINING as u32 == WorkerState::Draining as u32);
    // What is written has no padding, whose bytes would be whatever was there.
    assert!(size_of::<ek_worker_stats>() == 2 * 8 + 6 * 4 + 4 * 8 + 2 * 4 + 2 * 8 + 256);
    assert!(size_of::<ek_pool_totals>() == 2 * 4 + 7 * 8);
};

growing!(ek_tuning {
    struct_size: size_of::<Self>(),
    policy: EK_POLICY_LEAST_REQUESTS as u32,
    choices: 2,
    request_tokens: 0,
    unreported_compete: 0,
    hash_load_factor: 0,
});

growing!(ek_pool_config {
    struct_size: size_of::<Self>(),
    capacity: 1024,
    load_max_age_ms: 0,
    seed: 0,
    tuning: ptr::null(),
});

growing!(ek_worker_config {
    struct_size: size_of::<Self>(),
    weight: 1,
    max_in_flight: 0,
    vetoes: 0,
    fresh: 0,
    label: ptr::null(),
});

growing!(ek_request {
    struct_size: size_of::<Self>(),
    policy: EK_POLICY_DEFAULT as u32,
    tokens: 0,
    candidates: ptr::null(),
    candidate_count: EK_ALL,
    excluded: ptr::null(),
    excluded_count: 0,
    hash: 0,
});

growing!(ek_load {
    worker: 0,
    tokens: u64::MAX,
    running: u32::MAX,
    waiting: u32::MAX,
    timestamp: 0,
});
