//! The view that choices read: who may be chosen, with weight and polled tokens, in dense arrays.
//!
//! Views are published through a ring of [`RING`] buffers in the region. A publisher (one at a
//! time, under the writer lock) fills the buffer after the newest and then stores the version. A
//! reader takes the version, reads what it needs of that buffer, and checks that the version has
//! not come so far meanwhile that a publisher may be writing there again. Nothing is registered,
//! counted or freed, so a reader may stop anywhere, in a fork, in a fiber, for ever.
//!
//! Why it is right: whoever reads a word of view `v + RING` in the buffer of `v` synchronises with
//! the fence that its publisher passed before (E2), which comes after the store of version
//! `v + RING − 1`, and so sees that version or a later one when it checks. A view that passes the
//! check is therefore all of one publish.

use crate::id::WorkerId;
use crate::region::{Region, header, record, view};
use crate::sync::{AtomicU64, LINE, Ordering, RING, fence, now_coarse};
use crate::word::Word;
use crate::worker::Slot;

/// Tokens of a worker without a load.
pub(crate) const NO_LOAD: u64 = u64::MAX;
/// The expiry of what does not expire.
const NEVER: u64 = u64::MAX;

const LEN_MASK: u64 = 0xFFFF;
/// Every worker in the view has the same weight.
const UNIFORM: u64 = 1 << 16;
/// Some worker in the view has a cap.
const CAPPED: u64 = 1 << 17;

#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    region: &'a Region,
    version: u64,
    head: u64,
    /// The time, if loads may have expired by now; otherwise 0.
    late: u64,
    len: usize,
    arrays: &'a [AtomicU64],
    slots: &'a [[AtomicU64; LINE]],
}

impl<'a> View<'a> {
    #[inline(always)]
    pub(crate) fn newest(region: &'a Region) -> Self {
        // E1 publish→choose (acquire side)
        let version = region.header(header::VERSION).load(Ordering::Acquire);
        let (header, arrays) = region.view(version);
        let head = header[view::HEAD].load(Ordering::Relaxed);
        let expiry = header[view::EXPIRY].load(Ordering::Relaxed);
        let late = if expiry == NEVER { 0 } else { late(expiry) };
        // A head that is being overwritten may belong to another view; it still has to fit.
        let len = ((head & LEN_MASK) as usize).min(region.capacity());
        Self { region, version, head, late, len, arrays, slots: region.slots() }
    }

    /// Whether all that was read of it so far is of one publish.
    #[inline(always)]
    pub(crate) fn is_whole(&self) -> bool {
        // E2 overwrite→check (acquire side)
        fence(Ordering::Acquire);
        self.published() - self.version < RING - 1
    }

    /// Whether nothing was published since.
    pub(crate) fn is_newest(&self) -> bool {
        // E6 close→newest (acquire side): who has read a closed word sees the view that came before.
        fence(Ordering::Acquire);
        self.published() == self.version
    }

    #[inline(always)]
    fn published(&self) -> u64 {
        self.region.header(header::VERSION).load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn region(&self) -> &'a Region {
        self.region
    }

    /// The slot of a worker; none if no pool of this size has it.
    #[inline(always)]
    pub(crate) fn slot(&self, worker: WorkerId) -> Option<Slot<'a>> {
        Slot::among(self.slots, worker.slot())
    }

    /// Number of workers. They stand in the order of their slots.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn is_uniform(&self) -> bool {
        self.head & UNIFORM != 0
    }

    /// At this many requests in flight the worker takes no more. A cap that is newer than this view
    /// need not bind yet.
    #[inline(always)]
    pub(crate) fn cap(&self, slot: Slot<'_>) -> u32 {
        slot.cap_if(self.is_capped())
    }

    #[inline(always)]
    pub(crate) fn is_capped(&self) -> bool {
        self.head & CAPPED != 0
    }

    /// Has equal weights, and no load that may have expired.
    #[inline(always)]
    pub(crate) fn is_simple(&self) -> bool {
        self.is_uniform() && self.late == 0
    }

    /// The same view, spelled so that the compiler leaves out the tests of what a simple one lacks.
    #[inline(always)]
    pub(crate) fn assume_simple(self) -> Self {
        Self { late: 0, ..self }
    }

    #[inline(always)]
    pub(crate) fn id(&self, position: usize) -> WorkerId {
        WorkerId::from_raw(self.array(view::IDS, position))
    }

    #[inline(always)]
    pub(crate) fn weight(&self, position: usize) -> u64 {
        self.array(view::WEIGHTS, position)
    }

    /// Polled tokens, or [`NO_LOAD`].
    #[inline(always)]
    pub(crate) fn tokens(&self, position: usize) -> u64 {
        self.unless_expired(position, self.array(view::TOKENS, position))
    }

    /// See [`live_tokens`].
    #[inline(always)]
    pub(crate) fn live_tokens(&self, position: usize, polled: u64, word: Word) -> u64 {
        live_tokens(polled, self.array(view::MARKS, position), word)
    }

    /// Tokens in flight when the poll began that brought the load, of all workers in the order of their
    /// positions.
    #[inline(always)]
    pub(crate) fn marks(&self) -> &'a [AtomicU64] {
        self.whole_array(view::MARKS)
    }

    /// Ids and tokens of all workers in the order of their positions; the tokens still have to be
    /// passed through [`View::unless_expired`].
    #[inline(always)]
    pub(crate) fn ids_and_tokens(&self) -> (&'a [AtomicU64], &'a [AtomicU64]) {
        (self.whole_array(view::IDS), self.whole_array(view::TOKENS))
    }

    #[inline(always)]
    pub(crate) fn unless_expired(&self, position: usize, tokens: u64) -> u64 {
        let expired = self.late != 0 && self.array(view::EXPIRIES, position) <= self.late;
        if expired { NO_LOAD } else { tokens }
    }

    #[inline(always)]
    fn whole_array(&self, array: usize) -> &'a [AtomicU64] {
        &self.arrays[array * self.slots.len()..][..self.len]
    }

    #[inline(always)]
    fn array(&self, array: usize, position: usize) -> u64 {
        self.arrays[array * self.slots.len() + position].load(Ordering::Relaxed)
    }

    /// Where this worker stands, if it is in the view.
    pub(crate) fn position(&self, worker: WorkerId) -> Option<usize> {
        self.position_of_slot(worker.slot()).filter(|&position| self.id(position) == worker)
    }

    /// The first position of a slot beyond this one, or the number of workers.
    pub(crate) fn after(&self, slot: usize) -> usize {
        match self.position_of_slot(slot) {
            Some(position) => position + 1,
            None => self.arrays[..self.len].partition_point(|id| {
                WorkerId::from_raw(id.load(Ordering::Relaxed)).slot() <= slot
            }),
        }
    }

    fn position_of_slot(&self, slot: usize) -> Option<usize> {
        if slot >= self.slots.len() {
            return None;
        }
        let word = self.array(view::POSITIONS, slot / view::POSITIONS_A_WORD);
        let position = (word >> (slot % view::POSITIONS_A_WORD * 16) & LEN_MASK) as usize;
        (position < self.len() && self.id(position).slot() == slot).then_some(position)
    }
}

