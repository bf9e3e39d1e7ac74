//! `least_requests`: the fewest requests in flight over all eligible workers.

use super::scan::{Share, requests_share, scan, scan_equal};
use super::{Choice, Rng, Scope, Tuning, contains};
use crate::error::Refusal;
use crate::snapshot::NO_LOAD;
use crate::word::Word;

/// Of workers of equal weight, if one is eligible.
#[inline(always)]
pub(super) fn fewest(scope: Scope<'_>, rng: &mut Rng) -> Option<Choice> {
    if Tuning::of(scope.view.region()).unreported_compete {
        return None;
    }
    // Whether there is no load, requests, and tokens.
    scan_equal(scope, rng, |_, id, polled, word| {
        let unreported = u64::from(polled == NO_LOAD) << 63;
        u128::from(unreported | word.standing(id.generation())) << 64 | u128::from(polled)
    })
}

pub(super) fn choose(
    scope: Scope<'_>,
    unreported_compete: bool,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    let rank = |position, tokens, word: Word| {
        let weight = scope.view.weight(position);
        // Where the unreported compete, tokens break a tie only if all in it have a load.
        let counts = !unreported_compete && tokens != NO_LOAD;
        (
            tokens == NO_LOAD && !unreported_compete,
            requests_share(word, weight),
            Share { value: if counts { tokens } else { 0 }, weight },
        )
    };
    scan(scope, rank, rng, |from, tied| {
        if unreported_compete {
            keep_fewest_tokens(&scope, from, tied);
        }
    })
}

/// Keeps the tied workers with the fewest polled tokens, if all of them have a load.
fn keep_fewest_tokens(scope: &Scope<'_>, from: usize, tied: &mut [u64]) {
    let share = |at: usize| {
        let (value, weight) = (scope.view.tokens(from + at), scope.view.weight(from + at));
        (value != NO_LOAD).then_some(Share { value, weight })
    };
    let members = || 0..scope.view.len() - from;
    let shares = members().filter(|&at| contains(tied, at)).map(share);
    // None is less than any.
    let Some(Some(fewest)) = shares.min() else {
        return;
    };
    for at in members() {
        if share(at) != Some(fewest) {
            tied[at / 64] &= !(1 << (at % 64));
        }
    }
}
