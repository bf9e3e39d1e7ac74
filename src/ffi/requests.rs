//! Picks, dispatches, and what happens to a request until it ends.

use super::error::{Failed, fenced, status};
use super::types::{ek_picker, ek_pool, ek_request, ek_ticket, ek_worker_id};
use super::{convert, growing, object, required};
use crate::error::Error;
use crate::id::WorkerId;
use crate::pool::Pool;
use crate::sync::{AtomicU64, Ordering};
use crate::ticket::{self, Ticket};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// Sets a request's struct_size and all defaults; as ek_request_init, for callers without the
/// header's inline functions.
///
/// Parameters: request: an ek_request, as the caller knows it. size: its size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none.
/// Ownership: request stays the caller's.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_request_init_sized(request: *mut c_void, size: usize) -> i32 {
    // SAFETY: NULL, or a request of that size.
    status(|| unsafe { growing::init::<ek_request>(request.cast(), "request", size) })
}

/// Chooses a worker and counts nothing: advice. Of two concurrent picks both may choose the same
/// worker, and it may be removed meanwhile. Uses the calling thread's random generator.
///
/// Parameters: pool. request: what is asked of the choice; NULL: the defaults. out_worker: gets the
/// id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EMPTY; EK_ERR_INVALID; EK_ERR_VERSION; EK_ERR_IO without
/// random numbers from the operating system.
/// Ownership: nothing is kept.
/// Thread safety: any thread.
/// Progress: wait-free; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_pick(
    pool: *mut ek_pool,
    request: *const ek_request,
    out_worker: Option<&mut MaybeUninit<ek_worker_id>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_worker = required(out_worker, "out_worker")?;
        // SAFETY: NULL or a request.
        let request = unsafe { convert::request(request) }?;
        out_worker.write(pool.0.pick(&request)?.raw());
        Ok(())
    })
}

/// Chooses a worker and counts the request on it, in one step. Uses the calling thread's random
/// generator.
///
/// Parameters: pool. request: what is asked of the choice; NULL: the defaults. out_ticket: gets the
/// ticket.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EMPTY; EK_ERR_SATURATED; EK_ERR_OVERFLOW; EK_ERR_INVALID;
/// EK_ERR_VERSION; EK_ERR_IO without random numbers from the operating system.
/// Ownership: nothing is kept. The request stays counted until the ticket is finished.
/// Thread safety: any thread.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_dispatch(
    pool: *mut ek_pool,
    request: *const ek_request,
    out_ticket: Option<&mut MaybeUninit<ek_ticket>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_ticket = required(out_ticket, "out_ticket")?;
        // SAFETY: NULL or a request.
        let request = unsafe { convert::request(request) }?;
        out_ticket.write(pool.0.dispatch(&request)?.into());
        Ok(())
    })
}

/// Makes a picker: it chooses with its own random generator, and faster than the pool.
///
/// Parameters: pool. seed: the same one, the same choices; 0: the next stream of the pool's seed,
/// or, if that is 0 too, one from the operating system. out_picker: gets the picker.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_IO without random numbers from the operating system.
/// Ownership: the picker is the caller's, for ek_picker_free, and holds its pool.
/// Thread safety: any thread.
/// Progress: allocates.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_picker_new(
    pool: *mut ek_pool,
    seed: u64,
    out_picker: Option<&mut MaybeUninit<*mut ek_picker>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_picker = required(out_picker, "out_picker")?;
        out_picker.write(Box::into_raw(Box::new(ek_picker(pool.0.picker(seed)?))));
        Ok(())
    })
}

/// Frees a picker, and its pool if nobody else holds it. Its requests in flight are not touched.
///
/// Parameters: picker: NULL: nothing happens.
/// Ownership: the picker is gone.
/// Thread safety: any thread, as the last use of the picker.
/// Progress: wait-free; frees memory.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_picker_free(picker: *mut ek_picker) {
    let free = || {
        if !picker.is_null() {
            // SAFETY: `ek_picker_new` made it by `Box::into_raw`, and this is its last use.
            drop(unsafe { Box::from_raw(picker) });
        }
    };
    fenced(free, |_| ());
}