/// Polled tokens plus credit for what began and ended since the poll was sent, when `mark` tokens were
/// in flight; without a load the tokens in flight.
#[inline]
pub(crate) fn live_tokens(polled: u64, mark: u64, word: Word) -> u64 {
    match polled {
        NO_LOAD => word.tokens().into(),
        polled => polled.saturating_add_signed(i64::from(word.tokens()) - mark as i64),
    }
}

#[cold]
fn late(expiry: u64) -> u64 {
    let now = now_coarse();
    if now >= expiry { now } else { 0 }
}

/// Makes the view that the slots ask for the newest. Under the writer lock. Loads expire
/// `max_age` nanoseconds after their poll began; 0: never.
pub(crate) fn publish(region: &Region, max_age: u64) {
    // Relaxed: only the owner of the lock stores it.
    let version = region.header(header::VERSION).load(Ordering::Relaxed) + 1;
    let (head, arrays) = region.view(version);
    let put = |index: usize, value: u64| arrays[index].store(value, Ordering::Relaxed);
    let array = |array: usize| array * region.capacity();

    // E2 overwrite→check (release side)
    fence(Ordering::Release);

    let mut len = 0;
    let mut flags = UNIFORM;
    let mut first_weight = None;
    let mut first_expiry = NEVER;
    let mut positions = 0;
    let used = region.header(header::USED).load(Ordering::Relaxed) as usize;
    for slot in 0..used.min(region.capacity()) {
        let line = Slot::of(region, slot).expect("below the capacity");
        let config = line.config();
        let at = slot % view::POSITIONS_A_WORD;
        if !line.word().is_closed() && config.is_choosable() {
            let record = region.record(slot);
            let tokens = record[record::LOAD_TOKENS].load(Ordering::Relaxed);
            let expiry = match record[record::LOAD_BEGUN_AT].load(Ordering::Relaxed) {
                begun if tokens != NO_LOAD && max_age > 0 => begun.saturating_add(max_age),
                _ => NEVER,
            };
            put(array(view::IDS) + len, WorkerId::new(slot, line.generation()).raw());
            put(array(view::WEIGHTS) + len, config.weight().into());
            put(array(view::TOKENS) + len, tokens);
            put(array(view::EXPIRIES) + len, expiry);
            put(array(view::MARKS) + len, record[record::LOAD_MARK].load(Ordering::Relaxed));
            if *first_weight.get_or_insert(config.weight()) != config.weight() {
                flags &= !UNIFORM;
            }
            if config.max_in_flight() > 0 {
                flags |= CAPPED;
            }
            first_expiry = first_expiry.min(expiry);
            positions |= (len as u64) << (at * 16);
            len += 1;
        }
        // A slot without a worker keeps some position; readers check whose slot stands there.
        if at == view::POSITIONS_A_WORD - 1 || slot == used - 1 {
            put(array(view::POSITIONS) + slot / view::POSITIONS_A_WORD, positions);
            positions = 0;
        }
    }
    head[view::HEAD].store(len as u64 | flags, Ordering::Relaxed);
    head[view::EXPIRY].store(first_expiry, Ordering::Relaxed);

    // E1 publish→choose (release side)
    region.header(header::VERSION).store(version, Ordering::Release);
}
