//! Tickets: what a dispatch returns and a finish takes, and how both count.

use crate::error::{Error, Refusal};
use crate::id::WorkerId;
use crate::policy::{Choice, Policy};
use crate::region::{Region, header};
use crate::snapshot::View;
use crate::sync::{AtomicU64, Ordering};
use crate::word::Word;
use crate::worker::Slot;
use std::fmt;
use std::num::NonZeroU64;

/// A request in flight on one worker, from its dispatch to its end.
///
/// It ends once, by [`Pool::finish`](crate::Pool::finish), which takes it. One that is dropped stays
/// counted until its worker is abandoned: requests that must end with a scope belong in an
/// [`InFlight`](crate::InFlight).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the request stays counted until its ticket is finished"]
pub struct Ticket {
    worker: NonZeroU64,
    tokens: u64,
}

impl Ticket {
    /// The worker that the request counts on.
    pub fn worker(&self) -> WorkerId {
        WorkerId::from_raw(self.worker.get())
    }

    /// The tokens that it counts.
    pub fn tokens(&self) -> u32 {
        self.tokens as u32
    }

    #[inline]
    pub(crate) fn new(worker: WorkerId, tokens: u32) -> Self {
        Self {
            worker: NonZeroU64::new(worker.raw()).expect("a generation is never 0"),
            tokens: tokens.into(),
        }
    }
}

/// A ticket that could not be finished, given back as it was.
#[derive(Debug)]
pub struct Stale {
    /// The ticket. If another pool gave it, that pool can finish it.
    pub ticket: Ticket,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.ticket.worker(), Error::Stale)
    }
}

impl std::error::Error for Stale {}

impl From<Stale> for Error {
    fn from(_: Stale) -> Self {
        Self::Stale
    }
}

/// What a dispatch comes to, in two plain words: a `Result<Ticket, Refusal>` would come back
/// through memory.
pub(crate) struct Answer {
    /// 0: refused.
    worker: u64,
    /// The ticket's tokens, or the refusal.
    rest: u64,
}

impl Answer {
    #[inline]
    pub(crate) fn counted(worker: WorkerId, tokens: u32) -> Self {
        Self { worker: worker.raw(), rest: tokens.into() }
    }

    #[inline]
    pub(crate) fn refused(refusal: Refusal) -> Self {
        Self { worker: 0, rest: refusal as u64 }
    }

    #[inline]
    pub(crate) fn ticket(self) -> Result<Ticket, Refusal> {
        match NonZeroU64::new(self.worker) {
            Some(worker) => Ok(Ticket { worker, tokens: self.rest }),
            None => Err(Refusal::from_number(self.rest)),
        }
    }
}

/// What became of a choice.
pub(crate) enum Commit {
    Counted,
    /// It is not what was chosen any more: choose again.
    Moved,
    Overflow,
}

/// Counts a request on the chosen worker if it still is what was chosen (see [`Policy::holds`]). Of
/// the view only what was read before it was found whole may be used.
#[inline(always)]
pub(crate) fn commit<const POLICY: u32>(
    view: &View<'_>,
    id: WorkerId,
    choice: Choice,
    tokens: u32,
) -> Commit {
    let Some(slot) = view.slot(id) else {
        return Commit::Moved;
    };
    let Some(counted) = choice.word.with_request(tokens) else {
        return Commit::Overflow;
    };
    match slot.exchange(choice.word, counted) {
        Ok(()) if counted_successor(slot, id, tokens) => Commit::Moved,
        Ok(()) => Commit::Counted,
        // Without the view, which would have to be in memory for it.
        Err(now) => commit_again::<POLICY>(slot, view.is_capped(), id, choice.word, now, tokens),
    }
}

/// Where the choice did not go by what moved: again in place.
#[cold]
#[inline(never)]
fn commit_again<const POLICY: u32>(
    slot: Slot<'_>,
    capped: bool,
    id: WorkerId,
    chosen: Word,
    mut now: Word,
    tokens: u32,
) -> Commit {
    let policy = const { Policy::from_number(POLICY).unwrap() };
    loop {
        if !policy.holds(chosen, now)
            || !now.is_open(id.generation())
            || now.in_flight() >= slot.cap_if(capped)
        {
            return Commit::Moved;
        }
        let Some(counted) = now.with_request(tokens) else {
            return Commit::Overflow;
        };
        match slot.exchange(now, counted) {
            Ok(()) if counted_successor(slot, id, tokens) => return Commit::Moved,
            Ok(()) => return Commit::Counted,
            Err(other) => now = other,
        }
    }
}

/// R4: if the tag went all the way round between choice and exchange, a successor was counted; its
/// count is taken back. A slot that has another tag by now was reused after the exchange, which was
/// right: its worker was abandoned, with this request.
#[inline]
fn counted_successor(slot: Slot<'_>, id: WorkerId, tokens: u32) -> bool {
    slot.generation() != id.generation() && uncount_by_tag(slot, id, tokens)
}

#[cold]
fn uncount_by_tag(slot: Slot<'_>, id: WorkerId, tokens: u32) -> bool {
    let same_tag = |word: Word| word.is_of(id.generation()).then_some(word);
    slot.change(|word| Some(same_tag(word)?.without_request(tokens)?.0)).is_some()
}

/// Counts a request on a worker that was chosen elsewhere; only its cap binds.
pub(crate) fn begin(region: &Region, worker: WorkerId, tokens: u32) -> Result<Ticket, Refusal> {
    let slot = Slot::of(region, worker.slot()).ok_or(Refusal::Unknown)?;
    let mut refusal = Refusal::Unknown;
    let counted = slot.change(|word| {
        if !word.is_open(worker.generation()) || slot.generation() != worker.generation() {
            refusal = Refusal::Unknown;
            return None;
        }
        if word.in_flight() >= slot.config().cap() {
            refusal = Refusal::Saturated;
            return None;
        }
        refusal = Refusal::Overflow;
        word.with_request(tokens)
    });
    if counted.is_none() {
        return Err(refusal);
    }
    if counted_successor(slot, worker, tokens) {
        return Err(Refusal::Unknown);
    }
    Ok(Ticket::new(worker, tokens))
}

