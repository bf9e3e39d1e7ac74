//! The steps that change a pool, for whoever holds the writer lock.

use crate::error::Error;
use crate::id::{WorkerId, next_generation};
use crate::load;
use crate::region::{Region, header, record};
use crate::snapshot;
use crate::sync::{AtomicU64, Ordering, WriterLock};
use crate::word::Word;
use crate::worker::{Config, Slot, WorkerConfig, WorkerUpdate, read_label, write_label};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};

/// Holds the writer lock. All loads and stores here are relaxed but for those of the load word and
/// the view: E5 unlock→lock orders them between writers.
pub(crate) struct Writer<'a> {
    region: &'a Region,
    load_max_age: u64,
    /// No slot below was vacant when this writer looked.
    vacant_from: Cell<usize>,
    _lock: WriterLock<'a>,
}

impl<'a> Writer<'a> {
    pub(crate) fn acquire(region: &'a Region, load_max_age: u64) -> Result<Self, Error> {
        let lock = WriterLock::acquire(region.header(header::LOCK)).ok_or(Error::Busy)?;
        let broken = lock.broken;
        let writer = Self { region, load_max_age, vacant_from: Cell::new(0), _lock: lock };
        if broken {
            writer.close_leaving();
            writer.publish();
        }
        Ok(writer)
    }

    /// The next number of a counter, from 1.
    pub(crate) fn next(&self, counter: usize) -> u64 {
        self.region.header(counter).fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Makes the slots as they are what choices see.
    pub(crate) fn publish(&self) {
        snapshot::publish(self.region, self.load_max_age);
    }

    /// Every slot that was ever used.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, Slot<'a>)> + use<'a> {
        let region = self.region;
        let used = region.header(header::USED).load(Ordering::Relaxed) as usize;
        (0..used).filter_map(move |slot| Slot::of(region, slot).map(|line| (slot, line)))
    }

    pub(crate) fn active(&self) -> impl Iterator<Item = (usize, Slot<'a>)> + use<'a> {
        self.slots().filter(|(_, line)| !line.word().is_closed())
    }

    /// The slot of a worker that is active or draining.
    pub(crate) fn known(&self, worker: WorkerId) -> Result<Slot<'a>, Error> {
        Slot::of(self.region, worker.slot())
            .filter(|line| line.generation() == worker.generation() && !line.word().is_vacant())
            .ok_or(Error::Unknown { worker })
    }

