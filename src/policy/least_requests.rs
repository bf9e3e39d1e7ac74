//! `least_requests`: the fewest requests in flight over all eligible workers.

use super::{Choice, Rng, Scope, Tuning, below, compare_by_weight, contains, count, nth, with_set};
use crate::error::Refusal;
use crate::id::WorkerId;
use crate::snapshot::{NO_LOAD, View};
use crate::sync::{self, AtomicU64, Ordering::Relaxed};
use crate::word::Word;
use std::cmp::Ordering;

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
    with_set(scope.view.len(), |tied| match unreported_compete {
        false => scan::<ByWeight<false>>(scope, tied, rng),
        true => scan::<ByWeight<true>>(scope, tied, rng),
    })
}

/// What workers are compared by; less is better.
trait Rank: Copy {
    /// Worse than any worker's.
    const LAST: Self;
    fn of(scope: &Scope<'_>, position: usize, tokens: u64, word: Word) -> Self;
    fn compare(self, other: Self) -> Ordering;
    /// Breaks those ties that need to know all that are tied. The set starts at position `from`.
    fn narrow(_scope: &Scope<'_>, _from: usize, _tied: &mut [u64]) {}
}

#[derive(Clone, Copy)]
struct ByWeight<const UNREPORTED_COMPETE: bool> {
    unreported: bool,
    requests: u64,
    tokens: u64,
    weight: u64,
}

impl<const UNREPORTED_COMPETE: bool> Rank for ByWeight<UNREPORTED_COMPETE> {
    const LAST: Self = Self { unreported: true, requests: u64::MAX, tokens: 0, weight: 1 };

    fn of(scope: &Scope<'_>, position: usize, tokens: u64, word: Word) -> Self {
        Self {
            unreported: tokens == NO_LOAD && !UNREPORTED_COMPETE,
            requests: u64::from(word.in_flight()) + 1,
            // Where the unreported compete, tokens break a tie only if all in it have a load.
            tokens: if UNREPORTED_COMPETE || tokens == NO_LOAD { 0 } else { tokens },
            weight: scope.view.weight(position),
        }
    }

    fn compare(self, other: Self) -> Ordering {
        let by_weight = |a: u64, b: u64| compare_by_weight((a, self.weight), (b, other.weight));
        self.unreported
            .cmp(&other.unreported)
            .then_with(|| by_weight(self.requests, other.requests))
            .then_with(|| by_weight(self.tokens, other.tokens))
    }

    fn narrow(scope: &Scope<'_>, from: usize, tied: &mut [u64]) {
        if UNREPORTED_COMPETE {
            keep_fewest_tokens(scope, from, tied);
        }
    }
}

/// Keeps the tied workers with the fewest polled tokens, if all of them have a load.
fn keep_fewest_tokens(scope: &Scope<'_>, from: usize, tied: &mut [u64]) {
    let tokens = |at: usize| (scope.view.tokens(from + at), scope.view.weight(from + at));
    let members = || 0..scope.view.len() - from;
    let mut fewest = None;
    for at in members().filter(|&at| contains(tied, at)) {
        let tokens = tokens(at);
        if tokens.0 == NO_LOAD {
            return;
        }
        if fewest.is_none_or(|fewest| compare_by_weight(tokens, fewest) == Ordering::Less) {
            fewest = Some(tokens);
        }
    }
    let Some(fewest) = fewest else {
        return;
    };
    for at in members() {
        if compare_by_weight(tokens(at), fewest) != Ordering::Equal {
            tied[at / 64] &= !(1 << (at % 64));
        }
    }
}

/// Scans until the chosen worker still ranks as the best did in the scan. Counts that only grow
/// then can't have left another worker below it: dispatches keep max − min ≤ 1.
fn scan<R: Rank>(scope: Scope<'_>, tied: &mut [u64], rng: &mut Rng) -> Result<Choice, Refusal> {
    let (ids, tokens) = scope.view.ids_and_tokens();
    loop {
        let mut best = R::LAST;
        let mut refusal = Refusal::Empty;
        // The sets before this one are of a worse rank.
        let mut from = 0;
        for (at, ((ids, tokens), set)) in
            ids.chunks(64).zip(tokens.chunks(64)).zip(&mut *tied).enumerate()
        {
            let mut members = 0;
            for (bit, (id, tokens)) in ids.iter().zip(tokens).enumerate() {
                let position = at * 64 + bit;
                let id = WorkerId::from_raw(id.load(Relaxed));
                match scope.eligible_as(position, id) {
                    Ok(word) => {
                        let tokens = scope.view.unless_expired(position, tokens.load(Relaxed));
                        let rank = R::of(&scope, position, tokens, word);
                        let order = rank.compare(best);
                        if order == Ordering::Equal {
                            members |= 1 << bit;
                        } else if order == Ordering::Less {
                            best = rank;
                            from = at;
                            members = 1 << bit;
                        }
                    }
                    Err(reason) => refusal = refusal.max(reason),
                }
            }
            *set = members;
        }
        let tied = &mut tied[from..];
        R::narrow(&scope, from * 64, tied);
        let Some(chosen) = draw(tied, rng) else {
            return Err(refusal);
        };
        let position = from * 64 + chosen;
        if !scope.counting {
            // Advice: nobody exchanges the word.
            return Ok(Choice { position, word: Word(0) });
        }
        if let Ok(word) = scope.eligible(position)
            && R::of(&scope, position, scope.view.tokens(position), word).compare(best)
                == Ordering::Equal
        {
            return Ok(Choice { position, word });
        }
        sync::retry();
    }
}

/// One of the set's members, each equally likely.
#[inline]
fn draw(set: &[u64], rng: &mut Rng) -> Option<usize> {
    match count(set) {
        0 => None,
        1 => Some(nth(set, 0)),
        count => Some(nth(set, below(rng, count))),
    }
}
