//! `balanced`: the smallest step over all eligible workers, where a request more costs as much as
//! `request_tokens` tokens more.

use super::scan::{Share, scan, scan_equal};
use super::{Choice, Rng, Scope, Tuning};
use crate::error::Refusal;
use crate::snapshot::{NO_LOAD, live_tokens};
use crate::sync::Ordering::Relaxed;
use crate::word::{STATE_MASK, Word};

/// Of workers of equal weight, if one is eligible.
#[inline(always)]
pub(super) fn cheapest(scope: Scope<'_>, rng: &mut Rng) -> Option<Choice> {
    let Tuning { request_tokens, unreported_compete, .. } = Tuning::of(scope.view.region());
    if unreported_compete {
        return None;
    }
    // Whether there is no load, the cost, and what only eligible workers have none of.
    let marks = scope.view.marks();
    scan_equal(scope, rng, move |position, id, polled, word| {
        let live = live_tokens(polled, marks[position].load(Relaxed), word);
        let standing = word.standing(id.generation());
        let cost = cost(word, request_tokens, live);
        u128::from(polled == NO_LOAD) << 127
            | u128::from(cost) << 32
            | u128::from(standing & STATE_MASK)
    })
}

/// With the request that is to come.
#[inline]
fn cost(word: Word, request_tokens: u32, live_tokens: u64) -> u64 {
    // Requests have 20 bits, request_tokens 32.
    ((u64::from(word.in_flight()) + 1) * u64::from(request_tokens)).saturating_add(live_tokens)
}

pub(super) fn choose(
    scope: Scope<'_>,
    Tuning { request_tokens, unreported_compete, .. }: Tuning,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    let rank = |position, tokens, word: Word| {
        let live = scope.view.live_tokens(position, tokens, word);
        let weight = scope.view.weight(position);
        let value = cost(word, request_tokens, live);
        (tokens == NO_LOAD && !unreported_compete, Share { value, weight })
    };
    scan(scope, rank, rng, |_, _| {})
}
