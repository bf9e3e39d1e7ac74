//! `power_of_two`: the better of two distinct uniform draws, or of `choices`.

use super::{Choice, Rng, Scope, Tuning, compare_by_weight};
use crate::error::Refusal;
use crate::snapshot::NO_LOAD;
use rand_xoshiro::rand_core::Rng as _;
use std::cmp::Ordering;

/// Pairs drawn before looking at every worker. A pair is drawn anew as a whole, so each pair of
/// eligible workers stays equally likely, and so it is in what follows.
const DRAWS: u32 = 4;

#[inline(always)]
pub(super) fn choose<const TOKENS_FIRST: bool>(
    scope: Scope<'_>,
    choices: u32,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    let span = scope.span();
    if choices == 2 && span >= 2 {
        for _ in 0..DRAWS {
            if let Some((first, second)) = draw_two(&scope, span, rng) {
                let better = match scope.view.is_uniform() {
                    true => is_better::<TOKENS_FIRST>(&scope, second, first),
                    false => {
                        let both_loaded = has_load(&scope, first) && has_load(&scope, second);
                        compare::<TOKENS_FIRST>(&scope, second, first, both_loaded).is_lt()
                    }
                };
                return Ok(if better { second } else { first });
            }
        }
    }
    best_of::<TOKENS_FIRST>(scope, choices, rng)
}

/// Of one pair of equal weight, if both are eligible.
#[inline(always)]
pub(super) fn better_of_two<const TOKENS_FIRST: bool>(
    scope: Scope<'_>,
    rng: &mut Rng,
) -> Option<Choice> {
    let span = scope.span();
    if span < 2 || Tuning::of(scope.view.region()).choices != 2 {
        return None;
    }
    let (first, second) = draw_two(&scope, span, rng)?;
    Some(if is_better::<TOKENS_FIRST>(&scope, second, first) { second } else { first })
}

#[inline(always)]
fn draw_two(scope: &Scope<'_>, span: usize, rng: &mut Rng) -> Option<(Choice, Choice)> {
    let (first, second) = two_below(rng, span);
    Some((scope.draw_nth(first).ok()?, scope.draw_nth(second).ok()?))
}

/// Two distinct positions, each ordered pair equally likely to within len² / 2⁶⁴: the first is the
/// whole part of a fraction times `len`, the second comes from what is left of it.
#[inline]
fn two_below(rng: &mut Rng, len: usize) -> (usize, usize) {
    let scaled = u128::from(rng.next_u64()) * len as u128;
    let first = (scaled >> 64) as usize;
    let other = ((u128::from(scaled as u64) * (len - 1) as u128) >> 64) as usize;
    (first, other + usize::from(other >= first))
}

#[cold]
fn best_of<const TOKENS_FIRST: bool>(
    scope: Scope<'_>,
    choices: u32,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    // Whether tokens count is known only when all are drawn, so both winners are kept.
    let mut all_loaded = true;
    let mut with_tokens: Option<Choice> = None;
    let mut without: Option<Choice> = None;
    scope.draw_distinct(choices, rng, |drawn| {
        all_loaded &= has_load(&scope, drawn);
        for (best, loaded) in [(&mut with_tokens, true), (&mut without, false)] {
            let better =
                |best| compare::<TOKENS_FIRST>(&scope, drawn, best, loaded) == Ordering::Less;
            if best.is_none_or(better) {
                *best = Some(drawn);
            }
        }
    })?;
    let best = if all_loaded { with_tokens } else { without };
    best.ok_or(Refusal::Empty)
}

/// Whether `a` is better than `b`, which was drawn earlier and has the same weight.
#[inline(always)]
fn is_better<const TOKENS_FIRST: bool>(scope: &Scope<'_>, a: Choice, b: Choice) -> bool {
    let (requests_a, requests_b) = (a.word.in_flight(), b.word.in_flight());
    if !TOKENS_FIRST && requests_a != requests_b {
        return requests_a < requests_b;
    }
    let (tokens_a, tokens_b) = (scope.view.tokens(a.position), scope.view.tokens(b.position));
    if tokens_a == NO_LOAD || tokens_b == NO_LOAD || tokens_a == tokens_b {
        return requests_a < requests_b;
    }
    tokens_a < tokens_b
}

fn has_load(scope: &Scope<'_>, choice: Choice) -> bool {
    scope.view.tokens(choice.position) != NO_LOAD
}

/// Tokens and requests by weight, in this order or the other; tokens only if all draws have a load.
fn compare<const TOKENS_FIRST: bool>(
    scope: &Scope<'_>,
    a: Choice,
    b: Choice,
    all_loaded: bool,
) -> Ordering {
    let (weight_a, weight_b) = (scope.view.weight(a.position), scope.view.weight(b.position));
    let by_weight = |a: u64, b: u64| compare_by_weight((a, weight_a), (b, weight_b));
    let requests = by_weight(u64::from(a.word.in_flight()) + 1, u64::from(b.word.in_flight()) + 1);
    let tokens = match all_loaded {
        true => by_weight(scope.view.tokens(a.position), scope.view.tokens(b.position)),
        false => Ordering::Equal,
    };
    if TOKENS_FIRST { tokens.then(requests) } else { requests.then(tokens) }
}
