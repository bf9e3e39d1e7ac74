//! Policies: each a function of the view, the load words and a random generator.

mod balanced;
mod consistent_hashing;
mod least_requests;
mod least_tokens;
mod power_of_two;
mod random;
mod round_robin;
mod scan;

use crate::error::{Error, Refusal};
use crate::id::WorkerId;
use crate::region::{Region, header};
use crate::snapshot::View;
use crate::sync;
use crate::word::Word;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng as _;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

pub(crate) use round_robin::unstarted_cursor;

/// How a worker is chosen among the eligible ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum Policy {
    /// The next eligible slot after the last chosen one.
    RoundRobin = 1,
    /// Uniform.
    Random = 2,
    /// Of two distinct uniform draws, the one with fewer polled tokens; if either has no load, or
    /// they are equal, the one with fewer requests in flight; then the first drawn.
    PowerOfTwoTokens = 3,
    /// Of two distinct uniform draws, the one with fewer requests in flight; on a tie, if both have
    /// a load, the one with fewer polled tokens; then the first drawn.
    PowerOfTwoRequests = 4,
    /// Fewest requests in flight over all; ties by polled tokens, then uniformly at random. If one
    /// has a load, only those that have one compete, unless
    /// [`Tuning::unreported_compete`] says otherwise.
    #[default]
    LeastRequests = 5,
    /// Fewest live tokens over all: polled tokens plus credit for what began and ended since the poll
    /// was sent. Ties by requests in flight, then uniformly at random. Workers without a load as under
    /// least_requests; where those compete, with their tokens in flight.
    LeastTokens = 6,
    /// Smallest requests in flight × [`Tuning::request_tokens`] + live tokens over all; ties uniformly
    /// at random. Workers without a load as under least_tokens.
    Balanced = 7,
    /// The worker that [`Request::hash`] ranks first: rendezvous hashing by the workers' keys, shares by
    /// weight. A worker that comes or goes moves only its own hashes. One that is above
    /// [`Tuning::hash_load_factor`] percent of the mean is passed over for the next in the hash's order.
    /// The placement is evenkeel's own, the same for all time, in Rust and in C.
    ConsistentHashing = 8,
}

/// Selects what power_of_two compares, as in SGLang's router; read by [`Policy::from_env`] alone.
pub const METRIC_VARIABLE: &str = "SGLANG_ROUTER_P2C_LOAD_METRIC";

