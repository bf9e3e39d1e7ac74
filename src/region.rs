//! One flat block of 64-bit atomic words that holds a whole pool, addressed by index.
//!
//! ```text
//! header lines | slots, a line each | records | keys | ring of view buffers
//! ```
//!
//! There are no pointers in it and no structs laid over it, so that the same words can later lie
//! in a mapping that processes share. Whoever reads an index out of the region checks it before
//! use; the slices below check it once more. This file has all the unsafe code of the core.

use crate::sync::{AtomicU64, FINISHED, LABEL_WORDS, LINE, RING};

/// Words of the header. Readers' words, the cursor, the lock and the counters have lines of their own.
pub(crate) mod header {
    use super::LINE;
    /// Number of the newest view; it lies in buffer `version % RING`.
    pub(crate) const VERSION: usize = 0;
    pub(crate) const TUNING: usize = 1;
    pub(crate) const CURSOR: usize = LINE;
    pub(crate) const LOCK: usize = 2 * LINE;
    pub(crate) const SATURATED: usize = 3 * LINE;
    pub(crate) const ANOMALIES: usize = 3 * LINE + 1;
    /// One more than the highest slot ever used.
    pub(crate) const USED: usize = 4 * LINE;
    /// Workers ever added.
    pub(crate) const JOINED: usize = 4 * LINE + 1;
    /// Polls ever begun.
    pub(crate) const BEGUN: usize = 4 * LINE + 2;
    /// Pickers ever made.
    pub(crate) const PICKERS: usize = 4 * LINE + 3;
    pub(crate) const ABANDONED: usize = 4 * LINE + 4;
    pub(crate) const REJECTED: usize = 4 * LINE + 5;
    pub(super) const WORDS: usize = 5 * LINE;
}

/// Words of a slot's line: what a dispatch or finish reads and writes. Nothing that a publish writes.
pub(crate) mod slot {
    use super::FINISHED;
    pub(crate) const WORD: usize = 0;
    pub(crate) const GENERATION: usize = 1;
    pub(crate) const CONFIG: usize = 2;
    pub(crate) const FINISHED_FROM: usize = 3;
    const _: () = assert!(FINISHED_FROM + FINISHED <= super::LINE);
}

/// Words of a worker's record: what only writers need.
pub(crate) mod record {
    use super::{LABEL_WORDS, LINE};
    /// When it was added, in the order of all additions.
    pub(crate) const JOINED: usize = 0;
    /// Where the slot's counter of finished requests stood when it was added.
    pub(crate) const FINISHED_BASE: usize = 1;
    pub(crate) const LOAD_TOKENS: usize = 2;
    /// Running and waiting requests, 32 bits each.
    pub(crate) const LOAD_REQUESTS: usize = 3;
    pub(crate) const LOAD_TIMESTAMP: usize = 4;
    /// Number and time of the poll that brought the load, or its absence.
    pub(crate) const LOAD_BEGUN: usize = 5;
    pub(crate) const LOAD_BEGUN_AT: usize = 6;
    /// Tokens in flight when that poll began.
    pub(crate) const LOAD_MARK: usize = 7;
    pub(crate) const LABEL_LEN: usize = 8;
    pub(crate) const LABEL: usize = 9;
    pub(super) const WORDS: usize = (LABEL + LABEL_WORDS).next_multiple_of(LINE);
}

/// Parts of a view buffer: a header line, then arrays of one word a worker.
pub(crate) mod view {
    use super::LINE;
    /// Number of workers and flags.
    pub(crate) const HEAD: usize = 0;
    /// When the first of the loads expires, in nanoseconds of the monotonic clock.
    pub(crate) const EXPIRY: usize = 1;
    /// Arrays of one word a worker, in this order.
    pub(crate) const IDS: usize = 0;
    pub(crate) const WEIGHTS: usize = 1;
    pub(crate) const TOKENS: usize = 2;
    pub(crate) const EXPIRIES: usize = 3;
    /// Tokens in flight when the poll began that brought the load.
    pub(crate) const MARKS: usize = 4;
    /// Where each slot's worker stands in the arrays, four to a word.
    pub(crate) const POSITIONS: usize = 5;
    pub(crate) const POSITIONS_A_WORD: usize = 4;

    pub(super) fn words(capacity: usize) -> usize {
        (LINE + POSITIONS * capacity + capacity.div_ceil(POSITIONS_A_WORD)).next_multiple_of(LINE)
    }
}

/// The largest capacity: slots have 16 bits, and one value of them is never a slot.
pub(crate) const MAX_CAPACITY: u32 = u16::MAX as u32;

pub(crate) struct Region {
    words: block::Block,
    capacity: usize,
    /// Start of the ring and words of each of its buffers: every choice needs them.
    ring: usize,
    view_words: usize,
}

impl Region {
    /// All words 0. Allocates [`Region::bytes`]; none if there is no memory for it.
    pub(crate) fn new(capacity: usize) -> Option<Self> {
        Some(Self {
            words: block::Block::new(Self::len(capacity))?,
            capacity,
            ring: Self::ring(capacity),
            view_words: view::words(capacity),
        })
    }

    fn len(capacity: usize) -> usize {
        Self::ring(capacity) + RING as usize * view::words(capacity)
    }

    fn records(capacity: usize) -> usize {
        header::WORDS + capacity * LINE
    }

    fn keys_from(capacity: usize) -> usize {
        Self::records(capacity) + capacity * record::WORDS
    }

    fn ring(capacity: usize) -> usize {
        Self::keys_from(capacity) + capacity.next_multiple_of(LINE)
    }

