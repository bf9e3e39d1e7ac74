//! `least_requests`: the fewest requests in flight over all eligible workers.

use super::{Candidate, Rng, Scope, below, compare_by_weight, contains, nth, with_set};
use crate::error::Refusal;
use crate::snapshot::NO_LOAD;
use crate::word::Word;
use std::cmp::Ordering;

#[inline]
pub(super) fn choose<'a>(
    scope: &Scope<'a, '_>,
    unreported_compete: bool,
    rng: &mut Rng,
) -> Result<Candidate<'a>, Refusal> {
    with_set(scope.view.len(), |tied| match scope.view.is_uniform() {
        true => scan::<false>(scope, unreported_compete, tied, rng),
        false => scan::<true>(scope, unreported_compete, tied, rng),
    })
}

/// What workers are compared by.
#[derive(Clone, Copy)]
struct Rank {
    /// Has no load where those that have one come first.
    unreported: bool,
    requests: u64,
    /// 0 where tokens don't break ties.
    tokens: u64,
    weight: u64,
}

impl Rank {
    /// Worse than any worker's.
    const LAST: Self =
        Self { unreported: true, requests: u64::MAX >> 20, tokens: u64::MAX, weight: 1 };

    #[inline]
    fn of<const WEIGHTED: bool>(
        scope: &Scope<'_, '_>,
        position: usize,
        word: Word,
        unreported_compete: bool,
    ) -> Self {
        let tokens = scope.view.tokens(position);
        Self {
            unreported: tokens == NO_LOAD && !unreported_compete,
            requests: u64::from(word.in_flight()) + 1,
            tokens: if tokens == NO_LOAD || unreported_compete { 0 } else { tokens },
            weight: if WEIGHTED { scope.view.weight(position) } else { 1 },
        }
    }

    #[inline]
    fn compare<const WEIGHTED: bool>(&self, other: &Self) -> Ordering {
        let requests = || match WEIGHTED {
            true => compare_by_weight((self.requests, self.weight), (other.requests, other.weight)),
            false => self.requests.cmp(&other.requests),
        };
        self.unreported
            .cmp(&other.unreported)
            .then_with(requests)
            .then_with(|| self.compare_tokens::<WEIGHTED>(other))
    }

    #[inline]
    fn compare_tokens<const WEIGHTED: bool>(&self, other: &Self) -> Ordering {
        match WEIGHTED {
            true => compare_by_weight((self.tokens, self.weight), (other.tokens, other.weight)),
            false => self.tokens.cmp(&other.tokens),
        }
    }
}

/// Scans until the chosen worker still ranks as the scan saw the best ones. Counts that only grow
/// then can't have left another worker below it (the exactness of DESIGN: dispatches keep
/// max − min ≤ 1).
fn scan<'a, const WEIGHTED: bool>(
    scope: &Scope<'a, '_>,
    unreported_compete: bool,
    tied: &mut [u64],
    rng: &mut Rng,
) -> Result<Candidate<'a>, Refusal> {
    loop {
        let mut best = Rank::LAST;
        let mut refusal = Refusal::Empty;
        // Sets before this one belong to a worse rank.
        let mut from = 0;
        for at in 0..tied.len() {
            let mut members = 0;
            for position in at * 64..scope.view.len().min(at * 64 + 64) {
                let candidate = match scope.eligible(position) {
                    Ok(candidate) => candidate,
                    Err(reason) => {
                        refusal = refusal.max(reason);
                        continue;
                    }
                };
                let rank =
                    Rank::of::<WEIGHTED>(scope, position, candidate.word, unreported_compete);
                match rank.compare::<WEIGHTED>(&best) {
                    Ordering::Greater => {}
                    Ordering::Equal => members |= 1 << (position % 64),
                    Ordering::Less => {
                        best = rank;
                        from = at;
                        members = 1 << (position % 64);
                    }
                }
            }
            tied[at] = members;
        }
        let tied = &mut tied[from..];
        if unreported_compete {
            keep_fewest_tokens::<WEIGHTED>(scope, from, tied);
        }
        let count = tied.iter().map(|members| members.count_ones() as usize).sum();
        let chosen = match count {
            0 => return Err(refusal),
            1 => nth(tied, 0),
            _ => nth(tied, below(rng, count)),
        };
        let position = from * 64 + chosen;
        if let Ok(candidate) = scope.eligible(position) {
            let rank = Rank::of::<WEIGHTED>(scope, position, candidate.word, unreported_compete);
            if rank.compare::<WEIGHTED>(&best) == Ordering::Equal || !scope.counting {
                return Ok(Candidate { exact: true, ..candidate });
            }
        }
    }
}

/// Breaks ties by polled tokens, if every tied worker has a load.
#[cold]
fn keep_fewest_tokens<const WEIGHTED: bool>(scope: &Scope<'_, '_>, from: usize, tied: &mut [u64]) {
    let tokens = |position: usize| Rank {
        tokens: scope.view.tokens(from * 64 + position),
        weight: if WEIGHTED { scope.view.weight(from * 64 + position) } else { 1 },
        ..Rank::LAST
    };
    let members = 0..scope.view.len() - from * 64;
    let mut best: Option<Rank> = None;
    for position in members.clone().filter(|&position| contains(tied, position)) {
        let rank = tokens(position);
        if rank.tokens == NO_LOAD {
            return;
        }
        if best.is_none_or(|best| rank.compare_tokens::<WEIGHTED>(&best) == Ordering::Less) {
            best = Some(rank);
        }
    }
    for position in members {
        if best.is_some_and(|best| {
            tokens(position).compare_tokens::<WEIGHTED>(&best) != Ordering::Equal
        }) {
            tied[position / 64] &= !(1 << (position % 64));
        }
    }
}
