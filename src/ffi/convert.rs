//! What the header's structs are in Rust, and what of them is refused.

use super::error::Failed;
use super::growing;
use super::types::ek_field::*;
use super::types::*;
use crate::id::WorkerId;
use crate::load::Load;
use crate::policy::{HASH_LOAD_FACTORS, Policy, Request, Tuning};
use crate::pool::PoolConfig;
use crate::stats::{Totals, WorkerStats};
use crate::ticket::Ticket;
use crate::worker::{MAX_LABEL, Vetoes, WorkerConfig, WorkerUpdate};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::slice;

impl From<Ticket> for ek_ticket {
    #[inline]
    fn from(ticket: Ticket) -> Self {
        Self { worker: ticket.worker().raw(), opaque: ticket.tokens().into() }
    }
}

impl From<&WorkerStats> for ek_worker_stats {
    fn from(stats: &WorkerStats) -> Self {
        let mut label = [0; MAX_LABEL + 1];
        for (to, &from) in label.iter_mut().zip(stats.label.as_bytes()) {
            *to = from as c_char;
        }
        let load = stats.load;
        let requests = |requests: Option<u32>| requests.unwrap_or(u32::MAX);
        Self {
            worker: stats.worker.raw(),
            key: stats.key,
            state: stats.state as u32,
            vetoes: stats.vetoes.bits(),
            weight: stats.weight,
            max_in_flight: stats.max_in_flight,
            in_flight: stats.in_flight,
            has_load: load.is_some().into(),
            finished: stats.finished,
            tokens: stats.tokens.into(),
            live_tokens: stats.live_tokens,
            load_tokens: load.map_or(0, |load| load.tokens),
            load_running: load.map_or(0, |load| requests(load.running)),
            load_waiting: load.map_or(0, |load| requests(load.waiting)),
            load_timestamp: load.and_then(|load| load.timestamp).unwrap_or(0),
            load_age_ms: load.map_or(0, |load| load.age_ms),
            label,
        }
    }
}

impl From<Totals> for ek_pool_totals {
    fn from(totals: Totals) -> Self {
        Self {
            workers: totals.workers,
            draining: totals.draining,
            in_flight: totals.in_flight,
            finished: totals.finished,
            abandoned: totals.abandoned,
            saturated: totals.saturated,
            anomalies: totals.anomalies,
            rejected_loads: totals.rejected_loads,
            version: totals.version,
        }
    }
}

/// # Safety
/// As the header has it of a request; NULL: the defaults.
#[inline(always)]
pub(super) unsafe fn request<'a>(request: *const ek_request) -> Result<Request<'a>, Failed> {
    if request.is_null() {
        return Ok(Request::default());
    }
    let mut room = MaybeUninit::uninit();
    // SAFETY: not NULL, so a request.
    let request = unsafe { growing::read(request, &mut room) }?;
    let policy = match request.policy {
        0 => None,
        number => Some(policy(number)?),
    };
    let tokens = tokens(request.tokens)?;
    if request.candidate_count == EK_ALL && request.excluded_count == 0 {
        return Ok(Request { policy, tokens, candidates: None, excluded: &[], hash: request.hash });
    }
    // SAFETY: the caller's promise.
    let (candidates, excluded) = unsafe { lists(request) }?;
    Ok(Request { policy, tokens, candidates, excluded, hash: request.hash })
}

/// # Safety
/// As the header has it of a request.
#[inline(never)]
unsafe fn lists<'a>(
    request: &ek_request,
) -> Result<(Option<&'a [WorkerId]>, &'a [WorkerId]), Failed> {
    // SAFETY: the caller's promise.
    let candidates = unsafe { workers("candidates", request.candidates, request.candidate_count) }?;
    // SAFETY: the caller's promise.
    match unsafe { workers("excluded", request.excluded, request.excluded_count) }? {
        Some(excluded) => Ok((candidates, excluded)),
        // Without all there is nobody.
        None => Ok((Some(&[]), &[])),
    }
}

/// # Safety
/// `count` ids, unless that is `EK_ALL` (none is returned) or 0, or they are NULL.
#[inline]
pub(super) unsafe fn workers<'a>(
    what: &str,
    ids: *const ek_worker_id,
    count: usize,
) -> Result<Option<&'a [WorkerId]>, Failed> {
    match count {
        0 => Ok(Some(&[])),
        EK_ALL => Ok(None),
        // SAFETY: neither all nor none.
        _ => Ok(Some(unsafe { array(what, ids.cast(), count) }?)),
    }
}