impl Policy {
    /// Every policy, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::RoundRobin,
        Self::Random,
        Self::PowerOfTwoTokens,
        Self::PowerOfTwoRequests,
        Self::LeastRequests,
        Self::LeastTokens,
        Self::Balanced,
        Self::ConsistentHashing,
    ];

    /// The name, as [`Policy::from_str`] takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::PowerOfTwoTokens => "power_of_two:tokens",
            Self::PowerOfTwoRequests => "power_of_two:requests",
            Self::LeastRequests => "least_requests",
            Self::LeastTokens => "least_tokens",
            Self::Balanced => "balanced",
            Self::ConsistentHashing => "consistent_hashing",
        }
    }

    /// The policy of this number, as the C functions have it.
    #[inline]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::RoundRobin),
            2 => Some(Self::Random),
            3 => Some(Self::PowerOfTwoTokens),
            4 => Some(Self::PowerOfTwoRequests),
            5 => Some(Self::LeastRequests),
            6 => Some(Self::LeastTokens),
            7 => Some(Self::Balanced),
            8 => Some(Self::ConsistentHashing),
            _ => None,
        }
    }

    /// Looks at every worker.
    const fn scans(self) -> bool {
        match self {
            Self::RoundRobin | Self::Random => false,
            Self::PowerOfTwoTokens | Self::PowerOfTwoRequests => false,
            Self::LeastRequests | Self::LeastTokens | Self::Balanced => true,
            Self::ConsistentHashing => true,
        }
    }

    /// Whether a choice still holds where the chosen word has changed meanwhile to one that is
    /// eligible, too: the others were compared with what it was.
    pub(crate) fn holds(self, chosen: Word, now: Word) -> bool {
        match self {
            Self::RoundRobin | Self::Random => true,
            Self::PowerOfTwoTokens | Self::PowerOfTwoRequests => true,
            Self::LeastRequests | Self::ConsistentHashing => now.in_flight() == chosen.in_flight(),
            Self::LeastTokens | Self::Balanced => now == chosen,
        }
    }

    /// What `SGLANG_ROUTER_P2C_LOAD_METRIC` asks for: `tokens`, `requests` or `least_requests`;
    /// unset: tokens.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other value: routers that fell back in silence here ran another
    /// policy than their operators believed.
    pub fn from_env() -> Result<Self, Error> {
        match std::env::var_os(METRIC_VARIABLE) {
            None => Ok(Self::PowerOfTwoTokens),
            Some(value) => match value.to_str() {
                Some("tokens") => Ok(Self::PowerOfTwoTokens),
                Some("requests") => Ok(Self::PowerOfTwoRequests),
                Some("least_requests") => Ok(Self::LeastRequests),
                _ => Err(Error::invalid(
                    METRIC_VARIABLE,
                    format_args!("{value:?}"),
                    "tokens, requests, least_requests",
                )),
            },
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Policy {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self, Error> {
        if name == "power_of_two" {
            return Ok(Self::PowerOfTwoTokens);
        }
        Self::ALL.into_iter().find(|policy| policy.name() == name).ok_or_else(|| {
            Error::invalid(
                "policy",
                format_args!("{name:?}"),
                "round_robin, random, power_of_two, power_of_two:tokens, power_of_two:requests, least_requests, least_tokens, balanced, consistent_hashing",
            )
        })
    }
}

/// What [`Tuning::hash_load_factor`] may be, in words.
pub(crate) const HASH_LOAD_FACTORS: &str = "100 to 10000, or 0 for no bound";

/// What a pool's choices go by; switchable while traffic runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// For requests that name none. Default [`Policy::LeastRequests`].
    pub policy: Policy,
    /// How many distinct workers power_of_two draws: 2 to 255. Default 2.
    pub choices: u32,
    /// Under balanced, how many tokens cost a step as much as one request more. Default 0.
    pub request_tokens: u32,
    /// Under least_requests, least_tokens and balanced, workers without a load compete also where
    /// others have one. Default false.
    pub unreported_compete: bool,
    /// Under consistent_hashing, how many percent of the mean of the eligible workers, by weight, a
    /// worker may have in flight: 100 to 10,000, or 0 for no bound. Default 0.
    pub hash_load_factor: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            choices: 2,
            request_tokens: 0,
            unreported_compete: false,
            hash_load_factor: 0,
        }
    }
}

impl Tuning {
    pub(crate) fn check(self) -> Result<Self, Error> {
        let Self { choices, hash_load_factor, .. } = self;
        if !(2..=255).contains(&choices) {
            return Err(Error::invalid("choices", choices, "2 to 255"));
        }
        if !matches!(hash_load_factor, 0 | 100..=10_000) {
            return Err(Error::invalid("hash_load_factor", hash_load_factor, HASH_LOAD_FACTORS));
        }
        Ok(self)
    }

    /// `request_tokens 32 | hash_load_factor 15 | unreported_compete 1 | choices 8 | policy 8`, so that
    /// a choice reads all at once.
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.request_tokens) << 32
            | u64::from(self.hash_load_factor) << 17
            | u64::from(self.unreported_compete) << 16
            | u64::from(self.choices) << 8
            | self.policy as u64
    }

    #[inline]
    pub(crate) fn of(region: &Region) -> Self {
        // Relaxed: one word, and nothing else belongs to it.
        let word = region.header(header::TUNING).load(sync::Ordering::Relaxed);
        Self {
            policy: Policy::from_number((word & 0xFF) as u32).unwrap_or_default(),
            choices: (word >> 8 & 0xFF) as u32,
            request_tokens: (word >> 32) as u32,
            unreported_compete: word >> 16 & 1 != 0,
            hash_load_factor: (word >> 17 & 0x7FFF) as u32,
        }
    }
}

