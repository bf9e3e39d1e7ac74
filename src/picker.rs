//! The reader side: picks and dispatches, with a picker's or the thread's own random generator.

use crate::error::{Error, Refusal};
use crate::id::WorkerId;
use crate::in_flight::InFlight;
use crate::policy::{Request, Rng, below, by_policy, choose, choose_plainly};
use crate::pool::{Lease, Pool, Shared};
use crate::region::{Region, header};
use crate::snapshot::View;
use crate::sync::{self, Ordering, PICK_RETRIES};
use crate::ticket::{Answer, Commit, Ticket, commit};
use crate::worker::Slot;

use crossbeam_utils::CachePadded;
use rand_xoshiro::rand_core::SeedableRng as _;
use std::cell::RefCell;
use std::sync::Arc;

/// Chooses for one thread at a time, with its own random generator: repeatable with a seed, and
/// faster than the pool's methods.
pub struct Picker {
    shared: Arc<Shared>,
    lease: Lease,
    rng: Rng,
    /// Draw anew in a process that was forked off this many forks in; never, if the stream was
    /// asked for by a seed.
    forks: Option<u32>,
}

impl Pool {
    /// A picker with its own stream of random numbers: the one of this seed; with seed 0 the next
    /// one of the pool's seed; if that is 0 too, one from the operating system. Allocates.
    ///
    /// # Errors
    /// [`Error::Io`] without random numbers from the operating system.
    pub fn picker(&self, seed: u64) -> Result<Picker, Error> {
        let number = self.region().header(header::PICKERS).fetch_add(1, Ordering::Relaxed);
        let rng = match (seed, self.shared.seed) {
            (0, 0) => fresh_rng()?,
            // A child's pool would give the streams that its parent's gives.
            (0, _) if sync::forks() != self.shared.forks => fresh_rng()?,
            // Streams of neighbouring seeds are apart: seeding mixes the bits.
            (0, pool) => Rng::seed_from_u64(pool.rotate_left(32).wrapping_add(number)),
            (seed, _) => Rng::seed_from_u64(seed),
        };
        let lease = Arc::new(CachePadded::new(self.shared.clone()));
        Ok(Picker { shared: self.shared.clone(), lease, rng, forks: (seed == 0).then(sync::forks) })
    }

    /// Chooses a worker and counts nothing. Wait-free, does not allocate; of two concurrent picks
    /// both may choose the same worker.
    ///
    /// # Errors
    /// [`Error::Empty`].
    pub fn pick(&self, request: &Request<'_>) -> Result<WorkerId, Error> {
        with_thread_rng(|rng| pick(self.region(), request, rng))
    }

    /// Chooses a worker and counts the request on it, in one step. Lock-free, does not allocate.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::Saturated`], and [`Error::Overflow`] if no eligible worker has room
    /// for the request's tokens.
    pub fn dispatch(&self, request: &Request<'_>) -> Result<Ticket, Error> {
        with_thread_rng(|rng| dispatch(self.region(), request, rng).ticket())
    }
}

impl Picker {
    /// As [`Pool::pick`].
    ///
    /// # Errors
    /// As [`Pool::pick`].
    #[inline]
    pub fn pick(&mut self, request: &Request<'_>) -> Result<WorkerId, Error> {
        self.draw_anew_after_fork()?;
        pick(&self.shared.region, request, &mut self.rng).map_err(no_worker)
    }

    /// As [`Pool::dispatch`].
    ///
    /// # Errors
    /// As [`Pool::dispatch`].
    #[inline]
    pub fn dispatch(&mut self, request: &Request<'_>) -> Result<Ticket, Error> {
        self.draw_anew_after_fork()?;
        dispatch(&self.shared.region, request, &mut self.rng).ticket().map_err(no_worker)
    }

    /// As [`Pool::guard_owned`].
    pub fn guard_owned(&self, ticket: Ticket) -> InFlight<'static> {
        InFlight::owned(self.lease.clone(), ticket)
    }

    #[inline]
    fn draw_anew_after_fork(&mut self) -> Result<(), Error> {
        if self.forks.is_some_and(|forks| forks != sync::forks()) {
            self.rng = fresh_rng()?;
            self.forks = Some(sync::forks());
        }
        Ok(())
    }
}

