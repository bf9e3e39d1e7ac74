//! What the policies that look at every worker share: the scan, and what it compares.

use super::{Choice, Rng, Scope, below, compare_by_weight, count, nth, with_set};
use crate::error::Refusal;
use crate::id::WorkerId;
use crate::sync::{self, Ordering::Relaxed};
use crate::word::Word;
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
pub(super) fn draw(set: &[u64], rng: &mut Rng) -> Option<usize> {
    match count(set) {
        0 => None,
        1 => Some(nth(set, 0)),
        count => Some(nth(set, below(rng, count))),
    }
}
