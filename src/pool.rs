//! The pool as its users have it: members, vetoes, loads, requests, statistics.
//!
//! Every change is made under the writer lock and committed by one store or exchange of a word of
//! its slot; the view is derived from the slots and published afterwards. If an owner of the lock
//! is lost in the middle (a panic, a fork), the next one finishes what was committed and derives
//! the view anew.

use crate::error::Error;
use crate::id::{WorkerId, next_generation};
use crate::load::{self, Begun, Load};
use crate::policy::{Tuning, unstarted_cursor};
use crate::region::{MAX_CAPACITY, Region, header};
use crate::stats::{self, Totals, WorkerStats};
use crate::sync::{self, Ordering};
use crate::ticket::{self, Stale, Ticket};
use crate::word::Word;
use crate::worker::{Slot, Vetoes, WorkerConfig, WorkerUpdate};
use crate::writer::Writer;
use crossbeam_utils::CachePadded;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng as _;
use std::collections::HashSet;
use std::sync::Arc;

/// What a pool is made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// The most workers at a time, draining ones among them: 1 to 65,535. Default 1,024.
    pub capacity: u32,
    /// A load counts as none this many milliseconds after its poll began; 0: never. Default 0.
    pub load_max_age_ms: u64,
    /// Fixes the cursor's start and the streams of pickers made with seed 0; 0: from the operating
    /// system. Default 0.
    pub seed: u64,
    /// What choices go by, until [`Pool::tune`].
    pub tuning: Tuning,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { capacity: 1024, load_max_age_ms: 0, seed: 0, tuning: Tuning::default() }
    }
}

/// What all handles of a pool share.
pub(crate) struct Shared {
    pub(crate) region: Region,
    /// Nanoseconds; 0: never.
    load_max_age: u64,
    pub(crate) seed: u64,
    /// Where the seed holds: not in processes that were forked off later.
    pub(crate) forks: u32,
}

/// A count of handles that is not the pool's own, so that threads that hold and drop requests
/// don't all write one counter.
pub(crate) type Lease = Arc<CachePadded<Arc<Shared>>>;

/// Leases a pool keeps ready; each thread takes one of them.
const LEASES: usize = 16;

/// The workers a router chooses from.
///
/// A cheap handle: clones are the same pool. Any thread may call any method at any time. Choices
/// (`pick`, `dispatch`) never wait for the methods that change the pool; those wait for each
/// other, at most one second, then fail with [`Error::Busy`].
#[derive(Clone)]
pub struct Pool {
    pub(crate) shared: Arc<Shared>,
    leases: Arc<[Lease; LEASES]>,
}

impl Pool {
    /// Makes an empty pool. Allocates all that it will ever need, in proportion to the capacity.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of range, [`Error::Io`] without random numbers or memory.
    pub fn new(config: PoolConfig) -> Result<Self, Error> {
        if config.capacity == 0 || config.capacity > MAX_CAPACITY {
            return Err(Error::invalid("capacity", config.capacity, "1 to 65535"));
        }
        let tuning = config.tuning.check()?;
        let random = || sync::entropy().map_err(Error::no_entropy);
        let region = Region::new(config.capacity as usize)
            .ok_or_else(|| Error::no_memory(Self::bytes(config.capacity)))?;

        // Each slot starts at the pool's random generation, so ids of two pools don't meet.
        let generation = next_generation(random()?);
        for slot in 0..region.capacity() {
            let line = Slot::of(&region, slot).expect("below the capacity");
            line.set_generation(generation);
            line.set_word(Word::vacant(generation));
        }
        let mut start = Xoshiro256PlusPlus::seed_from_u64(match config.seed {
            0 => random()?,
            seed => seed,
        });
        let put = |index: usize, value: u64| region.header(index).store(value, Ordering::Relaxed);
        put(header::CURSOR, unstarted_cursor(&mut start));
        put(header::TUNING, tuning.to_word());

        let shared = Arc::new(Shared {
            region,
            load_max_age: config.load_max_age_ms.saturating_mul(1_000_000),
            seed: config.seed,
            forks: sync::forks(),
        });
        let leases = std::array::from_fn(|_| Arc::new(CachePadded::new(shared.clone())));
        Ok(Self { shared, leases: Arc::new(leases) })
    }

    /// Bytes that a pool of this capacity allocates for its workers, once.
    pub fn bytes(capacity: u32) -> usize {
        Region::bytes(capacity as usize)
    }

    pub(crate) fn region(&self) -> &Region {
        &self.shared.region
    }