fn no_worker(refusal: Refusal) -> Error {
    refusal.of(WorkerId::from_raw(0))
}

fn fresh_rng() -> Result<Rng, Error> {
    let seed = sync::entropy().map_err(Error::no_entropy)?;
    Ok(Rng::seed_from_u64(seed))
}

/// Runs with the calling thread's generator. It is drawn from the operating system, never from a
/// seed, and anew in a forked child. It needs no destructor, so that a library with it can be
/// unloaded.
#[inline]
fn with_thread_rng<R>(run: impl FnOnce(&mut Rng) -> Result<R, Refusal>) -> Result<R, Error> {
    thread_local! {
        static RNG: RefCell<Option<(u32, Rng)>> = const { RefCell::new(None) };
    }
    RNG.with_borrow_mut(|slot| {
        let rng = match slot {
            Some((forks, rng)) if *forks == sync::forks() => rng,
            _ => &mut slot.insert((sync::forks(), fresh_rng()?)).1,
        };
        run(rng).map_err(no_worker)
    })
}

/// Plain requests have functions of their own, and what those need of them comes in
/// registers: a caller that is inlined need not have such a request in memory. So the request is
/// copied where it has lists, or a hash that counts.
#[inline]
pub(crate) fn pick(
    region: &Region,
    request: &Request<'_>,
    rng: &mut Rng,
) -> Result<WorkerId, Refusal> {
    let policy = request.policy_in(region);
    match request.is_plain(policy) {
        true => by_policy!(policy, pick_plain(region, rng)),
        false => {
            let request = *request;
            by_policy!(policy, pick_by(region, &request, rng))
        }
    }
}

/// See [`pick`].
#[inline(always)]
pub(crate) fn dispatch(region: &Region, request: &Request<'_>, rng: &mut Rng) -> Answer {
    let policy = request.policy_in(region);
    match request.is_plain(policy) {
        true => by_policy!(policy, dispatch_plain(region, request.tokens, rng)),
        false => {
            let request = *request;
            by_policy!(policy, dispatch_by(region, &request, rng))
        }
    }
}

#[inline(never)]
fn pick_plain<const POLICY: u32>(region: &Region, rng: &mut Rng) -> Result<WorkerId, Refusal> {
    let view = View::newest(region);
    if let Some(choice) = choose_plainly::<POLICY>(view, false, rng) {
        let id = view.id(choice.position);
        if view.is_whole() {
            return Ok(id);
        }
    }
    pick_by::<POLICY>(region, &Request::default(), rng)
}

#[inline(never)]
fn pick_by<const POLICY: u32>(
    region: &Region,
    request: &Request<'_>,
    rng: &mut Rng,
) -> Result<WorkerId, Refusal> {
    let mut retries = 0;
    loop {
        let view = View::newest(region);
        let picked = choose::<POLICY>(view, request, false, None, rng)
            .map(|choice| view.id(choice.position));
        let settled = match picked {
            Ok(_) => view.is_whole(),
            // Where a worker has come meanwhile, there may have been one all the time.
            Err(_) => view.is_newest(),
        };
        if settled {
            return picked;
        }
        if retries == PICK_RETRIES {
            // R3: the load may be another report's, the worker not one that the lists leave out.
            let advice = picked.ok().filter(|&worker| request.allows(worker));
            return advice.map_or_else(|| pick_any(region, request, rng), Ok);
        }
        retries += 1;
    }
}

/// An eligible worker, looked for in the slots themselves: for picks that publishers overtook again
/// and again. Looks once more, a bounded number of times, if all changed while it looked.
#[cold]
fn pick_any(region: &Region, request: &Request<'_>, rng: &mut Rng) -> Result<WorkerId, Refusal> {
    let used = region.header(header::USED).load(Ordering::Relaxed) as usize;
    let start = below(rng, used.max(1));
    for _ in 0..=PICK_RETRIES {
        let view = View::newest(region);
        for slot in (start..used).chain(0..start.min(used)) {
            let Some(line) = Slot::of(region, slot) else { continue };
            let word = line.word();
            let worker = WorkerId::new(slot, line.generation());
            let open = word.is_open(worker.generation()) && line.config().is_choosable();
            if open && request.allows(worker) {
                return Ok(worker);
            }
        }
        if view.is_newest() {
            break;
        }
    }
    Err(Refusal::Empty)
}

