//! `least_tokens`: the fewest live tokens over all eligible workers.

use super::scan::{Share, requests_share, scan, scan_equal};
use super::{Choice, Rng, Scope, Tuning};
use crate::error::Refusal;
use crate::snapshot::{NO_LOAD, live_tokens};
use crate::sync::Ordering::Relaxed;
use crate::word::Word;

/// Of workers of equal weight, if one is eligible.
#[inline(always)]
pub(super) fn fewest(scope: Scope<'_>, rng: &mut Rng) -> Option<Choice> {
    if Tuning::of(scope.view.region()).unreported_compete {
        return None;
    }
    // Whether there is no load, live tokens, and requests.
    let marks = scope.view.marks();
    scan_equal(scope, rng, move |position, id, polled, word| {
        let live = live_tokens(polled, marks[position].load(Relaxed), word);
        let standing = word.standing(id.generation());
        u128::from(polled == NO_LOAD) << 127 | u128::from(live) << 32 | u128::from(standing)
    })
}

pub(super) fn choose(
    scope: Scope<'_>,
    unreported_compete: bool,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    let rank = |position, tokens, word: Word| {
        let weight = scope.view.weight(position);
        (
            tokens == NO_LOAD && !unreported_compete,
            Share { value: scope.view.live_tokens(position, tokens, word), weight },
            requests_share(word, weight),
        )
    };
    scan(scope, rank, rng, |_, _| {})
}
