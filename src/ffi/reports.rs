//! What engines report: published at once, or as the answer to a poll.

use super::convert::{self, Loads};
use super::error::{fenced, status};
use super::types::{ek_load, ek_poll, ek_pool, ek_worker_id};
use super::{object, required};
use std::mem::MaybeUninit;

/// Replaces the loads of all active workers by this report, as if its poll had begun now. Workers
/// that are not in it have no load afterwards.
///
/// Parameters: pool. loads: count of them. load_size: the distance between two of them, in bytes.
/// count: 0: clears all loads. out_rejected: gets the number of rejected entries: of unknown
/// workers, those after a worker's first valid one, and those whose tokens are UINT64_MAX.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none; EK_ERR_VERSION;
/// EK_ERR_BUSY.
/// Ownership: nothing is kept.
/// Thread safety: any thread, also between choices of a picker.
/// Progress: may block; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_publish(
    pool: *mut ek_pool,
    loads: *const ek_load,
    load_size: usize,
    count: usize,
    out_rejected: Option<&mut MaybeUninit<usize>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_rejected = required(out_rejected, "out_rejected")?;
        // SAFETY: NULL or loads.
        let loads = unsafe { Loads::new(loads, load_size, count) }?;
        out_rejected.write(pool.0.publish_each(loads.iter())?);
        Ok(())
    })
}

/// Makes a poll: a question to one engine about these workers, asked again and again. What the pool
/// counts between ek_poll_begin and ek_poll_publish is credited on top of the answer.
///
/// Parameters: pool. workers: count ids; unknown and repeated ones are ignored. count: EK_ALL: the
/// workers that are active at each begin. out_poll: gets the poll.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a count that no memory holds.
/// Ownership: the poll is the caller's, for ek_poll_free, and holds its pool.
/// Thread safety: any thread.
/// Progress: allocates.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_poll_new(
    pool: *mut ek_pool,
    workers: *const ek_worker_id,
    count: usize,
    out_poll: Option<&mut MaybeUninit<*mut ek_poll>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_poll = required(out_poll, "out_poll")?;
        // SAFETY: NULL or ids.
        let workers = unsafe { convert::workers("workers", workers, count) }?;
        out_poll.write(Box::into_raw(Box::new(ek_poll(pool.0.poll(workers)))));
        Ok(())
    })
}

/// Call it right before the question is sent. A poll that was begun and not published starts anew.
///
/// Parameters: poll.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_BUSY, and an earlier begin still stands.
/// Ownership: none.
/// Thread safety: one thread at a time for the poll.
/// Progress: may block; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ek_poll_begin(poll: Option<&mut ek_poll>) -> i32 {
    status(|| Ok(required(poll, "poll")?.0.begin()?))
}

/// Publishes the answer. Covered workers that are not in it have no load afterwards; other workers'
/// loads stay. Of overlapping polls of a worker, the one that began last stays.
///
/// Parameters: poll. loads: count of them. load_size: the distance between two of them, in bytes.
/// out_rejected: gets the number of rejected entries: of workers that it does not cover, second
/// ones of a worker, those whose tokens are UINT64_MAX, and those of workers whose stored report is
/// of a poll that began later.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID if it was not begun since it was last published, or
/// for a size that is none; EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept.
/// Thread safety: one thread at a time for the poll.
/// Progress: may block; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_poll_publish(
    poll: Option<&mut ek_poll>,
    loads: *const ek_load,
    load_size: usize,
    count: usize,
    out_rejected: Option<&mut MaybeUninit<usize>>,
) -> i32 {
    status(|| {
        let poll = required(poll, "poll")?;
        let out_rejected = required(out_rejected, "out_rejected")?;
        // SAFETY: NULL or loads.
        let loads = unsafe { Loads::new(loads, load_size, count) }?;
        out_rejected.write(poll.0.publish_each(loads.iter())?);
        Ok(())
    })
}

/// Frees a poll, and its pool if nobody else holds it.
///
/// Parameters: poll: NULL: nothing happens.
/// Ownership: the poll is gone.
/// Thread safety: any thread, as the last use of the poll.
/// Progress: wait-free; frees memory.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_poll_free(poll: *mut ek_poll) {
    let free = || {
        if !poll.is_null() {
            // SAFETY: `ek_poll_new` made it by `Box::into_raw`, and this is its last use.
            drop(unsafe { Box::from_raw(poll) });
        }
    };
    fenced(free, |_| ());
}
