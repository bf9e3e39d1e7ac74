//! Workers: configuration, and the life of a slot.
//!
//! ```text
//! vacant ──add──▶ active ──remove──▶ draining ──last finish──▶ vacant
//!                    ▲                  │
//!                    └────add again─────┘
//! ```
//!
//! The state is the load word alone: open is active; closed with requests in flight is draining;
//! closed without is vacant. So one store or exchange of the word commits each step.

use crate::error::Error;
use crate::region::{Region, record, slot};
use crate::sync::{self, AtomicU64, FINISHED, LABEL_WORDS, LINE, Ordering};
use crate::word::{MAX_IN_FLIGHT, Word};
use std::fmt;

/// The largest weight of a worker.
pub const MAX_WEIGHT: u32 = 1_000_000;
/// The most bytes of a label.
pub const MAX_LABEL: usize = LABEL_WORDS * 8 - 1;

/// Reasons not to choose a worker, one bit for each who may have one. A worker is eligible only
/// without any.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Vetoes(u32);

impl Vetoes {
    /// No veto.
    pub const NONE: Self = Self(0);
    /// The host's own.
    pub const HOST: Self = Self(1);
    /// Of health checks.
    pub const HEALTH: Self = Self(2);
    /// The operator's.
    pub const OPERATOR: Self = Self(4);

    /// The bits, as the C functions have them.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// These bits; none if one of them is unknown.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits & !7 == 0).then_some(Self(bits))
    }

    /// Whether each of these is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn with(self, other: Self, on: bool) -> Self {
        if on { self | other } else { Self(self.0 & !other.0) }
    }
}

impl std::ops::BitOr for Vetoes {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What a worker is added with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerConfig<'a> {
    /// Share of the requests that it gets, relative to the others': 0 to 1,000,000; with 0 it takes
    /// no new ones. Default 1.
    pub weight: u32,
    /// The most requests it may have in flight: 1 to 1,048,575, or 0 for no cap. Default 0.
    pub max_in_flight: u32,
    /// Set on adding, and on adding again; later by [`Pool::veto`](crate::Pool::veto). Default none.
    pub vetoes: Vetoes,
    /// If a worker of this key is draining: add a new one, from 0, instead of reviving it. Default false.
    pub fresh: bool,
    /// For people: `host:port` or `host:port@rank`; at most 255 bytes, none of them 0. Default empty.
    pub label: &'a str,
}

impl Default for WorkerConfig<'_> {
    fn default() -> Self {
        Self { weight: 1, max_in_flight: 0, vetoes: Vetoes::NONE, fresh: false, label: "" }
    }
}

impl WorkerConfig<'_> {
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_weight(self.weight)?;
        check_max_in_flight(self.max_in_flight)?;
        check_label(self.label)
    }
}

/// What to change of a worker; the rest stays.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WorkerUpdate<'a> {
    /// See [`WorkerConfig::weight`].
    pub weight: Option<u32>,
    /// See [`WorkerConfig::max_in_flight`].
    pub max_in_flight: Option<u32>,
    /// See [`WorkerConfig::label`].
    pub label: Option<&'a str>,
}

impl WorkerUpdate<'_> {
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.weight.map_or(Ok(()), check_weight)?;
        self.max_in_flight.map_or(Ok(()), check_max_in_flight)?;
        self.label.map_or(Ok(()), check_label)
    }
}

impl<'a> From<WorkerConfig<'a>> for WorkerUpdate<'a> {
    fn from(config: WorkerConfig<'a>) -> Self {
        Self {
            weight: Some(config.weight),
            max_in_flight: Some(config.max_in_flight),
            label: Some(config.label),
        }
    }
}

fn check_weight(weight: u32) -> Result<(), Error> {
    if weight > MAX_WEIGHT {
        return Err(Error::invalid("weight", weight, "0 to 1000000"));
    }
    Ok(())
}

fn check_max_in_flight(max_in_flight: u32) -> Result<(), Error> {
    if max_in_flight > MAX_IN_FLIGHT {
        return Err(Error::invalid("max_in_flight", max_in_flight, "0 (no cap) to 1048575"));
    }
    Ok(())
}