    /// The slot of a worker that is active.
    pub(crate) fn known_active(&self, worker: WorkerId) -> Result<Slot<'a>, Error> {
        self.known(worker)
            .ok()
            .filter(|line| !line.word().is_closed())
            .ok_or(Error::Unknown { worker })
    }

    fn key(&self, slot: usize) -> &'a AtomicU64 {
        &self.region.keys()[slot]
    }

    /// The slots of this key. A key's active worker is the only one; of draining ones there may be
    /// several.
    fn slots_of(&self, key: u64) -> impl Iterator<Item = (usize, Slot<'a>)> + use<'a> {
        let keys = self.region.keys();
        self.slots().filter(move |&(slot, _)| keys[slot].load(Ordering::Relaxed) == key)
    }

    pub(crate) fn find(&self, key: u64) -> Option<WorkerId> {
        self.slots_of(key)
            .find(|(_, line)| !line.word().is_closed())
            .map(|(slot, line)| WorkerId::new(slot, line.generation()))
    }

    /// The last one added of this key's draining workers.
    fn draining(&self, key: u64) -> Option<usize> {
        self.slots_of(key)
            .map(|(slot, _)| slot)
            .filter(|&slot| self.is_draining(slot))
            .max_by_key(|&slot| self.joined(slot))
    }

    fn is_draining(&self, slot: usize) -> bool {
        Slot::of(self.region, slot)
            .is_some_and(|line| line.word().is_closed() && !line.word().is_vacant())
    }

    fn joined(&self, slot: usize) -> u64 {
        self.region.record(slot)[record::JOINED].load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, key: u64, config: &WorkerConfig<'_>) -> Result<WorkerId, Error> {
        let draining = if config.fresh { None } else { self.draining(key) };
        self.revive_or_join(key, config, draining)
    }

    fn revive_or_join(
        &self,
        key: u64,
        config: &WorkerConfig<'_>,
        draining: Option<usize>,
    ) -> Result<WorkerId, Error> {
        match draining.and_then(|slot| self.revive(slot, config)) {
            Some(worker) => Ok(worker),
            None => self.join(key, config),
        }
    }

    /// Opens a draining worker again; none if its last request has ended meanwhile.
    fn revive(&self, slot: usize, config: &WorkerConfig<'_>) -> Option<WorkerId> {
        let line = Slot::of(self.region, slot)?;
        self.configure(slot, line, config);
        line.change(|word| (!word.is_vacant()).then(|| word.opened()))?;
        Some(WorkerId::new(slot, line.generation()))
    }

    /// Makes a vacant slot a new worker.
    fn join(&self, key: u64, config: &WorkerConfig<'_>) -> Result<WorkerId, Error> {
        let (slot, line) = self.vacant()?;
        let generation = next_generation(line.generation());
        let record = self.region.record(slot);
        let put = |index: usize, value: u64| record[index].store(value, Ordering::Relaxed);
        put(record::JOINED, self.next(header::JOINED));
        put(record::FINISHED_BASE, line.finished(generation));
        put(record::LOAD_BEGUN, 0);
        self.key(slot).store(key, Ordering::Relaxed);
        self.configure(slot, line, config);
        line.set_generation(generation);
        self.region.header(header::USED).fetch_max(slot as u64 + 1, Ordering::Relaxed);
        line.set_word(Word::vacant(generation).opened());
        Ok(WorkerId::new(slot, generation))
    }

    /// The lowest vacant slot, so that slots stay dense.
    fn vacant(&self) -> Result<(usize, Slot<'a>), Error> {
        let capacity = self.region.capacity();
        let vacant = |slots: std::ops::Range<usize>| {
            slots
                .filter_map(|slot| Slot::of(self.region, slot).map(|line| (slot, line)))
                .find(|(_, line)| line.word().is_vacant())
        };
        let from = self.vacant_from.get();
        let found = vacant(from..capacity).or_else(|| vacant(0..from));
        let (slot, line) = found.ok_or(Error::Full { capacity: capacity as u32 })?;
        self.vacant_from.set(slot);
        Ok((slot, line))
    }

    fn configure(&self, slot: usize, line: Slot<'_>, config: &WorkerConfig<'_>) {
        line.set_config(Config::of(config));
        let record = self.region.record(slot);
        load::forget(record);
        write_label(record, config.label);
    }

    /// Returns whether anything is different now.
    pub(crate) fn update(&self, slot: usize, line: Slot<'_>, update: &WorkerUpdate<'_>) -> bool {
        let record = self.region.record(slot);
        let label = update.label.filter(|&label| *read_label(record) != *label);
        if let Some(label) = label {
            write_label(record, label);
        }
        let config = line.config();
        line.set_config(config.updated(update));
        line.config() != config || label.is_some()
    }

    pub(crate) fn set_members(
        &self,
        members: &[(u64, Option<WorkerConfig<'_>>)],
        keys: &HashSet<u64>,
    ) -> Result<(), Error> {
        let key = |slot: usize| self.key(slot).load(Ordering::Relaxed);
        let active: HashMap<u64, (usize, Slot<'_>)> =
            self.active().map(|(slot, line)| (key(slot), (slot, line))).collect();
        let mut draining: Vec<usize> =
            self.slots().map(|(slot, _)| slot).filter(|&slot| self.is_draining(slot)).collect();
        draining.sort_by_key(|&slot| self.joined(slot));
        let draining: HashMap<u64, usize> =
            draining.into_iter().map(|slot| (key(slot), slot)).collect();
        let draining_of = |key: &u64, config: &WorkerConfig<'_>| match config.fresh {
            true => None,
            false => draining.get(key).copied(),
        };

        let joining = members.iter().filter(|(key, config)| {
            !active.contains_key(key) && draining_of(key, &config.unwrap_or_default()).is_none()
        });
        let taken = self.slots().filter(|(_, line)| !line.word().is_vacant()).count();
        if joining.count() > self.region.capacity() - taken {
            return Err(Error::Full { capacity: self.region.capacity() as u32 });
        }

        let mut changed = false;
        for (key, config) in members {
            match active.get(key) {
                Some(&(slot, line)) => {
                    changed |= config.is_some_and(|config| self.update(slot, line, &config.into()));
                }
                None => {
                    let config = config.unwrap_or_default();
                    self.revive_or_join(*key, &config, draining_of(key, &config))?;
                    changed = true;
                }
            }
        }
        for (key, (_, line)) in &active {
            if !keys.contains(key) {
                line.set_config(line.config().leaving());
                changed = true;
            }
        }
        if changed {
            self.publish();
            self.close_leaving();
        }
        Ok(())
    }

    /// Closes the workers that are leaving. The view without them is published before, so that no
    /// choice finds a pool empty in which another worker has taken a leaving one's place.
    pub(crate) fn close_leaving(&self) {
        for (_, line) in self.active().filter(|(_, line)| line.config().is_leaving()) {
            line.change(|word| Some(word.closed()));
        }
    }

    /// Publishes what a report brought, and counts what it had rejected.
    pub(crate) fn publish_loads(&self, rejected: usize) -> usize {
        self.region.header(header::REJECTED).fetch_add(rejected as u64, Ordering::Relaxed);
        self.publish();
        rejected
    }
}