/// What a request asks of the choice.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Request<'a> {
    /// `None`: the pool's, as tuned.
    pub policy: Option<Policy>,
    /// Token cost that its worker carries until it ends.
    pub tokens: u32,
    /// Choose among these alone; `None`: among all. Unknown, stale and repeated ids are ignored.
    pub candidates: Option<&'a [WorkerId]>,
    /// Don't choose any of these. Unknown and stale ids are ignored.
    pub excluded: &'a [WorkerId],
    /// What consistent_hashing goes by: of a session, a user or a prompt's beginning, such as
    /// [`key`](crate::key) of its name. Default 0, a hash like any.
    pub hash: u64,
}

pub(crate) type Rng = Xoshiro256PlusPlus;

/// Uniform below `n`, to within n / 2⁶⁴.
#[inline]
pub(crate) fn below(rng: &mut Rng, n: usize) -> usize {
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}

/// What a choice ranges over. All policies see the workers through it.
#[derive(Clone, Copy)]
struct Scope<'a> {
    view: View<'a>,
    /// Not these.
    excluded: &'a [WorkerId],
    /// Positions that the request's lists allow, a bit each; none: all.
    allowed: Option<&'a [u64]>,
    /// A dispatch, which caps bind; a pick is advice.
    counting: bool,
    /// Only workers that have room for a request of so many tokens.
    room_for: Option<u32>,
    /// The request's.
    hash: u64,
}

impl<'a> Scope<'a> {
    #[inline(always)]
    fn all(view: View<'a>, counting: bool) -> Self {
        Self { view, excluded: &[], allowed: None, counting, room_for: None, hash: 0 }
    }
}

/// A worker that was eligible when looked at. Only what has to be kept apart from the view, so
/// that it stays in registers.
#[derive(Clone, Copy)]
pub(crate) struct Choice {
    pub(crate) position: usize,
    /// The load word that was looked at.
    pub(crate) word: Word,
}

impl Scope<'_> {
    /// The one test of eligibility: in the view, allowed, open, the same worker still, and below
    /// its cap if it is to be counted. Returns the load word that it looked at.
    #[inline(always)]
    fn eligible(&self, position: usize) -> Result<Word, Refusal> {
        self.eligible_as(position, self.view.id(position))
    }

    /// The same for who has read the id already.
    #[inline(always)]
    fn eligible_as(&self, position: usize, id: WorkerId) -> Result<Word, Refusal> {
        if self.allowed.is_some_and(|set| !contains(set, position)) || self.excluded.contains(&id) {
            return Err(Refusal::Empty);
        }
        let slot = self.view.slot(id).ok_or(Refusal::Empty)?;
        let word = slot.glance();
        if !word.is_open(id.generation()) {
            return Err(Refusal::Empty);
        }
        if self.counting && word.in_flight() >= self.view.cap(slot) {
            return Err(Refusal::Saturated);
        }
        if self.room_for.is_some_and(|tokens| word.with_request(tokens).is_none()) {
            return Err(Refusal::Overflow);
        }
        Ok(word)
    }

    /// How many positions there are to draw from.
    #[inline(always)]
    fn span(&self) -> usize {
        self.allowed.map_or(self.view.len(), count)
    }

    /// The `n`th of them, if its worker is eligible.
    #[inline(always)]
    fn draw_nth(&self, n: usize) -> Result<Choice, Refusal> {
        self.draw(self.allowed.map_or(n, |set| nth(set, n)))
    }

    #[inline(always)]
    fn draw(&self, position: usize) -> Result<Choice, Refusal> {
        self.eligible(position).map(|word| Choice { position, word })
    }

    /// The first eligible worker from this position on, round to the one before it.
    fn first_from(&self, start: usize) -> Result<Choice, Refusal> {
        let mut refusal = Refusal::Empty;
        for position in (start..self.view.len()).chain(0..start.min(self.view.len())) {
            match self.draw(position) {
                Ok(choice) => return Ok(choice),
                Err(reason) => refusal = refusal.max(reason),
            }
        }
        Err(refusal)
    }

    /// Draws up to `most` distinct eligible workers, uniformly and one after the other. Looks at
    /// every worker: for when independent draws don't meet eligible ones, or many are wanted.
    #[cold]
    fn draw_distinct(
        self,
        most: u32,
        rng: &mut Rng,
        mut drawn: impl FnMut(Choice),
    ) -> Result<(), Refusal> {
        with_set(self.view.len(), |set| {
            let mut refusal = Refusal::Empty;
            let mut left = 0;
            for position in 0..self.view.len() {
                match self.eligible(position) {
                    Ok(_) => {
                        set[position / 64] |= 1 << (position % 64);
                        left += 1;
                    }
                    Err(reason) => refusal = refusal.max(reason),
                }
            }
            let mut count = 0;
            while left > 0 && count < most {
                let position = nth(set, below(rng, left));
                set[position / 64] &= !(1 << (position % 64));
                left -= 1;
                // It may have closed or filled up since the scan; then another is drawn.
                match self.draw(position) {
                    Ok(choice) => {
                        drawn(choice);
                        count += 1;
                    }
                    Err(reason) => refusal = refusal.max(reason),
                }
            }
            if count == 0 { Err(refusal) } else { Ok(()) }
        })
    }
}

