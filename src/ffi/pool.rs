//! Pools, their members and their tuning.

use super::error::{Failed, fenced, status};
use super::types::{ek_pool, ek_pool_config, ek_tuning, ek_worker_config, ek_worker_id};
use super::{convert, growing, object, required};
use crate::id::WorkerId;
use crate::pool::Pool;
use crate::worker::{Vetoes, WorkerConfig};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Sets a configuration's struct_size and all defaults; as ek_pool_config_init, for callers without
/// the header's inline functions.
///
/// Parameters: config: an ek_pool_config, as the caller knows it. size: its size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none.
/// Ownership: config stays the caller's.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_config_init_sized(config: *mut c_void, size: usize) -> i32 {
    // SAFETY: NULL, or a configuration of that size.
    status(|| unsafe { growing::init::<ek_pool_config>(config.cast(), "config", size) })
}

/// Sets a tuning's struct_size and all defaults; as ek_tuning_init, for callers without the
/// header's inline functions.
///
/// Parameters: tuning: an ek_tuning, as the caller knows it. size: its size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none.
/// Ownership: tuning stays the caller's.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_tuning_init_sized(tuning: *mut c_void, size: usize) -> i32 {
    // SAFETY: NULL, or a tuning of that size.
    status(|| unsafe { growing::init::<ek_tuning>(tuning.cast(), "tuning", size) })
}

/// Sets a configuration's struct_size and all defaults; as ek_worker_config_init, for callers
/// without the header's inline functions.
///
/// Parameters: config: an ek_worker_config, as the caller knows it. size: its size.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a size that is none.
/// Ownership: config stays the caller's.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_worker_config_init_sized(config: *mut c_void, size: usize) -> i32 {
    // SAFETY: NULL, or a configuration of that size.
    status(|| unsafe { growing::init::<ek_worker_config>(config.cast(), "config", size) })
}

/// Makes an empty pool.
///
/// Parameters: config: NULL: the defaults. out_pool: gets the pool.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a value out of range; EK_ERR_VERSION; EK_ERR_IO
/// without random numbers from the operating system.
/// Ownership: the caller has the pool's one reference, for ek_pool_free.
/// Thread safety: any thread.
/// Progress: allocates all that the pool will ever need, in proportion to its capacity. Without
/// memory the process ends.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_new(
    config: *const ek_pool_config,
    out_pool: Option<&mut MaybeUninit<*mut ek_pool>>,
) -> i32 {
    status(|| {
        let out_pool = required(out_pool, "out_pool")?;
        // SAFETY: NULL or a configuration.
        let pool = Pool::new(unsafe { convert::pool_config(config) }?)?;
        out_pool.write(Arc::into_raw(Arc::new(ek_pool(pool))).cast_mut());
        Ok(())
    })
}

/// Takes one reference away. With the last one of pool, pickers and polls the pool's memory is
/// freed; requests in flight can't be finished then, and need not be.
///
/// Parameters: pool: NULL: nothing happens.
/// Ownership: the caller's reference is gone.
/// Thread safety: any thread.
/// Progress: wait-free; may free memory.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_free(pool: *mut ek_pool) {
    let free = || {
        if !pool.is_null() {
            // SAFETY: `ek_pool_new` made it by `Arc::into_raw`, and this reference is the caller's.
            drop(unsafe { Arc::from_raw(pool) });
        }
    };
    fenced(free, |_| ());
}

/// Adds one reference.
///
/// Parameters: pool.
/// Returns: EK_OK; EK_ERR_NULL.
/// Ownership: the caller has one reference more, for one more ek_pool_free.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_ref(pool: *mut ek_pool) -> i32 {
    status(|| {
        if pool.is_null() {
            return Err(Failed::null("pool"));
        }
        // SAFETY: `ek_pool_new` made it by `Arc::into_raw`, and the caller holds a reference.
        unsafe { Arc::increment_strong_count(pool.cast_const()) };
        Ok(())
    })
}

/// Changes what choices go by, for the choices that follow, also while traffic runs.
///
/// Parameters: pool. tuning: all of the new tuning.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for a value out of range; EK_ERR_VERSION.
/// Ownership: nothing is kept.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_tune(pool: *mut ek_pool, tuning: *const ek_tuning) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        if tuning.is_null() {
            return Err(Failed::null("tuning"));
        }
        // SAFETY: not NULL, so a tuning.
        Ok(pool.0.tune(unsafe { convert::tuning(tuning) }?)?)
    })
}

/// Adds a worker, or revives one of this key that is draining: it keeps its id and its requests,
/// gets this configuration and has no load. With fresh it is a new worker in any case.
///
/// Parameters: pool. key: any number that no active worker has. config: NULL: the defaults.
/// out_worker: gets the id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_EXISTS if an active worker has the key; EK_ERR_FULL;
/// EK_ERR_INVALID for a value out of range; EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept; the label is copied.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_add(
    pool: *mut ek_pool,
    key: u64,
    config: *const ek_worker_config,
    out_worker: Option<&mut MaybeUninit<ek_worker_id>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_worker = required(out_worker, "out_worker")?;
        let config = match config.is_null() {
            true => WorkerConfig::default(),
            // SAFETY: not NULL, so a configuration.
            false => unsafe { convert::worker_config(config) }?,
        };
        out_worker.write(pool.0.add(key, config)?.raw());
        Ok(())
    })
}