    /// Size of the block that [`Region::new`] allocates.
    pub(crate) fn bytes(capacity: usize) -> usize {
        Self::len(capacity) * size_of::<u64>()
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// A word of the header. Panics if it has no such word: indices are constants.
    #[inline]
    pub(crate) fn header(&self, index: usize) -> &AtomicU64 {
        &self.words.first::<{ header::WORDS }>()[index]
    }

    /// The lines of all slots.
    #[inline]
    pub(crate) fn slots(&self) -> &[[AtomicU64; LINE]] {
        self.words.lines(header::WORDS / LINE, self.capacity)
    }

    pub(crate) fn record(&self, slot: usize) -> &[AtomicU64; record::WORDS] {
        let from = Self::records(self.capacity);
        &self.words.all()[from..][..self.capacity * record::WORDS].as_chunks().0[slot]
    }

    /// The keys of all slots, by slot; those of vacant slots mean nothing.
    pub(crate) fn keys(&self) -> &[AtomicU64] {
        &self.words.all()[Self::keys_from(self.capacity)..][..self.capacity]
    }

    /// The buffer of this version of the view: its header and its arrays.
    #[inline]
    pub(crate) fn view(&self, version: u64) -> (&[AtomicU64; LINE], &[AtomicU64]) {
        let from = self.ring + (version % RING) as usize * self.view_words;
        let buffer = &self.words.all()[from..][..self.view_words];
        buffer.split_first_chunk().expect("a view's buffer starts with a line")
    }
}

#[cfg(not(loom))]
mod block {
    use super::{AtomicU64, LINE};
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    /// Zeroed words on the heap, aligned to a line.
    pub(super) struct Block {
        words: NonNull<AtomicU64>,
        len: usize,
    }

    // SAFETY: the block owns its words, and they are atomics.
    unsafe impl Send for Block {}
    // SAFETY: shared access is only to atomics.
    unsafe impl Sync for Block {}

    impl Block {
        pub(super) fn new(len: usize) -> Option<Self> {
            assert!(len > 0);
            // SAFETY: the layout's size is not 0.
            let words = unsafe { alloc_zeroed(Self::layout(len)) };
            Some(Self { words: NonNull::new(words.cast())?, len })
        }

        fn layout(len: usize) -> Layout {
            let size = len * size_of::<AtomicU64>();
            Layout::from_size_align(size, LINE * size_of::<AtomicU64>())
                .expect("a capacity has 16 bits")
        }

        /// The first `N` words, where there are so many.
        #[inline]
        pub(super) fn first<const N: usize>(&self) -> &[AtomicU64; N] {
            debug_assert!(N <= self.len);
            // SAFETY: every block starts with a whole header, and `N` is its length.
            unsafe { self.words.cast().as_ref() }
        }

        /// So many lines of the block, which has to reach so far.
        #[inline]
        pub(super) fn lines(&self, from: usize, count: usize) -> &[[AtomicU64; LINE]] {
            debug_assert!((from + count) * LINE <= self.len);
            // SAFETY: `Region::new` made the block with a line for each slot.
            let lines = unsafe { self.words.add(from * LINE) };
            // SAFETY: as above, and the words live as long as `self`.
            unsafe { std::slice::from_raw_parts(lines.cast().as_ptr(), count) }
        }

        #[inline]
        pub(super) fn all(&self) -> &[AtomicU64] {
            // SAFETY: `new` allocated `len` words, zero is a valid atomic, and they live as long as `self`.
            unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            // SAFETY: allocated by `new` with the same layout, and not used after this.
            unsafe { dealloc(self.words.as_ptr().cast(), Self::layout(self.len)) }
        }
    }
}

#[cfg(loom)]
mod block {
    use super::{AtomicU64, LINE};

    /// Loom's atomics are larger than a word and must be made one by one.
    pub(super) struct Block(Vec<AtomicU64>);

    impl Block {
        pub(super) fn new(len: usize) -> Option<Self> {
            Some(Self((0..len).map(|_| AtomicU64::new(0)).collect()))
        }

        pub(super) fn first<const N: usize>(&self) -> &[AtomicU64; N] {
            self.0.first_chunk().expect("a whole header")
        }

        pub(super) fn lines(&self, from: usize, count: usize) -> &[[AtomicU64; LINE]] {
            &self.0.as_chunks().0[from..][..count]
        }

        pub(super) fn all(&self) -> &[AtomicU64] {
            &self.0
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_end_with_the_block() {
        for capacity in [1, 2, 3, 8, 1024, 65_535] {
            let region = Region::new(capacity).unwrap();
            let start = |words: &[AtomicU64]| words.as_ptr() as usize;
            let end = |words: &[AtomicU64]| start(words) + size_of_val(words);
            let line = |slot: usize| region.slots()[slot].as_slice();
            let record = |slot| region.record(slot).as_slice();
            assert_eq!(region.header(header::WORDS - 1) as *const _ as usize + 8, start(line(0)));
            assert_eq!(start(line(0)) % 128, 0);
            assert_eq!(end(line(capacity - 1)), start(record(0)));
            assert_eq!(region.slots().len(), capacity);
            assert!(end(record(capacity - 1)) <= start(region.keys()));
            assert!(end(region.keys()) <= start(region.view(0).0));
            for version in 1..RING {
                assert_eq!(end(region.view(version - 1).1), start(region.view(version).0));
            }
            assert_eq!(
                end(region.view(RING - 1).1),
                region.words.all().as_ptr_range().end as usize
            );
        }
    }

    /// Case 44.
    #[test]
    fn neighbouring_counters_are_128_bytes_apart() {
        let region = Region::new(2).unwrap();
        let [a, b] = [0, 1].map(|slot| &raw const region.slots()[slot][slot::WORD] as usize);
        assert_eq!(b - a, 128);
    }
}
