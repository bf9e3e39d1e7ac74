//! `consistent_hashing`: the eligible worker that a request's hash ranks first. Weighted rendezvous:
//! each worker draws a number from its key and the hash, and the least −log₂(draw) ÷ weight wins. A
//! worker's draws depend on nothing else, so that one that comes or goes moves only its own share.

use super::scan::{Share, scan, scan_equal};
use super::{Choice, Rng, Scope, Tuning};
use crate::error::Refusal;
use crate::sync::{self, Ordering};
use crate::word::{STATE_MASK, Word};
use std::cmp::Reverse;

/// Of workers of equal weight, if one is eligible and no bound is set.
#[inline(always)]
pub(super) fn first(scope: Scope<'_>, rng: &mut Rng) -> Option<Choice> {
    if Tuning::of(scope.view.region()).hash_load_factor > 0 {
        return None;
    }
    let (keys, hash) = (scope.view.region().keys(), scope.hash);
    // The draw, and what only eligible workers have none of. Two keys never draw the same.
    scan_equal(scope, rng, move |_, id, _, word| {
        let key = keys[id.slot()].load(Ordering::Relaxed);
        let state = word.standing(id.generation()) & STATE_MASK;
        u128::from(!draw(key, hash)) << 64 | u128::from(state)
    })
}

pub(super) fn choose(scope: Scope<'_>, tuning: Tuning, rng: &mut Rng) -> Result<Choice, Refusal> {
    let keys = scope.view.region().keys();
    loop {
        let bound = Bound::of(&scope, tuning.hash_load_factor);
        let rank = |position, _, word: Word| {
            let weight = scope.view.weight(position);
            // Relaxed: a slot's key changes only while its word is closed, so that a key that isn't this
            // worker's belongs to one that can't be chosen any more.
            let key = keys[scope.view.id(position).slot()].load(Ordering::Relaxed);
            let draw = draw(key, scope.hash);
            let share = Share { value: minus_log2(draw), weight };
            // Shares round; two keys never draw the same.
            (bound.is_reached(word, weight), share, Reverse(draw))
        };
        let choice = scan(scope, rank, rng, |_, _| {})?;
        let weight = scope.view.weight(choice.position);
        let is_below = !bound.is_reached(choice.word, weight);
        // A view that is being overwritten may have no sense; the caller looks at another one.
        if is_below || !scope.counting || !scope.view.is_whole() {
            return Ok(choice);
        }
        // Counts have moved since they were added up: someone is below the bound of now.
        sync::retry();
    }
}

/// How many requests a worker may have in flight: so many percent of the mean of the eligible workers
/// by weight, with the request that is to come, rounded up.
struct Bound {
    /// 0: no bound.
    percent: u64,
    requests: u64,
    weights: u64,
}

impl Bound {
    fn of(scope: &Scope<'_>, percent: u32) -> Self {
        let mut bound = Self { percent: percent.into(), requests: 1, weights: 0 };
        if percent > 0 {
            for position in 0..scope.view.len() {
                if let Ok(word) = scope.eligible(position) {
                    bound.requests += u64::from(word.in_flight());
                    bound.weights += scope.view.weight(position);
                }
            }
        }
        bound
    }

    /// Some worker's is not, if all are as they were: percent is at least 100.
    fn is_reached(&self, word: Word, weight: u64) -> bool {
        let wide = |a: u64, b: u64| u128::from(a) * u128::from(b);
        self.percent > 0
            && wide(word.in_flight().into(), 100 * self.weights)
                >= wide(self.requests * self.percent, weight)
    }
}

/// A worker's number for a hash, uniform over all 64-bit numbers.
fn draw(key: u64, hash: u64) -> u64 {
    mix(mix(key) ^ hash)
}

/// SplitMix64's output function: every bit of the result depends on every bit of the input.
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// Bits after the point of logarithms.
const FRACTION: u32 = 44;
/// Bits of a number after its first one that choose an entry of the table.
const INDEX: u32 = 8;
/// log₂(1 + i ÷ 2⁸).
static LOG2: [u64; (1 << INDEX) + 1] = {
    let mut table = [0; (1 << INDEX) + 1];
    let mut i = 0;
    while i < 1 << INDEX {
        table[i] = log2_of_1_to_2((1 << INDEX | i as u64) << (63 - INDEX));
        i += 1;
    }
    table[1 << INDEX] = 1 << FRACTION;
    table
};

/// Of x ÷ 2⁶³, from 1 to below 2. Squaring doubles a logarithm: each time its next bit comes before the
/// point.
const fn log2_of_1_to_2(mut x: u64) -> u64 {
    let mut log = 0;
    let mut bit = 0;
    while bit < FRACTION {
        let square = (x as u128 * x as u128) >> 63;
        let carry = (square >> 64) as u64;
        x = (square >> carry) as u64;
        log = log << 1 | carry;
        bit += 1;
    }
    log
}

/// −log₂(draw ÷ 2⁶⁴), above 0, to within 0.2 % of itself: the table, and straight lines between.
fn minus_log2(draw: u64) -> u64 {
    let x = draw | 1;
    let zeros = x.leading_zeros();
    let rest = x << zeros << 1;
    let at = (rest >> (64 - INDEX)) as usize;
    // 24 bits of what follows the index: the product has 61.
    let between = rest << INDEX >> 40;
    let log2 = LOG2[at] + (((LOG2[at + 1] - LOG2[at]) * between) >> 24);
    (u64::from(zeros + 1) << FRACTION) - log2
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_within_their_bound_and_in_order() {
        let mut last = u64::MAX;
        let around = |x: u64| [x.saturating_sub(2), x.saturating_sub(1), x, x.saturating_add(1)];
        let steps = (0..=1u64 << 16).map(|step| (step << 48).saturating_sub(u64::from(step > 0)));
        let near_one = (0..40).rev().map(|bit| u64::MAX - (1 << bit));
        let powers = (0..64).map(|bit| 1u64 << bit);
        let mut draws: Vec<_> = steps.chain(near_one).chain(powers).flat_map(around).collect();
        draws.sort_unstable();
        for draw in draws {
            let log = minus_log2(draw);
            assert!(0 < log && log <= last, "{draw:#x}");
            last = log;
            // Distances from 1 below 2⁻³² are not told apart.
            if draw < u64::MAX - (1 << 40) {
                let exact = 64.0 - ((draw | 1) as f64).log2();
                let seen = log as f64 / (1u64 << FRACTION) as f64;
                assert!((seen / exact - 1.0).abs() < 0.002, "{draw:#x}: {seen} for {exact}");
            }
        }
    }
}