#[inline(never)]
fn dispatch_plain<const POLICY: u32>(region: &Region, tokens: u32, rng: &mut Rng) -> Answer {
    try_plain::<POLICY>(region, tokens, rng)
        .unwrap_or_else(|| dispatch_plain_again::<POLICY>(region, tokens, rng))
}

/// Apart from the first try, which so keeps to the registers.
#[cold]
#[inline(never)]
fn dispatch_plain_again<const POLICY: u32>(region: &Region, tokens: u32, rng: &mut Rng) -> Answer {
    loop {
        if let Some(answer) = try_plain::<POLICY>(region, tokens, rng) {
            return answer;
        }
    }
}

/// One try to dispatch a request without lists: none if the chosen worker is not what it was.
#[inline(always)]
fn try_plain<const POLICY: u32>(region: &Region, tokens: u32, rng: &mut Rng) -> Option<Answer> {
    let view = View::newest(region);
    let Some(choice) = choose_plainly::<POLICY>(view, true, rng) else {
        return Some(dispatch_plain_by::<POLICY>(region, tokens, rng));
    };
    let id = view.id(choice.position);
    if !view.is_whole() {
        return None;
    }
    match commit::<POLICY>(&view, id, choice, tokens) {
        Commit::Counted => Some(Answer::counted(id, tokens)),
        Commit::Moved => None,
        Commit::Overflow => Some(dispatch_plain_with_room::<POLICY>(region, tokens, rng)),
    }
}

/// Makes the request that a plain one is, out of the straight way.
#[cold]
#[inline(never)]
fn dispatch_plain_by<const POLICY: u32>(region: &Region, tokens: u32, rng: &mut Rng) -> Answer {
    dispatch_by::<POLICY>(region, &Request { tokens, ..Request::default() }, rng)
}

/// See [`dispatch_plain_by`].
#[cold]
#[inline(never)]
fn dispatch_plain_with_room<const POLICY: u32>(
    region: &Region,
    tokens: u32,
    rng: &mut Rng,
) -> Answer {
    dispatch_with_room::<POLICY>(region, &Request { tokens, ..Request::default() }, rng)
}

#[inline(never)]
fn dispatch_by<const POLICY: u32>(region: &Region, request: &Request<'_>, rng: &mut Rng) -> Answer {
    dispatch_to::<POLICY>(region, request, None, rng)
}

/// For the rare case that the chosen worker has no room: among those that have.
#[cold]
#[inline(never)]
fn dispatch_with_room<const POLICY: u32>(
    region: &Region,
    request: &Request<'_>,
    rng: &mut Rng,
) -> Answer {
    dispatch_to::<POLICY>(region, request, Some(request.tokens), rng)
}

#[inline(always)]
fn dispatch_to<const POLICY: u32>(
    region: &Region,
    request: &Request<'_>,
    room_for: Option<u32>,
    rng: &mut Rng,
) -> Answer {
    loop {
        let view = View::newest(region);
        match choose::<POLICY>(view, request, true, room_for, rng) {
            Ok(choice) => {
                let id = view.id(choice.position);
                if view.is_whole() {
                    match commit::<POLICY>(&view, id, choice, request.tokens) {
                        Commit::Counted => return Answer::counted(id, request.tokens),
                        Commit::Overflow if room_for.is_none() => {
                            return dispatch_with_room::<POLICY>(region, request, rng);
                        }
                        Commit::Moved | Commit::Overflow => {}
                    }
                }
            }
            Err(refusal) if view.is_newest() => {
                if refusal == Refusal::Saturated {
                    region.header(header::SATURATED).fetch_add(1, Ordering::Relaxed);
                }
                return Answer::refused(refusal);
            }
            Err(_) => {}
        }
    }
}
