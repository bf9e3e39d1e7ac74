//! `power_of_two`: the better of two distinct uniform draws, or of `choices`.

use super::{Candidate, Draw, Rng, Scope, compare_by_weight};
use crate::error::Refusal;
use crate::snapshot::NO_LOAD;
use rand_xoshiro::rand_core::Rng as _;
use std::cmp::Ordering;

/// Pairs drawn before looking at every worker. A pair is drawn anew as a whole, so each pair of
/// eligible workers stays equally likely, and so it is in what follows.
const DRAWS: u32 = 4;

#[inline]
pub(super) fn choose<'a, const TOKENS_FIRST: bool>(
    scope: &Scope<'a, '_>,
    choices: u32,
    rng: &mut Rng,
) -> Result<Candidate<'a>, Refusal> {
    let len = scope.view.len();
    if choices == 2 && len >= 2 {
        for _ in 0..DRAWS {
            let (first, second) = two_below(rng, len);
            if let (Ok(first), Ok(second)) = (scope.draw(first), scope.draw(second)) {
                let loaded = first.tokens != NO_LOAD && second.tokens != NO_LOAD;
                let better = compare::<TOKENS_FIRST>(&second, &first, loaded) == Ordering::Less;
                return Ok(if better { second.candidate } else { first.candidate });
            }
        }
    }
    best_of::<TOKENS_FIRST>(scope, choices, rng)
}

/// Two distinct positions, each ordered pair equally likely to within len² / 2⁶⁴: the first is the
/// whole part of a fraction times `len`, the second comes from what is left of it.
#[inline]
fn two_below(rng: &mut Rng, len: usize) -> (usize, usize) {
    let scaled = u128::from(rng.next_u64()) * len as u128;
    let first = (scaled >> 64) as usize;
    let other = (u128::from(scaled as u64) * (len - 1) as u128 >> 64) as usize;
    (first, other + usize::from(other >= first))
}

#[cold]
fn best_of<'a, const TOKENS_FIRST: bool>(
    scope: &Scope<'a, '_>,
    choices: u32,
    rng: &mut Rng,
) -> Result<Candidate<'a>, Refusal> {
    // Whether tokens count is known only when all are drawn, so both winners are kept.
    let mut loaded = true;
    let mut with_tokens: Option<Draw<'a>> = None;
    let mut without: Option<Draw<'a>> = None;
    scope.draw_distinct(choices, rng, |draw| {
        loaded &= draw.tokens != NO_LOAD;
        for (best, loaded) in [(&mut with_tokens, true), (&mut without, false)] {
            let better =
                |best: &Draw<'_>| compare::<TOKENS_FIRST>(&draw, best, loaded) == Ordering::Less;
            if best.as_ref().is_none_or(better) {
                *best = Some(draw);
            }
        }
    })?;
    let best = if loaded { with_tokens } else { without };
    best.map(|draw| draw.candidate).ok_or(Refusal::Empty)
}

/// Tokens and requests by weight, in this order or the other; tokens only if every draw has a load.
#[inline]
fn compare<const TOKENS_FIRST: bool>(a: &Draw<'_>, b: &Draw<'_>, loaded: bool) -> Ordering {
    let requests = || {
        let of = |draw: &Draw<'_>| (u64::from(draw.candidate.word.in_flight()) + 1, draw.weight);
        compare_by_weight(of(a), of(b))
    };
    let tokens = || match loaded {
        true => compare_by_weight((a.tokens, a.weight), (b.tokens, b.weight)),
        false => Ordering::Equal,
    };
    if TOKENS_FIRST { tokens().then_with(requests) } else { requests().then_with(tokens) }
}
