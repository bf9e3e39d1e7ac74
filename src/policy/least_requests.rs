//! `least_requests`: the fewest requests in flight over all eligible workers.

use super::scan::{Share, draw, requests_share, scan};
use super::{Choice, Rng, Scope, Tuning, contains, with_set};
use crate::error::Refusal;
use crate::id::WorkerId;
use crate::snapshot::{NO_LOAD, View};
use crate::sync::{self, AtomicU64, Ordering::Relaxed};
use crate::word::Word;

/// Of workers of equal weight, if one is eligible.
#[inline(always)]
pub(super) fn fewest(scope: Scope<'_>, rng: &mut Rng) -> Option<Choice> {
    if Tuning::of(scope.view.region()).unreported_compete {
        return None;
    }
    with_set(scope.view.len(), |tied| match scope.allowed.is_none() && !scope.view.is_capped() {
        true => scan_equal::<true>(scope, tied, rng),
        false => scan_equal::<false>(scope, tied, rng),
    })
}

/// As [`scan`], in half of its steps a worker. ALL: no list and no cap leaves anyone out.
fn scan_equal<const ALL: bool>(
    scope: Scope<'_>,
    tied: &mut [u64],
    rng: &mut Rng,
) -> Option<Choice> {
    let view = scope.view;
    let (ids, tokens) = view.ids_and_tokens();
    loop {
        let mut best = u128::MAX;
        // The sets before this one are of a worse rank.
        let mut from = 0;
        for (at, ((ids, tokens), set)) in
            ids.chunks(64).zip(tokens.chunks(64)).zip(&mut *tied).enumerate()
        {
            let before = best;
            let allowed = scope.allowed.map_or(u64::MAX, |set| set[at]);
            *set = best_of_64::<ALL>(view, ids, tokens, (allowed, scope.counting), &mut best);
            if best != before {
                from = at;
            }
        }
        let tied = &tied[from..];
        let position = from * 64 + draw(tied, rng)?;
        let id = view.id(position);
        let word = view.slot(id)?.glance();
        if !scope.counting || equal_rank(word, id, view.tokens(position)) == best {
            return Some(Choice { position, word });
        }
        sync::retry();
    }
}

/// What workers of equal weight are compared by, in one number: whether there is no load, requests,
/// and tokens; less is better. Equal to an eligible worker's is only another eligible one's.
#[inline(always)]
fn equal_rank(word: Word, id: WorkerId, tokens: u64) -> u128 {
    let unreported = u64::from(tokens == NO_LOAD) << 63;
    u128::from(unreported | word.standing(id.generation())) << 64 | u128::from(tokens)
}

/// The eligible ones that are as good as the best, a bit each: the best so far, or a better one
/// among these. A function of its own, so that all it needs stays in registers.
#[inline(never)]
fn best_of_64<const ALL: bool>(
    view: View<'_>,
    ids: &[AtomicU64],
    tokens: &[AtomicU64],
    (allowed, counting): (u64, bool),
    best: &mut u128,
) -> u64 {
    let mut fewest = *best;
    let mut members = 0;
    for (bit, (id, tokens)) in ids.iter().zip(tokens).enumerate() {
        let id = WorkerId::from_raw(id.load(Relaxed));
        let Some(slot) = view.slot(id) else { continue };
        let word = slot.glance();
        let rank = equal_rank(word, id, tokens.load(Relaxed));
        if (rank >> 64) as u64 > (fewest >> 64) as u64 {
            continue;
        }
        let full = || counting && word.in_flight() >= view.cap(slot);
        if !ALL && (allowed >> bit & 1 == 0 || full()) {
            continue;
        }
        if rank == fewest {
            members |= 1 << bit;
        } else if rank < fewest && word.is_open(id.generation()) {
            fewest = rank;
            members = 1 << bit;
        }
    }
    *best = fewest;
    members
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