/// # Safety
/// `count` elements, unless that is 0, or they are NULL.
#[inline]
pub(super) unsafe fn array<'a, T>(
    what: &str,
    elements: *const T,
    count: usize,
) -> Result<&'a [T], Failed> {
    if count == 0 {
        return Ok(&[]);
    }
    check_array(what, elements, size_of::<T>(), count)?;
    // SAFETY: not NULL, so that many elements, and they fit into memory.
    Ok(unsafe { slice::from_raw_parts(elements, count) })
}

/// Whether it may be an array: not NULL, and of a size that fits into memory.
#[inline]
fn check_array<T>(what: &str, elements: *const T, size: usize, count: usize) -> Result<(), Failed> {
    if elements.is_null() {
        return Err(Failed::null(what));
    }
    if count > isize::MAX as usize / size {
        let value = format_args!("{count} elements of {size} bytes");
        return Err(Failed::invalid(what, value, "what fits into memory"));
    }
    Ok(())
}

/// A report's loads, a given distance apart.
pub(super) struct Loads {
    first: *const ek_load,
    size: usize,
    count: usize,
}

impl Loads {
    /// # Safety
    /// `count` loads, `size` bytes apart, unless `count` is 0 or they are NULL; and as long as this
    /// lives.
    pub(super) unsafe fn new(
        first: *const ek_load,
        size: usize,
        count: usize,
    ) -> Result<Self, Failed> {
        let loads = Self { first, size, count };
        if count > 0 {
            growing::check_size("load_size", size)?;
            check_array("loads", first, size, count)?;
        }
        if size > size_of::<ek_load>() {
            for index in 0..count {
                // SAFETY: the caller's promise.
                unsafe { growing::check(loads.at(index), "load_size", size) }?;
            }
        }
        Ok(loads)
    }

    fn at(&self, index: usize) -> *const ek_load {
        self.first.wrapping_byte_add(index * self.size)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Load> {
        (0..self.count).map(|index| {
            // SAFETY: one of the loads that `new` was promised.
            let load = unsafe { growing::read_sized(self.at(index), self.size) };
            let known = |requests: u32| (requests != u32::MAX).then_some(requests);
            Load {
                worker: WorkerId::from_raw(load.worker),
                tokens: load.tokens,
                running: known(load.running),
                waiting: known(load.waiting),
                timestamp: (load.timestamp != 0).then_some(load.timestamp),
            }
        })
    }
}

/// # Safety
/// As the header has it of a configuration; NULL: the defaults.
pub(super) unsafe fn pool_config(config: *const ek_pool_config) -> Result<PoolConfig, Failed> {
    if config.is_null() {
        return Ok(PoolConfig::default());
    }
    let mut room = MaybeUninit::uninit();
    // SAFETY: not NULL, so a configuration.
    let config = unsafe { growing::read(config, &mut room) }?;
    let tuning = match config.tuning.is_null() {
        true => Tuning::default(),
        // SAFETY: not NULL, so a tuning.
        false => unsafe { tuning(config.tuning) }?,
    };
    Ok(PoolConfig {
        capacity: config.capacity,
        load_max_age_ms: config.load_max_age_ms,
        seed: config.seed,
        tuning,
    })
}

/// # Safety
/// As the header has it of a tuning, and not NULL.
pub(super) unsafe fn tuning(tuning: *const ek_tuning) -> Result<Tuning, Failed> {
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's promise.
    let tuning = unsafe { growing::read(tuning, &mut room) }?;
    Ok(Tuning {
        policy: match tuning.policy {
            0 => Policy::default(),
            number => policy(number)?,
        },
        choices: tuning.choices,
        request_tokens: tuning.request_tokens,
        unreported_compete: flag("unreported_compete", tuning.unreported_compete)?,
        hash_load_factor: u32::try_from(tuning.hash_load_factor).map_err(|_| {
            Failed::invalid("hash_load_factor", tuning.hash_load_factor, HASH_LOAD_FACTORS)
        })?,
    })
}

/// # Safety
/// As the header has it of a configuration, and not NULL.
pub(super) unsafe fn worker_config<'a>(
    config: *const ek_worker_config,
) -> Result<WorkerConfig<'a>, Failed> {
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's promise.
    let config = unsafe { growing::read(config, &mut room) }?;
    // SAFETY: the caller's promise.
    unsafe { worker_config_of(config) }
}

