//! `round_robin`: the next eligible slot after the last chosen one, whoever chose it.

use super::{Choice, Rng, Scope};
use crate::error::Refusal;
use crate::region::header;
use crate::sync::{self, Ordering};
use rand_xoshiro::rand_core::Rng as _;

/// Set until the first choice; the bits below are then random and say where to start, as a
/// fraction of however many workers there are.
const UNSTARTED: u64 = 1 << 32;
/// A pick that lost the cursor this often returns what it found and leaves the cursor where it is.
const PICK_TRIES: u32 = 64;

pub(crate) fn unstarted_cursor(rng: &mut Rng) -> u64 {
    UNSTARTED | u64::from(rng.next_u32())
}

// Relaxed throughout: the cursor is one word, and nothing else belongs to it.

/// The very next slot, if it is eligible and others let go of the cursor soon.
#[inline(always)]
pub(super) fn next(scope: Scope<'_>) -> Option<Choice> {
    const TRIES: u32 = 8;
    let cursor = scope.view.region().header(header::CURSOR);
    let mut last = cursor.load(Ordering::Relaxed);
    for _ in 0..TRIES {
        if last & UNSTARTED != 0 {
            return None;
        }
        let after = scope.view.after(last as usize);
        let found = scope.draw(if after < scope.view.len() { after } else { 0 }).ok()?;
        let next = scope.view.id(found.position).slot() as u64;
        match cursor.compare_exchange(last, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(found),
            Err(now) => last = now,
        }
        sync::retry();
    }
    None
}

pub(super) fn choose(scope: Scope<'_>) -> Result<Choice, Refusal> {
    let cursor = scope.view.region().header(header::CURSOR);
    let mut tries = 0;
    let mut last = cursor.load(Ordering::Relaxed);
    loop {
        let start = match last & UNSTARTED {
            0 => scope.view.after(last as usize),
            _ => (((last & (UNSTARTED - 1)) * scope.view.len() as u64) >> 32) as usize,
        };
        let found = scope.first_from(start)?;
        let next = scope.view.id(found.position).slot() as u64;
        match cursor.compare_exchange(last, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Ok(found),
            Err(_) if !scope.counting && tries == PICK_TRIES => return Ok(found),
            Err(now) => last = now,
        }
        sync::retry();
        tries += 1;
    }
}