/// Adds a worker, or, if an active one has the key, updates it.
///
/// Parameters: pool. key: any number. config: NULL: adds with the defaults, and leaves an active
/// one as it is; its vetoes and fresh bear on adding alone. out_worker: gets the id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_FULL; EK_ERR_INVALID for a value out of range;
/// EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept; the label is copied.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_ensure(
    pool: *mut ek_pool,
    key: u64,
    config: *const ek_worker_config,
    out_worker: Option<&mut MaybeUninit<ek_worker_id>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_worker = required(out_worker, "out_worker")?;
        let config = match config.is_null() {
            true => None,
            // SAFETY: not NULL, so a configuration.
            false => Some(unsafe { convert::worker_config(config) }?),
        };
        out_worker.write(pool.0.ensure(key, config)?.raw());
        Ok(())
    })
}

/// Makes these the active workers, in one change: adds (or revives) those that are new, keeps those
/// that are active, and drains the rest. All of it happens, or nothing.
///
/// Parameters: pool. keys: count of them, each once. configs: one for each key; NULL: new ones have
/// the defaults, and kept ones stay as they are. config_size: the distance between two of them, in
/// bytes. count: 0: drains all.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_FULL if there are more new keys than vacant slots (those
/// that this change would empty don't count); EK_ERR_INVALID for a value out of range or a key that
/// comes twice; EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept; labels are copied.
/// Thread safety: any thread.
/// Progress: may block; allocates.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_set_members(
    pool: *mut ek_pool,
    keys: *const u64,
    configs: *const ek_worker_config,
    config_size: usize,
    count: usize,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        // SAFETY: NULL or keys.
        let keys = unsafe { convert::array("keys", keys, count) }?;
        // SAFETY: NULL or configurations.
        let configs = unsafe { convert::worker_configs(configs, config_size, count) }?;
        let members: Vec<_> = keys.iter().copied().zip(configs).collect();
        Ok(pool.0.set_members(&members)?)
    })
}

/// Changes some fields of an active worker.
///
/// Parameters: pool. worker. fields: ek_field bits: what to change. config: has the new values; its
/// other fields are not looked at.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_INVALID for a value out of range;
/// EK_ERR_VERSION; EK_ERR_BUSY.
/// Ownership: nothing is kept; the label is copied.
/// Thread safety: any thread. A dispatch that overlaps a change of the cap may use the old one.
/// Progress: may block.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_update(
    pool: *mut ek_pool,
    worker: ek_worker_id,
    fields: u32,
    config: *const ek_worker_config,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        if config.is_null() {
            return Err(Failed::null("config"));
        }
        // SAFETY: not NULL, so a configuration.
        let update = unsafe { convert::worker_update(fields, config) }?;
        Ok(pool.0.update(WorkerId::from_raw(worker), update)?)
    })
}

/// Sets or lifts vetoes of an active worker; the others' stay.
///
/// Parameters: pool. worker. who: ek_veto bits, at least one. on: 1 sets them, 0 lifts them.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_INVALID; EK_ERR_BUSY.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_veto(
    pool: *mut ek_pool,
    worker: ek_worker_id,
    who: u32,
    on: u32,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let who = convert::vetoes("who", who)?;
        if who == Vetoes::NONE {
            return Err(Failed::invalid("who", 0, "at least one ek_veto bit"));
        }
        Ok(pool.0.veto(WorkerId::from_raw(worker), who, convert::flag("on", on)?)?)
    })
}

/// Takes an active worker out: no dispatch that starts after this returns ends up on it, its
/// requests end as always, and with the last of them its slot is vacant.
///
/// Parameters: pool. worker.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_BUSY.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_remove(pool: *mut ek_pool, worker: ek_worker_id) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        Ok(pool.0.remove(WorkerId::from_raw(worker))?)
    })
}

/// Drops a worker, active or draining, with its counts. Its tickets are stale from then on.
///
/// Parameters: pool. worker.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_BUSY.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_abandon(pool: *mut ek_pool, worker: ek_worker_id) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        Ok(pool.0.abandon(WorkerId::from_raw(worker))?)
    })
}

/// The active worker of a key.
///
/// Parameters: pool. key. out_worker: gets the id.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_UNKNOWN; EK_ERR_BUSY.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: may block.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_pool_find(
    pool: *const ek_pool,
    key: u64,
    out_worker: Option<&mut MaybeUninit<ek_worker_id>>,
) -> i32 {
    status(|| {
        // SAFETY: NULL or a pool.
        let pool = unsafe { object(pool, "pool") }?;
        let out_worker = required(out_worker, "out_worker")?;
        out_worker.write(pool.0.find(key)?.raw());
        Ok(())
    })
}