/// # Safety
/// Its label is a string or NULL.
unsafe fn worker_config_of<'a>(config: &ek_worker_config) -> Result<WorkerConfig<'a>, Failed> {
    Ok(WorkerConfig {
        weight: config.weight,
        max_in_flight: config.max_in_flight,
        vetoes: vetoes("vetoes", config.vetoes)?,
        fresh: flag("fresh", config.fresh)?,
        // SAFETY: the caller's promise.
        label: unsafe { label(config.label) }?,
    })
}

/// # Safety
/// As the header has it of configurations, a given distance apart; NULL: none each.
pub(super) unsafe fn worker_configs<'a>(
    configs: *const ek_worker_config,
    size: usize,
    count: usize,
) -> Result<Vec<Option<WorkerConfig<'a>>>, Failed> {
    if configs.is_null() {
        return Ok(vec![None; count]);
    }
    if count > 0 {
        growing::check_size("config_size", size)?;
        check_array("configs", configs, size, count)?;
    }
    let read = |index: usize| {
        let config = configs.wrapping_byte_add(index * size);
        // SAFETY: the caller's promise.
        let struct_size = unsafe { config.cast::<usize>().read_unaligned() };
        if struct_size > size {
            let allowed = "at most config_size, the distance to the next";
            return Err(Failed::invalid("struct_size", struct_size, allowed));
        }
        // SAFETY: the caller's promise. A copy, since the distance may be any.
        let config = unsafe { growing::copy(config) }?;
        // SAFETY: the caller's promise.
        unsafe { worker_config_of(&config) }.map(Some)
    };
    (0..count).map(read).collect()
}

/// # Safety
/// As the header has it of a configuration, and not NULL.
pub(super) unsafe fn worker_update<'a>(
    fields: u32,
    config: *const ek_worker_config,
) -> Result<WorkerUpdate<'a>, Failed> {
    const ALL: u32 = EK_FIELD_WEIGHT as u32 | EK_FIELD_MAX_IN_FLIGHT as u32 | EK_FIELD_LABEL as u32;
    if fields & !ALL != 0 {
        let allowed =
            "EK_FIELD_WEIGHT (1), EK_FIELD_MAX_IN_FLIGHT (2), EK_FIELD_LABEL (4), or sums";
        return Err(Failed::invalid("fields", fields, allowed));
    }
    let mut room = MaybeUninit::uninit();
    // SAFETY: the caller's promise.
    let config = unsafe { growing::read(config, &mut room) }?;
    let asked = |field: ek_field| fields & field as u32 != 0;
    Ok(WorkerUpdate {
        weight: asked(EK_FIELD_WEIGHT).then_some(config.weight),
        max_in_flight: asked(EK_FIELD_MAX_IN_FLIGHT).then_some(config.max_in_flight),
        label: match asked(EK_FIELD_LABEL) {
            // SAFETY: the caller's promise.
            true => Some(unsafe { label(config.label) }?),
            false => None,
        },
    })
}

fn policy(number: u32) -> Result<Policy, Failed> {
    let allowed = "0 (EK_POLICY_DEFAULT) to 8 (EK_POLICY_CONSISTENT_HASHING)";
    Policy::from_number(number).ok_or_else(|| Failed::invalid("policy", number, allowed))
}

pub(super) fn vetoes(what: &str, bits: u32) -> Result<Vetoes, Failed> {
    let allowed = "EK_VETO_HOST (1), EK_VETO_HEALTH (2), EK_VETO_OPERATOR (4), or sums";
    Vetoes::from_bits(bits).ok_or_else(|| Failed::invalid(what, bits, allowed))
}

pub(super) fn flag(what: &str, value: u32) -> Result<bool, Failed> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Failed::invalid(what, value, "0 or 1")),
    }
}

#[inline]
pub(super) fn tokens(tokens: u64) -> Result<u32, Failed> {
    tokens.try_into().map_err(|_| Failed::invalid("tokens", tokens, "0 to 4294967295"))
}

/// # Safety
/// A string, or NULL: empty.
unsafe fn label<'a>(label: *const c_char) -> Result<&'a str, Failed> {
    if label.is_null() {
        return Ok("");
    }
    // SAFETY: not NULL, so a string.
    unsafe { text("label", label) }
}

/// # Safety
/// A string.
pub(super) unsafe fn text<'a>(what: &str, text: *const c_char) -> Result<&'a str, Failed> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    if bytes.len() > MAX_LABEL {
        let value = format_args!("of {} bytes", bytes.len());
        return Err(Failed::invalid(what, value, "at most 255 before the NUL"));
    }
    str::from_utf8(bytes)
        .map_err(|_| Failed::invalid(what, format_args!("\"{}\"", bytes.escape_ascii()), "UTF-8"))
}