/// Ends a request. On `Stale` no count has moved, other than that of anomalies.
#[inline]
pub(crate) fn end(region: &Region, worker: WorkerId, tokens: u32) -> Result<(), Refusal> {
    let slot = Slot::of(region, worker.slot()).ok_or_else(|| anomaly(region))?;
    end_from(region, slot, slot.word(), worker, tokens)
}

/// The same for who has read the slot's word already.
#[inline]
fn end_from(
    region: &Region,
    slot: Slot<'_>,
    word: Word,
    worker: WorkerId,
    tokens: u32,
) -> Result<(), Refusal> {
    uncount_from(region, slot, word, worker, tokens).ok_or_else(|| anomaly(region))?;
    slot.count_finished(worker.generation());
    Ok(())
}

/// Takes a request off its worker, if it is there.
///
/// Nothing can be checked after the exchange: the slot that it emptied may rightly be another
/// worker's by then. So the ticket of an abandoned worker takes a successor's request if the tag
/// goes all the way round between check and exchange (see the crate's limits).
#[inline]
fn uncount(region: &Region, worker: WorkerId, tokens: u32) -> Option<()> {
    let slot = Slot::of(region, worker.slot())?;
    uncount_from(region, slot, slot.word(), worker, tokens)
}

/// The same for who has read the slot's word already.
#[inline]
fn uncount_from(
    region: &Region,
    slot: Slot<'_>,
    word: Word,
    worker: WorkerId,
    tokens: u32,
) -> Option<()> {
    let mut whole = true;
    slot.change_from(word, |word| {
        if !word.is_of(worker.generation()) || slot.generation() != worker.generation() {
            return None;
        }
        let (less, all_there) = word.without_request(tokens)?;
        whole = all_there;
        Some(less)
    })?;
    if !whole {
        anomaly(region);
    }
    Some(())
}

/// Counts an anomaly: an end of what isn't in flight, or of other tokens than are.
#[cold]
pub(crate) fn anomaly(region: &Region) -> Refusal {
    region.header(header::ANOMALIES).fetch_add(1, Ordering::Relaxed);
    Refusal::Stale
}

/// Adds tokens to a request that runs.
pub(crate) fn grow(region: &Region, ticket: &mut Ticket, tokens: u32) -> Result<(), Refusal> {
    let worker = ticket.worker();
    let grown = ticket.tokens().checked_add(tokens);
    let slot = Slot::of(region, worker.slot()).ok_or_else(|| anomaly(region))?;
    let mut refusal = None;
    let counted = slot.change(|word| {
        let here = word.is_of(worker.generation()) && slot.generation() == worker.generation();
        if !here || word.in_flight() == 0 {
            refusal = Some(Refusal::Stale);
            return None;
        }
        refusal = Some(Refusal::Overflow);
        grown.and(word.with_tokens(tokens))
    });
    match (counted, grown) {
        (Some(_), Some(grown)) => {
            ticket.tokens = grown.into();
            Ok(())
        }
        _ if refusal == Some(Refusal::Stale) => Err(anomaly(region)),
        _ => Err(Refusal::Overflow),
    }
}

/// Moves a request to another worker, where only the cap binds. It counts on both for a moment,
/// and on neither as finished.
pub(crate) fn retarget(
    region: &Region,
    ticket: &mut Ticket,
    worker: WorkerId,
) -> Result<(), Refusal> {
    if !is_in_flight(region, ticket.worker()) {
        return Err(anomaly(region));
    }
    if worker == ticket.worker() {
        let open = Slot::of(region, worker.slot()).is_some_and(|slot| !slot.word().is_closed());
        return if open { Ok(()) } else { Err(Refusal::Unknown) };
    }
    let there = begin(region, worker, ticket.tokens())?;
    if uncount(region, ticket.worker(), ticket.tokens()).is_none() {
        uncount(region, worker, there.tokens());
        return Err(anomaly(region));
    }
    *ticket = there;
    Ok(())
}

fn is_in_flight(region: &Region, worker: WorkerId) -> bool {
    Slot::of(region, worker.slot()).is_some_and(|slot| {
        let word = slot.word();
        word.is_of(worker.generation())
            && word.in_flight() > 0
            && slot.generation() == worker.generation()
    })
}

/// Ends the request of a ticket that lies in shared memory, and clears its worker: of several
/// threads that end one ticket, exactly one succeeds (R6). On `Stale` the ticket is as before.
#[inline]
pub(crate) fn end_shared(region: &Region, ticket: &AtomicU64, tokens: u32) -> Result<(), Refusal> {
    let worker = WorkerId::from_raw(ticket.load(Ordering::Relaxed));
    let slot = Slot::of(region, worker.slot()).ok_or_else(|| anomaly(region))?;
    // Read before the ticket is claimed: a processor reads nothing while it claims.
    let word = slot.word();
    // Relaxed: whoever wins the exchange needs nothing that another finisher wrote.
    let (claimed, relaxed) = (worker.raw(), Ordering::Relaxed);
    if claimed == 0 || ticket.compare_exchange(claimed, 0, relaxed, relaxed).is_err() {
        return Err(anomaly(region));
    }
    let ended = end_from(region, slot, word, worker, tokens);
    if ended.is_err() {
        ticket.store(claimed, Ordering::Relaxed);
    }
    ended
}