/// Compares value ÷ weight without dividing. Weights are not 0: such workers are in no view.
#[inline]
fn compare_by_weight(a: (u64, u64), b: (u64, u64)) -> Ordering {
    match a.1 == b.1 {
        true => a.0.cmp(&b.0),
        false => (u128::from(a.0) * u128::from(b.1)).cmp(&(u128::from(b.0) * u128::from(a.1))),
    }
}

/// Runs with an empty set of `len` positions. It lies on the stack: 128 bytes, or 8 KiB for more
/// than 1,024 workers.
#[inline]
fn with_set<R>(len: usize, run: impl FnOnce(&mut [u64]) -> R) -> R {
    const FEW: usize = 16;
    let words = len.div_ceil(64);
    if words <= FEW { run(&mut [0; FEW][..words]) } else { with_large_set(words, run) }
}

#[inline(never)]
fn with_large_set<R>(words: usize, run: impl FnOnce(&mut [u64]) -> R) -> R {
    run(&mut [0; 1024][..words])
}

/// All positions below `len` become members of the set, which has room for just those.
fn fill(set: &mut [u64], len: usize) {
    set.fill(u64::MAX);
    if let Some(last) = set.last_mut() {
        *last >>= (64 - len % 64) % 64;
    }
}

#[inline]
fn contains(set: &[u64], position: usize) -> bool {
    set[position / 64] >> (position % 64) & 1 != 0
}

#[inline]
fn count(set: &[u64]) -> usize {
    set.iter().map(|members| members.count_ones() as usize).sum()
}

/// The position of the set's `n`th member, from 0; the set has more than `n`.
#[inline]
fn nth(set: &[u64], mut n: usize) -> usize {
    for (at, &word) in set.iter().enumerate() {
        let members = word.count_ones() as usize;
        if n < members {
            return at * 64 + nth_bit(word, n);
        }
        n -= members;
    }
    unreachable!("the set has more members than {n}")
}

/// The position of the word's `n`th set bit, from 0; the word has more than `n`. Finds its byte, then
/// the bit in it, both by adding up eight counts in parallel: a loop would end at random, and a
/// processor can't foresee that.
#[inline]
fn nth_bit(word: u64, n: usize) -> usize {
    let pairs = word - (word >> 1 & 0x5555_5555_5555_5555);
    let nibbles = (pairs & 0x3333_3333_3333_3333) + (pairs >> 2 & 0x3333_3333_3333_3333);
    let bytes = (nibbles + (nibbles >> 4)) & (0x0F * EACH_BYTE);
    let (byte, before) = first_to_exceed(bytes, n as u64);
    // Byte i of these: bit i of that byte, in its place and then as 0 or 1.
    let in_place = ((word >> byte & 0xFF) * EACH_BYTE) & 0x8040_2010_0804_0201;
    let bits = ((in_place + 0x7F * EACH_BYTE) >> 7) & EACH_BYTE;
    let (bit, _) = first_to_exceed(bits, n as u64 - before);
    (byte + bit / 8) as usize
}