/// As ek_pool_pick, with the picker's random generator.
///
/// Parameters: picker. request: what is asked of the choice; NULL: the defaults. out_worker: gets
/// the id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EMPTY; EK_ERR_INVALID; EK_ERR_VERSION; EK_ERR_IO, only in
/// a forked child.
/// Ownership: nothing is kept.
/// Thread safety: one thread at a time for the picker.
/// Progress: wait-free; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_picker_pick(
    picker: Option<&mut ek_picker>,
    request: *const ek_request,
    out_worker: Option<&mut MaybeUninit<ek_worker_id>>,
) -> i32 {
    status(|| {
        let picker = required(picker, "picker")?;
        let out_worker = required(out_worker, "out_worker")?;
        // SAFETY: NULL or a request.
        let request = unsafe { convert::request(request) }?;
        out_worker.write(picker.0.pick(&request)?.raw());
        Ok(())
    })
}

/// As ek_pool_dispatch, with the picker's random generator: the fastest.
///
/// Parameters: picker. request: what is asked of the choice; NULL: the defaults. out_ticket: gets
/// the ticket.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EMPTY; EK_ERR_SATURATED; EK_ERR_OVERFLOW; EK_ERR_INVALID;
/// EK_ERR_VERSION; EK_ERR_IO, only in a forked child.
/// Ownership: nothing is kept. The request stays counted until the ticket is finished.
/// Thread safety: one thread at a time for the picker.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_picker_dispatch(
    picker: Option<&mut ek_picker>,
    request: *const ek_request,
    out_ticket: Option<&mut MaybeUninit<ek_ticket>>,
) -> i32 {
    status(|| {
        let picker = required(picker, "picker")?;
        let out_ticket = required(out_ticket, "out_ticket")?;
        // SAFETY: NULL or a request.
        let request = unsafe { convert::request(request) }?;
        out_ticket.write(picker.0.dispatch(&request)?.into());
        Ok(())
    })
}

/// Counts a request on an active worker that was chosen elsewhere. Vetoes don't bind it, the cap
/// does.
///
/// Parameters: pool. worker. tokens: the request's token cost. out_ticket: gets the ticket.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_SATURATED; EK_ERR_OVERFLOW;
/// EK_ERR_INVALID.
/// Ownership: the request stays counted until the ticket is finished.
/// Thread safety: any thread.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_begin(
    pool: *mut ek_pool,
    worker: ek_worker_id,
    tokens: u64,
    out_ticket: Option<&mut MaybeUninit<ek_ticket>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_ticket = required(out_ticket, "out_ticket")?;
        let tokens = convert::tokens(tokens)?;
        out_ticket.write(pool.0.begin(WorkerId::from_raw(worker), tokens)?.into());
        Ok(())
    })
}

/// Ends a request. If fewer tokens are in flight than it claims, they stop at 0 and an anomaly is
/// counted.
///
/// Parameters: pool: the one that the ticket is of. ticket: cleared on EK_OK, atomically.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_STALE for a ticket that has ended or never begun, whose
/// worker was abandoned, or of another pool: an anomaly is counted, and nothing else.
/// Ownership: the ticket's object stays the caller's, and is free for another request.
/// Thread safety: any thread. If several finish one ticket object at once, exactly one succeeds; a
/// byte copy of a ticket can't be told from another request of its worker.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_finish(pool: *mut ek_pool, ticket: *mut ek_ticket) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = &unsafe { object(pool, "pool") }?.0;
        // SAFETY: NULL or a ticket, which only calls of this function use meanwhile; and a ticket's
        // words are as large and as aligned as atomics.
        let [worker, opaque] = unsafe { object(ticket.cast::<[AtomicU64; 2]>(), "ticket") }?;
        // Relaxed: a thread that ends the ticket at the same time either wins it or does not.
        let tokens = tokens_of(pool, opaque.load(Ordering::Relaxed))?;
        ticket::end_shared(pool.region(), worker, tokens).map_err(|_| Error::Stale)?;
        opaque.store(0, Ordering::Relaxed);
        Ok(())
    })
}

