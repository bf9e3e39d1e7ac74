//! What C programs can't provoke or see.

use super::convert::{pool_config, tuning, worker_config};
use super::error::{Failed, ek_error_message, ek_status, fenced, status};
use super::growing::Growing;
use super::types::*;
use super::{pool::*, reports::*, requests::*};
use crate::policy::{Policy, Request, Tuning};
use crate::pool::PoolConfig;
use crate::worker::{Vetoes, WorkerConfig};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::{ptr, thread};

fn made<T>(make: impl FnOnce(Option<&mut MaybeUninit<T>>) -> i32) -> T {
    let mut out = MaybeUninit::uninit();
    assert_eq!(make(Some(&mut out)), 0);
    // SAFETY: written, since the status is `EK_OK`.
    unsafe { out.assume_init() }
}

fn new_pool() -> *mut ek_pool {
    // SAFETY: NULL is a configuration.
    made(|out| unsafe { ek_pool_new(ptr::null(), out) })
}

fn last_error() -> String {
    let mut text = [1; 512];
    // SAFETY: as much room as said.
    assert_eq!(unsafe { ek_error_message(text.as_mut_ptr(), text.len()) }, 0);
    // SAFETY: it ends with NUL.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().expect("UTF-8").into()
}

/// Case 39.
#[test]
fn a_panic_is_a_status_and_the_pool_still_works() {
    let pool = new_pool();
    let panics = || -> Result<(), Failed> {
        // SAFETY: a pool.
        let pool = unsafe { super::object(pool, "pool") }?;
        let _writer = pool.0.writer()?;
        panic!("forced, with {} in it", "the writer lock");
    };
    assert_eq!(status(panics), ek_status::EK_ERR_PANIC as i32);
    assert_eq!(last_error(), "a fault inside evenkeel: forced, with the writer lock in it");
    assert_eq!(fenced(|| panic!("forced"), |_: Failed| 7), 7);
    assert_eq!(last_error(), "a fault inside evenkeel: forced");

    // SAFETY: a pool, and NULL is a configuration.
    let worker = made(|out| unsafe { ek_pool_add(pool, 1, ptr::null(), out) });
    // SAFETY: a pool, and NULL is a request.
    assert_eq!(made(|out| unsafe { ek_pool_pick(pool, ptr::null(), out) }), worker);
    // SAFETY: its only reference.
    unsafe { ek_pool_free(pool) };
}

#[test]
fn messages_are_cut_where_a_character_ends() {
    for before in 0..4 {
        Failed::new(
            ek_status::EK_ERR_INVALID,
            format_args!("{}{}", "x".repeat(before), "€".repeat(200)),
        );
        let kept = last_error();
        assert!(kept.ends_with('€') && (505..512).contains(&kept.len()), "{kept}");
    }
}

/// Case 47.
#[test]
fn the_last_of_pool_pickers_and_polls_frees_the_memory() {
    let pool = new_pool();
    // SAFETY: a pool.
    let memory =
        Arc::downgrade(&unsafe { super::object(pool, "pool") }.expect("not NULL").0.shared);
    // SAFETY: a pool, and NULL is a configuration.
    let worker = made(|out| unsafe { ek_pool_add(pool, 1, ptr::null(), out) });
    // SAFETY: a pool.
    let picker = made(|out| unsafe { ek_picker_new(pool, 0, out) });
    // SAFETY: a pool, and no ids are read.
    let poll = made(|out| unsafe { ek_poll_new(pool, ptr::null(), EK_ALL, out) });
    // SAFETY: a pool.
    assert_eq!(unsafe { ek_pool_ref(pool) }, 0);
    // SAFETY: the second reference.
    unsafe { ek_pool_free(pool) };
    // SAFETY: a pool, and NULL is a request.
    assert_eq!(made(|out| unsafe { ek_pool_pick(pool, ptr::null(), out) }), worker);
    // SAFETY: the last reference.
    unsafe { ek_pool_free(pool) };

    // They go on, each without the other.
    // SAFETY: a picker of this thread alone.
    let picking = unsafe { picker.as_mut() };
    // SAFETY: NULL is a request.
    let ticket = made(|out| unsafe { ek_picker_dispatch(picking, ptr::null(), out) });
    assert_eq!(ticket.worker, worker);
    // SAFETY: made by `ek_picker_new`, and not used again.
    unsafe { ek_picker_free(picker) };
    assert!(memory.upgrade().is_some());
    // SAFETY: a poll of this thread alone.
    let polling = unsafe { poll.as_mut() };
    assert_eq!(ek_poll_begin(polling), 0);
    // SAFETY: made by `ek_poll_new`, and not used again.
    unsafe { ek_poll_free(poll) };
    assert!(memory.upgrade().is_none());
}

#[test]
fn a_pool_that_is_being_changed_is_busy_and_still_chooses() {
    let pool = new_pool();
    // SAFETY: a pool, and NULL is a configuration.
    let worker = made(|out| unsafe { ek_pool_add(pool, 1, ptr::null(), out) });
    // SAFETY: a pool.
    let shared = unsafe { super::object(pool, "pool") }.expect("not NULL");
    let writer = shared.0.writer().expect("nobody else writes");
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let pool = ptr::from_ref(shared).cast_mut();
            let mut out = MaybeUninit::new(77);
            // SAFETY: a pool.
            assert_eq!(unsafe { ek_pool_remove(pool, worker) }, ek_status::EK_ERR_BUSY as i32);
            // SAFETY: a pool.
            let found = unsafe { ek_pool_find(pool, 1, Some(&mut out)) };
            assert_eq!(found, ek_status::EK_ERR_BUSY as i32);
            // SAFETY: written above, if not below.
            assert_eq!(unsafe { out.assume_init() }, 77);
        });
        while !waits.is_finished() {
            // SAFETY: a pool, and NULL is a request.
            assert_eq!(made(|out| unsafe { ek_pool_pick(pool, ptr::null(), out) }), worker);
        }
    });
    drop(writer);
    // SAFETY: a pool.
    assert_eq!(unsafe { ek_pool_remove(pool, worker) }, 0);
    // SAFETY: its only reference.
    unsafe { ek_pool_free(pool) };
}

#[test]
fn defaults_and_flags_are_the_core_s() {
    let request = ek_request::DEFAULT;
    // SAFETY: a request.
    assert_eq!(unsafe { super::convert::request(&request) }.expect("valid"), Request::default());
    let config = ek_pool_config::DEFAULT;
    // SAFETY: a configuration.
    assert_eq!(unsafe { pool_config(&config) }.expect("valid"), PoolConfig::default());
    let default = ek_tuning::DEFAULT;
    // SAFETY: a tuning.
    assert_eq!(unsafe { tuning(&default) }.expect("valid"), Tuning::default());
    let default = ek_worker_config::DEFAULT;
    // SAFETY: a configuration.
    assert_eq!(unsafe { worker_config(&default) }.expect("valid"), WorkerConfig::default());
    for policy in Policy::ALL {
        // SAFETY: a constant with NUL.
        let name = unsafe { CStr::from_ptr(super::ek_policy_name(policy as u32)) };
        assert_eq!(name.to_str(), Ok(policy.name()));
    }
    let bits = [ek_veto::EK_VETO_HOST, ek_veto::EK_VETO_HEALTH, ek_veto::EK_VETO_OPERATOR];
    let vetoes = [Vetoes::HOST, Vetoes::HEALTH, Vetoes::OPERATOR];
    assert_eq!(bits.map(|bit| bit as u32), vetoes.map(Vetoes::bits));
}
