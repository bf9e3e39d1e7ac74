//! The border with C: the functions, structs and numbers that include/evenkeel.h is made of.
//!
//! The header's conventions are the contract of every function here, and the reason why its unsafe
//! steps are sound: a pointer that isn't NULL points to what its type says, for the whole call.
//! The rest of the crate's unsafe code is in [`crate::region`] and [`crate::sync`].

// The header's names.
#![allow(non_camel_case_types)]

mod convert;
mod error;
mod growing;
mod pool;
mod reports;
mod requests;
mod statistics;
#[cfg(test)]
mod tests;
mod types;

use crate::id::{self, WorkerId};
use crate::policy::Policy;
use error::{Failed, fenced, status};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ptr;

/// What may be used by several threads.
///
/// # Safety
/// It is NULL, or points to a `T` for as long as the result is used.
#[inline]
unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failed> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failed::null(what))
}

/// An object of one thread, or an `out_…` of the caller's.
#[inline]
fn required<'a, T>(given: Option<&'a mut T>, what: &str) -> Result<&'a mut T, Failed> {
    given.ok_or_else(|| Failed::null(what))
}

/// The library's version, as "0.1.0".
///
/// Returns: the version. Never NULL.
/// Ownership: the text is a constant.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ek_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The number of the library's ABI, apart from its version: programs that were compiled with a
/// header of this number (EK_ABI_VERSION) work with it.
///
/// Returns: the number.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ek_abi_version() -> u32 {
    types::EK_ABI_VERSION
}

/// A number that names a label: 64-bit FNV-1a of its bytes as given. Never changes.
///
/// Parameters: label: a string of any length, UTF-8 or not.
/// Returns: the key; 0 for NULL. Any number may be a key, so check label, not the result.
/// Ownership: nothing is kept.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_key(label: *const c_char) -> u64 {
    let key = || {
        if label.is_null() {
            return 0;
        }
        // SAFETY: not NULL, so a string.
        id::key_of_bytes(unsafe { CStr::from_ptr(label) }.to_bytes())
    };
    fenced(key, |_| 0)
}

/// The slot of a worker: a dense number below the pool's capacity, for the host's own object in an
/// array. It goes to another worker once this one is gone.
///
/// Parameters: worker: an id that a pool gave; others give a number below 65,536.
/// Returns: the slot.
/// Ownership: none.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ek_worker_slot(worker: types::ek_worker_id) -> u32 {
    WorkerId::from_raw(worker).slot() as u32
}

/// The policy of a name.
///
/// Parameters: name: round_robin, random, power_of_two:tokens, power_of_two:requests,
/// least_requests, or power_of_two, which means power_of_two:tokens. out_policy: gets the
/// ek_policy.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for any other name.
/// Ownership: nothing is kept.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_policy_parse(
    name: *const c_char,
    out_policy: Option<&mut MaybeUninit<u32>>,
) -> i32 {
    status(|| {
        if name.is_null() {
            return Err(Failed::null("name"));
        }
        let out_policy = required(out_policy, "out_policy")?;
        // SAFETY: not NULL, so a string.
        let name = unsafe { convert::text("policy", name) }?;
        out_policy.write(name.parse::<Policy>()? as u32);
        Ok(())
    })
}

/// The policy that the environment variable SGLANG_ROUTER_P2C_LOAD_METRIC asks for: tokens (also if
/// it is unset), requests or least_requests. Nothing else reads the variable.
///
/// Parameters: out_policy: gets the ek_policy.
/// Returns: EK_OK; EK_ERR_NULL; EK_ERR_INVALID for any other value of the variable.
/// Ownership: none.
/// Thread safety: any thread, as long as none changes the environment.
/// Progress: allocates.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ek_policy_from_env(out_policy: Option<&mut MaybeUninit<u32>>) -> i32 {
    status(|| {
        required(out_policy, "out_policy")?.write(Policy::from_env()? as u32);
        Ok(())
    })
}

/// The name of a policy, as ek_policy_parse takes it.
///
/// Parameters: policy: any number.
/// Returns: the name; NULL for EK_POLICY_DEFAULT and for a number that is none.
/// Ownership: the name is a constant.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ek_policy_name(policy: u32) -> *const c_char {
    let name = Policy::from_number(policy).map(|policy| match policy {
        Policy::RoundRobin => c"round_robin",
        Policy::Random => c"random",
        Policy::PowerOfTwoTokens => c"power_of_two:tokens",
        Policy::PowerOfTwoRequests => c"power_of_two:requests",
        Policy::LeastRequests => c"least_requests",
        Policy::LeastTokens => c"least_tokens",
        Policy::Balanced => c"balanced",
        Policy::ConsistentHashing => c"consistent_hashing",
    });
    name.map_or(ptr::null(), CStr::as_ptr)
}
