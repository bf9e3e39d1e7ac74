//! Names of workers: the pool's ids, and keys made of labels.

use std::fmt;

const SLOT_BITS: u32 = 16;
const GENERATION_MASK: u64 = (1 << (64 - SLOT_BITS)) - 1;

/// Names one worker of one pool for all time: a slot and the slot's generation in one number.
///
/// A slot's generation starts at a random number of the pool's own and grows by one at each reuse,
/// so an id is never given out again, and another pool's id is unknown here. 0 is never a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct WorkerId(u64);

impl WorkerId {
    #[inline]
    pub(crate) fn new(slot: usize, generation: u64) -> Self {
        Self(generation << SLOT_BITS | slot as u64)
    }

    /// Dense number below the pool's capacity: a place for the host's own object in an array. It
    /// goes to another worker once this one is gone.
    #[inline]
    pub fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }

    #[inline]
    pub(crate) fn generation(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    /// The id as a number, as the C functions have it.
    #[inline]
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The id that [`WorkerId::raw`] gave. Any number may be passed: one that no pool gave out is
    /// unknown everywhere.
    #[inline]
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {:#x} (slot {})", self.0, self.slot())
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The next generation of a slot. Never 0, so that no id is.
pub(crate) fn next_generation(generation: u64) -> u64 {
    match generation.wrapping_add(1) & GENERATION_MASK {
        0 => 1,
        next => next,
    }
}

/// A stable 64-bit name for a label as given, byte by byte: FNV-1a with the published 64-bit
/// offset basis and prime. Never changes between versions.
pub fn key(label: &str) -> u64 {
    key_of_bytes(label.as_bytes())
}

/// As [`key`], for labels that need not be UTF-8.
pub(crate) fn key_of_bytes(label: &[u8]) -> u64 {
    label.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