    pub(crate) fn writer(&self) -> Result<Writer<'_>, Error> {
        Writer::acquire(self.region(), self.shared.load_max_age)
    }

    pub(crate) fn lease(&self, thread: usize) -> Lease {
        self.leases[thread % LEASES].clone()
    }

    /// Changes what choices go by, for the choices that follow. Wait-free.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value out of range; nothing is changed.
    pub fn tune(&self, tuning: Tuning) -> Result<(), Error> {
        let word = tuning.check()?.to_word();
        self.region().header(header::TUNING).store(word, Ordering::Relaxed);
        Ok(())
    }

    /// What choices go by.
    pub fn tuning(&self) -> Tuning {
        Tuning::of(self.region())
    }

    /// Adds a worker, or revives one of this key that is draining: it keeps its id and its
    /// requests, gets this configuration and has no load. With [`WorkerConfig::fresh`] it is a new
    /// worker in any case. Each change of members writes the view anew: for many workers at once
    /// there is [`Pool::set_members`].
    ///
    /// # Errors
    /// [`Error::Exists`] if an active worker has the key, [`Error::Full`], [`Error::Invalid`].
    pub fn add(&self, key: u64, config: WorkerConfig<'_>) -> Result<WorkerId, Error> {
        config.check()?;
        let writer = self.writer()?;
        if writer.find(key).is_some() {
            return Err(Error::Exists { key });
        }
        let worker = writer.add(key, &config)?;
        writer.publish();
        Ok(worker)
    }

    /// Adds a worker, or, if an active one has the key, updates it. `None` adds with the defaults
    /// and leaves an active one as it is. Vetoes are set only on adding.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Invalid`].
    pub fn ensure<'a>(
        &self,
        key: u64,
        config: impl Into<Option<WorkerConfig<'a>>>,
    ) -> Result<WorkerId, Error> {
        let config = config.into();
        config.map_or(Ok(()), |config| config.check())?;
        let writer = self.writer()?;
        let worker = match (writer.find(key), config) {
            (Some(worker), None) => return Ok(worker),
            (Some(worker), Some(config)) => {
                writer.update(worker.slot(), writer.known_active(worker)?, &config.into());
                worker
            }
            (None, config) => writer.add(key, &config.unwrap_or_default())?,
        };
        writer.publish();
        Ok(worker)
    }

    /// Makes these the active workers, in one change: adds (or revives) those that are new, keeps
    /// those that are active, and drains the rest. Kept ones are updated, or left as they are
    /// where the configuration is `None`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a configuration or a key that comes twice; [`Error::Full`] if there
    /// are more new keys than vacant slots (those that this change would empty do not count).
    /// Nothing is changed then.
    pub fn set_members(&self, members: &[(u64, Option<WorkerConfig<'_>>)]) -> Result<(), Error> {
        let mut keys = HashSet::with_capacity(members.len());
        for (key, config) in members {
            config.map_or(Ok(()), |config| config.check())?;
            if !keys.insert(*key) {
                return Err(Error::invalid("key", key, "each key once"));
            }
        }
        let writer = self.writer()?;
        writer.set_members(members, &keys)
    }

    /// Changes the given fields of an active worker.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Invalid`].
    pub fn update(&self, worker: WorkerId, update: WorkerUpdate<'_>) -> Result<(), Error> {
        update.check()?;
        let writer = self.writer()?;
        writer.update(worker.slot(), writer.known_active(worker)?, &update);
        writer.publish();
        Ok(())
    }

    /// Sets or lifts vetoes of an active worker. The others' stay. Costs little where it changes
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn veto(&self, worker: WorkerId, vetoes: Vetoes, on: bool) -> Result<(), Error> {
        let writer = self.writer()?;
        let slot = writer.known_active(worker)?;
        let config = slot.config();
        let changed = config.with_vetoes(config.vetoes().with(vetoes, on));
        if changed != config {
            slot.set_config(changed);
            writer.publish();
        }
        Ok(())
    }

    /// Takes an active worker out: no dispatch that starts after this returns ends up on it, its
    /// requests end as always, and with the last of them its slot is vacant.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn remove(&self, worker: WorkerId) -> Result<(), Error> {
        let writer = self.writer()?;
        let slot = writer.known_active(worker)?;
        slot.set_config(slot.config().leaving());
        writer.publish();
        writer.close_leaving();
        Ok(())
    }

    /// Drops a worker, active or draining, with its counts. Its tickets are stale from then on.
    ///
    /// # Errors
    /// [`Error::Unknown`].
    pub fn abandon(&self, worker: WorkerId) -> Result<(), Error> {
        let writer = self.writer()?;
        let slot = writer.known(worker)?;
        if !slot.word().is_closed() {
            slot.set_config(slot.config().leaving());
            writer.publish();
        }
        if let Some(last) = slot.change(|word| Some(word.closed().emptied())) {
            let abandoned = self.region().header(header::ABANDONED);
            abandoned.fetch_add(last.in_flight().into(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// The active worker of this key.
    ///
    /// # Errors
    /// [`Error::UnknownKey`].
    pub fn find(&self, key: u64) -> Result<WorkerId, Error> {
        self.writer()?.find(key).ok_or(Error::UnknownKey { key })
    }

    /// Replaces the loads of all active workers by this report, as if its poll had begun now.
    /// Workers that are not in it have no load afterwards. Returns the number of rejected entries:
    /// of unknown workers, those after a worker's first valid one, and those whose tokens are `u64::MAX`.
    /// Does not allocate.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn publish(&self, loads: &[Load]) -> Result<usize, Error> {
        self.publish_each(loads.iter().copied())
    }

    pub(crate) fn publish_each(&self, loads: impl Iterator<Item = Load>) -> Result<usize, Error> {
        let writer = self.writer()?;
        let begun = Begun { number: writer.next(header::BEGUN), at: sync::now() };
        let mut rejected = 0;
        for load in loads {
            let covered = writer.known_active(load.worker).map(|slot| slot.word().tokens());
            let accepted = covered.is_ok_and(|mark| load::store(self.region(), &load, mark, begun));
            rejected += usize::from(!accepted);
        }
        for (slot, _) in writer.active() {
            load::store_absence(self.region(), slot, begun);
        }
        Ok(writer.publish_loads(rejected))
    }

    /// Counts a request on a worker that was chosen elsewhere. Vetoes don't bind it, the cap does.
    /// Lock-free, does not allocate.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Saturated`], [`Error::Overflow`].
    pub fn begin(&self, worker: WorkerId, tokens: u32) -> Result<Ticket, Error> {
        ticket::begin(self.region(), worker, tokens).map_err(|refusal| refusal.of(worker))
    }

    /// Ends a request. If fewer tokens are in flight than it claims, they stop at 0 and an anomaly
    /// is counted. Lock-free, does not allocate.
    ///
    /// # Errors
    /// [`Stale`], with the ticket, if its worker was abandoned or it is another pool's. An anomaly
    /// is counted and nothing else.
    #[inline]
    pub fn finish(&self, ticket: Ticket) -> Result<(), Stale> {
        ticket::end(self.region(), ticket.worker(), ticket.tokens()).map_err(|_| Stale { ticket })
    }

    /// Ends a request of this worker, for hosts that keep only the worker. Which of its requests
    /// can't be told. Lock-free, does not allocate.
    ///
    /// # Errors
    /// [`Error::Stale`] if the worker is unknown or has no request in flight.
    pub fn finish_worker(&self, worker: WorkerId, tokens: u32) -> Result<(), Error> {
        ticket::end(self.region(), worker, tokens).map_err(|refusal| refusal.of(worker))
    }

    /// Adds tokens to a request that runs. Lock-free, does not allocate.
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Overflow`]; the ticket is unchanged then.
    pub fn grow(&self, ticket: &mut Ticket, tokens: u32) -> Result<(), Error> {
        let worker = ticket.worker();
        ticket::grow(self.region(), ticket, tokens).map_err(|refusal| refusal.of(worker))
    }

    /// Moves a request to another worker, where only the cap binds. For a moment it counts on both.
    /// It ends once, on the last. Lock-free, does not allocate.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Saturated`] and [`Error::Overflow`] of the new worker,
    /// [`Error::Stale`] of the old; the ticket is unchanged then.
    pub fn retarget(&self, ticket: &mut Ticket, worker: WorkerId) -> Result<(), Error> {
        ticket::retarget(self.region(), ticket, worker).map_err(|refusal| refusal.of(worker))
    }

    /// All active and draining workers, in the order of their slots. Changes nothing that a choice
    /// depends on. Allocates.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn stats(&self) -> Result<Vec<WorkerStats>, Error> {
        let mut all = Vec::new();
        self.stats_each(|stats| all.push(*stats))?;
        Ok(all)
    }

    pub(crate) fn stats_each(&self, mut each: impl FnMut(&WorkerStats)) -> Result<(), Error> {
        let writer = self.writer()?;
        let max_age = self.shared.load_max_age;
        for (slot, _) in writer.slots() {
            if let Some(stats) = stats::of_slot(self.region(), slot, max_age) {
                each(&stats);
            }
        }
        Ok(())
    }

    /// Sums over the pool. Does not allocate.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn totals(&self) -> Result<Totals, Error> {
        let writer = self.writer()?;
        Ok(stats::totals(self.region(), writer.slots()))
    }
}
