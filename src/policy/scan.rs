//! What the policies that look at every worker share: the scan, and what it compares.

use super::{Choice, Rng, Scope, below, compare_by_weight, count, nth, with_set};
use crate::error::Refusal;
use crate::id::WorkerId;
use crate::snapshot::View;
use crate::sync::{self, AtomicU64, Ordering::Relaxed};
use crate::word::Word;
use crate::worker::Slot;
use std::cmp::Ordering;

/// A value relative to a weight.
#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) value: u64,
    pub(super) weight: u64,
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        compare_by_weight((self.value, self.weight), (other.value, other.weight))
    }
}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Share {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Share {}

/// The requests that there would be with this one: workers without any would tie at any weights.
pub(super) fn requests_share(word: Word, weight: u64) -> Share {
    Share { value: u64::from(word.in_flight()) + 1, weight }
}

/// A worker of the least rank, each equally likely; `rank` goes by position, polled tokens and word,
/// and `narrow` may take some out of the tied set, which starts at the position that it is given.
///
/// Scans until the chosen worker still ranks as the best did in the scan. Counts that only grow
/// then can't have left another worker below it: for least_requests max − min stays ≤ 1.
pub(super) fn scan<R: Ord + Copy>(
    scope: Scope<'_>,
    rank: impl Fn(usize, u64, Word) -> R,
    rng: &mut Rng,
    narrow: impl Fn(usize, &mut [u64]),
) -> Result<Choice, Refusal> {
    with_set(scope.view.len(), |tied| scan_with(scope, rank, rng, narrow, tied))
}

fn scan_with<R: Ord + Copy>(
    scope: Scope<'_>,
    rank: impl Fn(usize, u64, Word) -> R,
    rng: &mut Rng,
    narrow: impl Fn(usize, &mut [u64]),
    tied: &mut [u64],
) -> Result<Choice, Refusal> {
    let (ids, tokens) = scope.view.ids_and_tokens();
    loop {
        let mut best: Option<R> = None;
        let mut refusal = Refusal::Empty;
        // The sets before this one are of a worse rank.
        let mut from = 0;
        for (at, ((ids, tokens), set)) in
            ids.chunks(64).zip(tokens.chunks(64)).zip(&mut *tied).enumerate()
        {
            let mut members = 0;
            for (bit, (id, tokens)) in ids.iter().zip(tokens).enumerate() {
                let position = at * 64 + bit;
                match scope.eligible_as(position, WorkerId::from_raw(id.load(Relaxed))) {
                    Ok(word) => {
                        let tokens = scope.view.unless_expired(position, tokens.load(Relaxed));
                        let rank = rank(position, tokens, word);
                        match best.map_or(Ordering::Less, |best| rank.cmp(&best)) {
                            Ordering::Less => {
                                best = Some(rank);
                                from = at;
                                members = 1 << bit;
                            }
                            Ordering::Equal => members |= 1 << bit,
                            Ordering::Greater => {}
                        }
                    }
                    Err(reason) => refusal = refusal.max(reason),
                }
            }
            *set = members;
        }
        let tied = &mut tied[from..];
        narrow(from * 64, tied);
        let Some(chosen) = draw(tied, rng) else {
            return Err(refusal);
        };
        let position = from * 64 + chosen;
        if !scope.counting {
            // Advice: nobody exchanges the word.
            return Ok(Choice { position, word: Word(0) });
        }
        if let Ok(word) = scope.eligible(position)
            && Some(rank(position, scope.view.tokens(position), word)) == best
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

/// As [`scan`], of workers of equal weight, in half of its steps a worker, if one is eligible. `rank`
/// goes by position, id, polled tokens and word. It is one number, in which the
/// [standing](Word::standing) has a part, so that an open worker's is no closed one's.
#[inline(always)]
pub(super) fn scan_equal(
    scope: Scope<'_>,
    rng: &mut Rng,
    rank: impl Fn(usize, WorkerId, u64, Word) -> u128 + Copy,
) -> Option<Choice> {
    with_set(scope.view.len(), |tied| match scope.allowed.is_none() && !scope.view.is_capped() {
        true => scan_equal_with::<true>(scope, rng, rank, tied),
        false => scan_equal_with::<false>(scope, rng, rank, tied),
    })
}

/// ALL: no list and no cap leaves anyone out.
fn scan_equal_with<const ALL: bool>(
    scope: Scope<'_>,
    rng: &mut Rng,
    rank: impl Fn(usize, WorkerId, u64, Word) -> u128 + Copy,
    tied: &mut [u64],
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
            let some =
                Some64 { view, from: at * 64, ids, tokens, allowed, counting: scope.counting };
            *set = best_of_64::<ALL>(some, rank, &mut best);
            if best != before {
                from = at;
            }
        }
        let tied = &tied[from..];
        let position = from * 64 + draw(tied, rng)?;
        let id = view.id(position);
        let slot = view.slot(id)?;
        let word = slot.glance();
        let as_before = || {
            rank(position, id, view.tokens(position), word) == best
                && has_place::<ALL>(view, slot, word)
        };
        if !scope.counting || as_before() {
            return Some(Choice { position, word });
        }
        sync::retry();
    }
}

/// At most 64 workers of a view.
#[derive(Clone, Copy)]
struct Some64<'a> {
    view: View<'a>,
    from: usize,
    ids: &'a [AtomicU64],
    tokens: &'a [AtomicU64],
    /// A bit each.
    allowed: u64,
    counting: bool,
}

/// The eligible ones that are as good as the best, a bit each: the best so far, or a better one
/// among these. A function of its own, so that all it needs stays in registers.
#[inline(never)]
fn best_of_64<const ALL: bool>(
    some: Some64<'_>,
    rank: impl Fn(usize, WorkerId, u64, Word) -> u128,
    best: &mut u128,
) -> u64 {
    let Some64 { view, from, ids, tokens, allowed, counting } = some;
    let mut least = *best;
    let mut members = 0;
    for (bit, (id, tokens)) in ids.iter().zip(tokens).enumerate() {
        let id = WorkerId::from_raw(id.load(Relaxed));
        let Some(slot) = view.slot(id) else { continue };
        let word = slot.glance();
        let rank = rank(from + bit, id, tokens.load(Relaxed), word);
        if (rank >> 64) as u64 > (least >> 64) as u64 {
            continue;
        }
        if !ALL && (allowed >> bit & 1 == 0 || counting && !has_place::<ALL>(view, slot, word)) {
            continue;
        }
        if rank == least {
            members |= 1 << bit;
        } else if rank < least && word.is_open(id.generation()) {
            least = rank;
            members = 1 << bit;
        }
    }
    *best = least;
    members
}

/// ALL: no worker has a cap.
#[inline(always)]
fn has_place<const ALL: bool>(view: View<'_>, slot: Slot<'_>, word: Word) -> bool {
    ALL || word.in_flight() < view.cap(slot)
}
