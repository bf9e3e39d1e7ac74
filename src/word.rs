//! A worker's load word: everything that a dispatch or a finish must check and change at once.
//!
//! ```text
//! bit 63         44 43     42   32 31          0
//!     in_flight 20 | closed | tag 11 | tokens 32
//! ```
//!
//! One compare-and-exchange of the word moves both counts, and fails if the worker was closed or
//! its slot reused meanwhile: the tag is the low bits of the slot's generation. `in_flight` comes
//! first, so that comparing two words compares requests.

use crate::sync::TAG_BITS;

const IN_FLIGHT_SHIFT: u32 = 44;
const CLOSED: u64 = 1 << 43;
const TAG_SHIFT: u32 = 32;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
/// Closed bit and tag, of a word's upper half; of a [standing](Word::standing) the bits that are all 0
/// just if the worker is open.
pub(crate) const STATE_MASK: u64 = 0xFFF;

/// The most requests that one worker can have in flight: 1,048,575.
pub const MAX_IN_FLIGHT: u32 = (1 << 20) - 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    /// A worker of this generation with nothing in flight, not open yet.
    pub(crate) fn vacant(generation: u64) -> Self {
        Self((generation & TAG_MASK) << TAG_SHIFT | CLOSED)
    }

    pub(crate) fn in_flight(self) -> u32 {
        (self.0 >> IN_FLIGHT_SHIFT) as u32
    }

    pub(crate) fn tokens(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    pub(crate) fn is_vacant(self) -> bool {
        self.is_closed() && self.in_flight() == 0
    }

    /// Of this generation, as far as the tag tells.
    pub(crate) fn is_of(self, generation: u64) -> bool {
        (self.0 >> TAG_SHIFT ^ generation) & TAG_MASK == 0
    }

    /// Open and of this generation: closed bit and tag in one comparison.
    pub(crate) fn is_open(self, generation: u64) -> bool {
        self.standing(generation) & STATE_MASK == 0
    }

    /// Requests in flight as a number to compare by, whose low 12 bits are 0 just if the worker is open
    /// and of this generation. So equal to an eligible worker's is only another eligible one's.
    #[inline]
    pub(crate) fn standing(self, generation: u64) -> u64 {
        self.0 >> TAG_SHIFT ^ generation & TAG_MASK
    }

    pub(crate) fn opened(self) -> Self {
        Self(self.0 & !CLOSED)
    }

    pub(crate) fn closed(self) -> Self {
        Self(self.0 | CLOSED)
    }

    /// Without anything in flight.
    pub(crate) fn emptied(self) -> Self {
        Self(self.0 & STATE_MASK << TAG_SHIFT)
    }

    /// One request more; none if a count would not fit.
    pub(crate) fn with_request(self, tokens: u32) -> Option<Self> {
        if self.in_flight() == MAX_IN_FLIGHT {
            return None;
        }
        self.with_tokens(tokens).map(|word| Self(word.0 + (1 << IN_FLIGHT_SHIFT)))
    }

    /// More tokens; none if they would not fit.
    pub(crate) fn with_tokens(self, tokens: u32) -> Option<Self> {
        self.tokens().checked_add(tokens).map(|_| Self(self.0 + u64::from(tokens)))
    }

    /// One request less, and whether its tokens were all there. The last request takes what is
    /// left of the tokens with it. None if there is no request.
    pub(crate) fn without_request(self, tokens: u32) -> Option<(Self, bool)> {
        let in_flight = self.in_flight().checked_sub(1)?;
        let left = if in_flight == 0 { 0 } else { self.tokens().saturating_sub(tokens) };
        let word = u64::from(in_flight) << IN_FLIGHT_SHIFT
            | self.0 & STATE_MASK << TAG_SHIFT
            | u64::from(left);
        Some((Self(word), self.tokens().checked_sub(tokens) == Some(left)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counts_move_together_and_leave_the_rest() {
        let open = Word::vacant(0x7FF).opened();
        let word = open.with_request(100).unwrap().with_request(50).unwrap();
        assert_eq!((word.in_flight(), word.tokens()), (2, 150));
        assert!(word.is_open(0x7FF) && word.is_of(0xFFF) && !word.is_open(0x7FE));
        assert_eq!(word.without_request(100), Some((open.with_request(50).unwrap(), true)));
        assert!(word.closed().without_request(100).unwrap().0.is_closed());
    }

    #[test]
    fn nothing_is_borrowed_at_the_borders() {
        let open = Word::vacant(5).opened();
        assert_eq!(open.without_request(0), None);
        let one = open.with_request(10).unwrap();
        assert_eq!(one.without_request(11), Some((open, false)));
        assert_eq!(one.without_request(9), Some((open, false)));
        let two = one.with_request(0).unwrap();
        assert_eq!(two.without_request(11), Some((open.with_request(0).unwrap(), false)));
        assert_eq!(one.with_request(u32::MAX - 9), None);
        assert_eq!(one.with_tokens(u32::MAX - 9), None);
        let full = Word(u64::from(MAX_IN_FLIGHT) << IN_FLIGHT_SHIFT);
        assert_eq!(full.with_request(0), None);
    }
}