const EACH_BYTE: u64 = 0x0101_0101_0101_0101;

/// The first byte (as 8 times its number) up to which the bytes add up to more than `n`, and the sum
/// of those before it. All add up to at most 64.
#[inline]
fn first_to_exceed(bytes: u64, n: u64) -> (u32, u64) {
    // Byte i: the sum of bytes 0 to i. Its top bit is free to show whether it exceeds n.
    let sums = bytes.wrapping_mul(EACH_BYTE);
    const TOP_BITS: u64 = 0x80 * EACH_BYTE;
    let exceed = ((sums | TOP_BITS) - (n + 1) * EACH_BYTE) & TOP_BITS;
    let first = exceed.trailing_zeros() & !7;
    (first, (sums << 8) >> first & 0xFF)
}

/// So many exclusions are compared one by one; of more, or for a scan, a set is made.
const FEW_EXCLUDED: usize = 4;

impl Request<'_> {
    #[inline]
    pub(crate) fn policy_in(&self, region: &Region) -> Policy {
        self.policy.unwrap_or_else(|| Tuning::of(region).policy)
    }

    /// Whether the request's lists allow this worker.
    pub(crate) fn allows(&self, worker: WorkerId) -> bool {
        self.candidates.is_none_or(|candidates| candidates.contains(&worker))
            && !self.excluded.contains(&worker)
    }

    /// Leaves the choice among all workers, and this policy needs no more of it than its tokens.
    #[inline]
    pub(crate) fn is_plain(&self, policy: Policy) -> bool {
        self.candidates.is_none() && self.excluded.is_empty() && policy != Policy::ConsistentHashing
    }
}

/// Calls the function that is compiled for this policy: one for all would not leave a register to
/// any.
macro_rules! by_policy {
    ($policy:expr, $function:ident $arguments:tt) => {
        by_policy!(@ $policy, $function $arguments,
            RoundRobin Random PowerOfTwoTokens PowerOfTwoRequests LeastRequests LeastTokens Balanced
            ConsistentHashing)
    };
    (@ $policy:expr, $function:ident $arguments:tt, $($name:ident)*) => {
        match $policy {
            $($crate::policy::Policy::$name => $function::<{ $crate::policy::Policy::$name as u32 }> $arguments,)*
        }
    };
}
pub(crate) use by_policy;

/// Chooses a worker for a request without lists, to be counted or as advice, if the straight way
/// leads to one; else [`choose`] has to look. The caller checks that the view was whole before it acts
/// on the result.
#[inline(always)]
pub(crate) fn choose_plainly<const POLICY: u32>(
    view: View<'_>,
    counting: bool,
    rng: &mut Rng,
) -> Option<Choice> {
    go_straight::<POLICY>(Scope::all(view, counting), rng)
}