/// Ends a request of this worker, for hosts that keep only the worker. Which of its requests can't
/// be told.
///
/// Parameters: pool. worker. tokens: as the request began with, and grew by.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_STALE if the worker is unknown or has no request in flight:
/// an anomaly is counted, and nothing else; EK_ERR_INVALID.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_finish_worker(
    pool: *mut ek_pool,
    worker: ek_worker_id,
    tokens: u64,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let tokens = convert::tokens(tokens)?;
        Ok(pool.0.finish_worker(WorkerId::from_raw(worker), tokens)?)
    })
}

/// Adds tokens to a request that runs.
///
/// Parameters: pool: the one that the ticket is of. ticket: has the sum afterwards. tokens: to add.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_STALE, as ek_pool_finish; EK_ERR_OVERFLOW; EK_ERR_INVALID.
/// Ownership: the ticket's object stays the caller's.
/// Thread safety: any thread, with the ticket alone.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_grow(
    pool: *mut ek_pool,
    ticket: Option<&mut ek_ticket>,
    tokens: u64,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = &unsafe { object(pool, "pool") }?.0;
        let ticket = required(ticket, "ticket")?;
        let tokens = convert::tokens(tokens)?;
        change(pool, ticket, |ticket| pool.grow(ticket, tokens))
    })
}

/// Moves a request to another active worker, where only the cap binds. For a moment it counts on
/// both. It ends once, on the last.
///
/// Parameters: pool: the one that the ticket is of. ticket: is of the new worker afterwards.
/// worker: the new one.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_STALE, as ek_pool_finish; EK_ERR_UNKNOWN, EK_ERR_SATURATED
/// and EK_ERR_OVERFLOW of the new worker. On an error the request is where it was.
/// Ownership: the ticket's object stays the caller's.
/// Thread safety: any thread, with the ticket alone.
/// Progress: lock-free; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_retarget(
    pool: *mut ek_pool,
    ticket: Option<&mut ek_ticket>,
    worker: ek_worker_id,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = &unsafe { object(pool, "pool") }?.0;
        let ticket = required(ticket, "ticket")?;
        change(pool, ticket, |ticket| pool.retarget(ticket, WorkerId::from_raw(worker)))
    })
}

/// The tokens that a ticket carries.
///
/// Parameters: ticket: one of any pool.
/// Returns: the tokens; 0 for NULL, and for a ticket that was finished.
/// Ownership: none.
/// Thread safety: any thread, with the ticket alone.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ek_ticket_tokens(ticket: Option<&ek_ticket>) -> u64 {
    ticket.map_or(0, |ticket| ticket.opaque)
}

/// Runs with the ticket that the C one stands for, and writes it back if that succeeds.
fn change(
    pool: &Pool,
    ticket: &mut ek_ticket,
    change: impl FnOnce(&mut Ticket) -> Result<(), Error>,
) -> Result<(), Failed> {
    let tokens = tokens_of(pool, ticket.opaque)?;
    if ticket.worker == 0 {
        return Err(stale(pool));
    }
    let mut changed = Ticket::new(WorkerId::from_raw(ticket.worker), tokens);
    change(&mut changed)?;
    *ticket = changed.into();
    Ok(())
}

/// The tokens in a ticket's second word, if it can be one of ours.
#[inline]
fn tokens_of(pool: &Pool, opaque: u64) -> Result<u32, Failed> {
    opaque.try_into().map_err(|_| stale(pool))
}

#[cold]
fn stale(pool: &Pool) -> Failed {
    ticket::anomaly(pool.region());
    Error::Stale.into()
}