fn check_label(label: &str) -> Result<(), Error> {
    if label.len() > MAX_LABEL || label.contains('\0') {
        let start: String = label.chars().take(64).collect();
        let value = format!("{start:?}… ({} bytes)", label.len());
        return Err(Error::invalid("label", value, "at most 255 bytes, none of them 0"));
    }
    Ok(())
}

/// A worker's label, copied out of the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Label {
    bytes: [u8; LABEL_WORDS * 8],
    len: u8,
}

impl std::ops::Deref for Label {
    type Target = str;
    fn deref(&self) -> &str {
        self.bytes.get(..self.len.into()).and_then(|label| str::from_utf8(label).ok()).unwrap_or("")
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

/// The configuration that every dispatch checks, in one word.
///
/// ```text
/// bits 40-47 vetoes | bit 48 leaving | bits 20-39 max_in_flight | bits 0-19 weight
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config(u64);

impl Config {
    const LEAVING: u64 = 1 << 48;

    pub(crate) fn of(config: &WorkerConfig<'_>) -> Self {
        Self::new(config.weight, config.max_in_flight, config.vetoes)
    }

    fn new(weight: u32, max_in_flight: u32, vetoes: Vetoes) -> Self {
        Self(u64::from(vetoes.0) << 40 | u64::from(max_in_flight) << 20 | u64::from(weight))
    }

    pub(crate) fn weight(self) -> u32 {
        (self.0 & 0xF_FFFF) as u32
    }

    /// 0: none.
    pub(crate) fn max_in_flight(self) -> u32 {
        (self.0 >> 20 & 0xF_FFFF) as u32
    }

    pub(crate) fn vetoes(self) -> Vetoes {
        Vetoes((self.0 >> 40 & 0xFF) as u32)
    }

    pub(crate) fn is_leaving(self) -> bool {
        self.0 & Self::LEAVING != 0
    }

    pub(crate) fn leaving(self) -> Self {
        Self(self.0 | Self::LEAVING)
    }

    pub(crate) fn with_vetoes(self, vetoes: Vetoes) -> Self {
        Self::new(self.weight(), self.max_in_flight(), vetoes)
    }

    pub(crate) fn updated(self, update: &WorkerUpdate<'_>) -> Self {
        Self::new(
            update.weight.unwrap_or(self.weight()),
            update.max_in_flight.unwrap_or(self.max_in_flight()),
            self.vetoes(),
        )
    }

    /// May be in the view that choices read.
    pub(crate) fn is_choosable(self) -> bool {
        self.vetoes() == Vetoes::NONE && self.weight() > 0 && !self.is_leaving()
    }

    /// At this many requests in flight the worker takes no more; without a cap never.
    #[inline]
    pub(crate) fn cap(self) -> u32 {
        match self.max_in_flight() {
            0 => u32::MAX,
            cap => cap,
        }
    }
}

/// A slot's own line: load word, generation, configuration, counters of finished requests.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a>(&'a [AtomicU64; LINE]);

impl<'a> Slot<'a> {
    /// None if no pool of this size has the slot.
    #[inline]
    pub(crate) fn of(region: &'a Region, slot: usize) -> Option<Self> {
        Self::among(region.slots(), slot)
    }

    /// The same for who keeps the lines of all slots at hand.
    #[inline]
    pub(crate) fn among(slots: &'a [[AtomicU64; LINE]], slot: usize) -> Option<Self> {
        slots.get(slot).map(Slot)
    }

    #[inline]
    pub(crate) fn word(self) -> Word {
        // E3 open→dispatch (acquire side): generation and configuration are at least this word's.
        // E4 finish→reuse (acquire side): who reuses the slot has seen its last request end.
        Word(self.0[slot::WORD].load(Ordering::Acquire))
    }

    /// The word for comparing alone: whoever acts on it exchanges it, and the exchange acquires.
    #[inline]
    pub(crate) fn glance(self) -> Word {
        Word(self.0[slot::WORD].load(Ordering::Relaxed))
    }

    /// Only for a vacant slot, which nobody else writes.
    pub(crate) fn set_word(self, word: Word) {
        // E3 open→dispatch (release side)
        self.0[slot::WORD].store(word.0, Ordering::Release);
    }

    /// The word becomes `new` if it is still `old`; otherwise what it is now.
    #[inline]
    pub(crate) fn exchange(self, old: Word, new: Word) -> Result<(), Word> {
        // Acquire: E3 open→dispatch, and E3's release side where a writer reopens a draining slot.
        // Release: E4 finish→reuse, and E6 close→newest where a writer closes.
        self.0[slot::WORD]
            .compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
            .map_err(|now| {
                sync::retry();
                Word(now)
            })
    }

    /// Exchanges until one succeeds; none as soon as `change` refuses. Returns the word that was
    /// exchanged.
    #[inline]
    pub(crate) fn change(self, change: impl FnMut(Word) -> Option<Word>) -> Option<Word> {
        self.change_from(self.word(), change)
    }

    /// The same for who has read the word already.
    #[inline]
    pub(crate) fn change_from(
        self,
        mut word: Word,
        mut change: impl FnMut(Word) -> Option<Word>,
    ) -> Option<Word> {
        loop {
            match self.exchange(word, change(word)?) {
                Ok(()) => return Some(word),
                Err(now) => word = now,
            }
        }
    }

    // Relaxed: E3 orders generation and configuration for whoever acts on the word.
    #[inline]
    pub(crate) fn generation(self) -> u64 {
        self.0[slot::GENERATION].load(Ordering::Relaxed)
    }

    pub(crate) fn set_generation(self, generation: u64) {
        self.0[slot::GENERATION].store(generation, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn config(self) -> Config {
        Config(self.0[slot::CONFIG].load(Ordering::Relaxed))
    }

    /// At this many requests in flight it takes no more, if some worker has a cap.
    #[inline]
    pub(crate) fn cap_if(self, some_are_capped: bool) -> u32 {
        if some_are_capped { self.config().cap() } else { u32::MAX }
    }

    pub(crate) fn set_config(self, config: Config) {
        self.0[slot::CONFIG].store(config.0, Ordering::Relaxed);
    }

    /// A finish counts itself after its exchange, when the slot may already be reused. So each
    /// generation counts in the next of a few counters: a late one reaches a successor only if the
    /// slot was reused as often as there are counters meanwhile. Counters never go down, so the
    /// pool's total never does. Relaxed: a statistic.
    #[inline]
    pub(crate) fn count_finished(self, generation: u64) {
        self.finished_counter(generation).fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn finished(self, generation: u64) -> u64 {
        self.finished_counter(generation).load(Ordering::Relaxed)
    }

    pub(crate) fn finished_by_all(self) -> u64 {
        (0..FINISHED as u64).map(|generation| self.finished(generation)).sum()
    }

    #[inline]
    fn finished_counter(self, generation: u64) -> &'a AtomicU64 {
        &self.0[slot::FINISHED_FROM + generation as usize % FINISHED]
    }
}

/// The label is never half of one and half of another: its length is 0 while it changes, so a
/// writer that dies in the middle leaves it empty. All under the writer lock.
pub(crate) fn write_label(record: &[AtomicU64], label: &str) {
    record[record::LABEL_LEN].store(0, Ordering::Relaxed);
    for (word, bytes) in record[record::LABEL..].iter().zip(label.as_bytes().chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
    }
    record[record::LABEL_LEN].store(label.len() as u64, Ordering::Relaxed);
}

pub(crate) fn read_label(record: &[AtomicU64]) -> Label {
    let mut bytes = [0; LABEL_WORDS * 8];
    for (word, bytes) in record[record::LABEL..].iter().zip(bytes.as_chunks_mut().0) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
    let len = record[record::LABEL_LEN].load(Ordering::Relaxed).min(MAX_LABEL as u64);
    Label { bytes, len: len as u8 }
}