/// Chooses a worker, to be counted or as advice; with `room_for` only where a request of so many
/// tokens fits. The caller checks that the view was whole before it acts on the result.
#[inline(always)]
pub(crate) fn choose<const POLICY: u32>(
    view: View<'_>,
    request: &Request<'_>,
    counting: bool,
    room_for: Option<u32>,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    let all = Scope { room_for, hash: request.hash, ..Scope::all(view, counting) };
    // Draws compare few exclusions one by one; scans are faster with a set.
    let few = const { if Policy::from_number(POLICY).unwrap().scans() { 0 } else { FEW_EXCLUDED } };
    if request.candidates.is_none() && request.excluded.len() <= few {
        let scope = Scope { excluded: request.excluded, ..all };
        // Plain requests have gone the straight way already.
        return match const { POLICY == Policy::ConsistentHashing as u32 } {
            true => go_straight_or_around::<POLICY>(scope, rng),
            false => look_around::<POLICY>(scope, rng),
        };
    }
    with_set(view.len(), |set| {
        match request.candidates {
            Some(candidates) => {
                for position in candidates.iter().filter_map(|&id| view.position(id)) {
                    set[position / 64] |= 1 << (position % 64);
                }
            }
            None => fill(set, view.len()),
        }
        for position in request.excluded.iter().filter_map(|&id| view.position(id)) {
            set[position / 64] &= !(1 << (position % 64));
        }
        go_straight_or_around::<POLICY>(Scope { allowed: Some(set), ..all }, rng)
    })
}

#[inline(always)]
fn go_straight_or_around<const POLICY: u32>(
    scope: Scope<'_>,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    // Draws gain nothing by it among lists.
    if const { Policy::from_number(POLICY).unwrap().scans() }
        && scope.room_for.is_none()
        && let Some(choice) = go_straight::<POLICY>(scope, rng)
    {
        return Ok(choice);
    }
    look_around::<POLICY>(scope, rng)
}

/// The few steps that lead to a worker nearly always, where the view is simple. Short enough to keep
/// to the registers.
#[inline(always)]
fn go_straight<const POLICY: u32>(scope: Scope<'_>, rng: &mut Rng) -> Option<Choice> {
    if !scope.view.is_simple() || scope.view.len() == 0 {
        return None;
    }
    let scope = Scope { view: scope.view.assume_simple(), ..scope };
    match const { Policy::from_number(POLICY).unwrap() } {
        Policy::RoundRobin => round_robin::next(scope),
        Policy::Random => random::draw(scope, rng),
        Policy::PowerOfTwoTokens => power_of_two::better_of_two::<true>(scope, rng),
        Policy::PowerOfTwoRequests => power_of_two::better_of_two::<false>(scope, rng),
        Policy::LeastRequests => least_requests::fewest(scope, rng),
        Policy::LeastTokens => least_tokens::fewest(scope, rng),
        Policy::Balanced => balanced::cheapest(scope, rng),
        Policy::ConsistentHashing => consistent_hashing::first(scope, rng),
    }
}

/// All the rest: weights, loads that have expired, workers that aren't eligible, and why nobody is.
#[inline(always)]
fn look_around<const POLICY: u32>(scope: Scope<'_>, rng: &mut Rng) -> Result<Choice, Refusal> {
    let tuning = || Tuning::of(scope.view.region());
    match const { Policy::from_number(POLICY).unwrap() } {
        Policy::RoundRobin => round_robin::choose(scope),
        Policy::Random => random::choose(scope, rng),
        Policy::PowerOfTwoTokens => power_of_two::choose::<true>(scope, tuning().choices, rng),
        Policy::PowerOfTwoRequests => power_of_two::choose::<false>(scope, tuning().choices, rng),
        Policy::LeastRequests => least_requests::choose(scope, tuning().unreported_compete, rng),
        Policy::LeastTokens => least_tokens::choose(scope, tuning().unreported_compete, rng),
        Policy::Balanced => balanced::choose(scope, tuning(), rng),
        Policy::ConsistentHashing => consistent_hashing::choose(scope, tuning(), rng),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn nth_finds_every_member() {
        for word in [
            1,
            1 << 63,
            u64::MAX,
            0x8000_0000_0000_0001,
            0x00F0_0F00_A5A5_0001,
            0x0123_4567_89AB_CDEF,
        ] {
            let members: Vec<usize> = (0..64).filter(|bit| word >> bit & 1 != 0).collect();
            for (n, &member) in members.iter().enumerate() {
                assert_eq!(nth(&[word], n), member, "{n} of {word:#x}");
                assert_eq!(nth(&[0, word], n), 64 + member);
                assert_eq!(nth(&[u64::MAX, word], 64 + n), 64 + member);
            }
        }
    }
}
