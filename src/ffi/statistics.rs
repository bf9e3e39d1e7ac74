//! Statistics and totals.

use super::error::{Failed, status};
use super::types::{ek_pool, ek_pool_totals, ek_worker_stats};
use super::{growing, object, required};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// All active and draining workers, in the order of their slots. Changes nothing that a choice
/// depends on.
///
/// Parameters: pool. out_stats: room for capacity rows; NULL with capacity 0: asks for the number
/// alone. stats_size: the distance between two rows, in bytes; sizeof(ek_worker_stats). capacity:
/// the most rows that are written. out_count: gets the number of workers, also if it is larger.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none; EK_ERR_BUSY.
/// Ownership: the rows stay the caller's.
/// Thread safety: any thread.
/// Progress: may block; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_stats(
    pool: *const ek_pool,
    out_stats: *mut c_void,
    stats_size: usize,
    capacity: usize,
    out_count: Option<&mut MaybeUninit<usize>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_count = required(out_count, "out_count")?;
        if capacity > 0 {
            if out_stats.is_null() {
                return Err(Failed::null("out_stats"));
            }
            growing::check_size("stats_size", stats_size)?;
        }
        let mut count = 0;
        pool.0.stats_each(|stats| {
            if count < capacity {
                // SAFETY: there is room for `capacity` rows.
                let row = unsafe { out_stats.byte_add(count * stats_size) };
                // SAFETY: as above.
                unsafe {
                    growing::write_sized(row.cast(), stats_size, &ek_worker_stats::from(stats))
                };
            }
            count += 1;
        })?;
        out_count.write(count);
        Ok(())
    })
}

/// Sums over a pool.
///
/// Parameters: pool. out_totals: gets an ek_pool_totals, as the caller knows it. totals_size: its
/// size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none; EK_ERR_BUSY.
/// Ownership: out_totals stays the caller's.
/// Thread safety: any thread.
/// Progress: may block; does not allocate.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_totals_get(
    pool: *const ek_pool,
    out_totals: *mut c_void,
    totals_size: usize,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        if out_totals.is_null() {
            return Err(Failed::null("out_totals"));
        }
        growing::check_size("totals_size", totals_size)?;
        let totals = ek_pool_totals::from(pool.0.totals()?);
        // SAFETY: not NULL, so room for that many bytes.
        unsafe { growing::write_sized(out_totals.cast(), totals_size, &totals) };
        Ok(())
    })
}
