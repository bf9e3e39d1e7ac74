//! `least_requests`: the fewest requests in flight over all eligible workers.

use super::{Choice, Rng, Scope, below, compare_by_weight, contains, nth, with_set};
use crate::error::Refusal;
use crate::id::WorkerId;
use crate::snapshot::NO_LOAD;
use crate::sync::Ordering::Relaxed;
use crate::word::Word;
use std::cmp::Ordering;

#[inline(always)]
pub(super) fn choose<const PLAIN: bool>(
    scope: Scope<'_>,
    unreported_compete: bool,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    let len = scope.view.len();
    match unreported_compete {
        false if PLAIN && scope.view.is_simple() => {
            with_set(len, |tied| scan::<Equal, true>(scope, tied, rng))
        }
        false => with_set(len, |tied| scan::<ByWeight<false>, false>(scope, tied, rng)),
        true => with_set(len, |tied| scan::<ByWeight<true>, false>(scope, tied, rng)),
    }
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

/// Of equal weights.
#[derive(Clone, Copy)]
struct Equal {
    /// Requests; all that have no load come after all that have one.
    requests: u64,
    tokens: u64,
}

impl Rank for Equal {
    const LAST: Self = Self { requests: u64::MAX, tokens: 0 };

    #[inline(always)]
    fn of(_: &Scope<'_>, _: usize, tokens: u64, word: Word) -> Self {
        let unreported = u64::from(tokens == NO_LOAD) << 63;
        Self { requests: unreported | u64::from(word.in_flight()), tokens }
    }

    #[inline(always)]
    fn compare(self, other: Self) -> Ordering {
        // Spelled out: chained `cmp`s cost a scan a third of its time.
        if self.requests != other.requests {
            return if self.requests < other.requests { Ordering::Less } else { Ordering::Greater };
        }
        if self.tokens == other.tokens {
            return Ordering::Equal;
        }
        if self.tokens < other.tokens { Ordering::Less } else { Ordering::Greater }
    }
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
fn scan<R: Rank, const SIMPLE: bool>(
    scope: Scope<'_>,
    tied: &mut [u64],
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    // The scan is too large to be inlined where this is known.
    let scope = match SIMPLE {
        true => Scope::plain(scope.view.assume_simple(), scope.counting),
        false => scope,
    };
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
        let count = tied.iter().map(|members| members.count_ones() as usize).sum();
        let chosen = match count {
            0 => return Err(refusal),
            1 => nth(tied, 0),
            _ => nth(tied, below(rng, count)),
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
    }
}
