//! Polls: one question to one engine, from sending to answer.

use crate::error::Error;
use crate::id::WorkerId;
use crate::load::{self, Begun, Load};
use crate::pool::Pool;
use crate::region::header;
use crate::sync;

/// A question to an engine about a fixed set of workers, asked again and again.
///
/// [`Poll::begin`] it when it is sent and [`Poll::publish`] the answer. What the pool counts in
/// between is credited on top of the answer, so an answer that was long under way does not make
/// its workers look idle. Whatever happens in between to other polls, their workers and this
/// one's keep the report whose poll began last.
pub struct Poll {
    pool: Pool,
    /// In the order of their slots; none: the ones that are active at each begin.
    workers: Option<Box<[WorkerId]>>,
    /// Each covered worker's tokens in flight at the begin, in the order of their slots.
    marks: Vec<(WorkerId, u32)>,
    begun: Option<Begun>,
}

impl Pool {
    /// A question to an engine about these workers; `None`: the ones that are active at each begin.
    /// Allocates.
    pub fn poll(&self, workers: Option<&[WorkerId]>) -> Poll {
        Poll::new(self.clone(), workers)
    }
}

impl Poll {
    fn new(pool: Pool, workers: Option<&[WorkerId]>) -> Self {
        let marks = Vec::with_capacity(workers.map_or(pool.region().capacity(), <[_]>::len));
        let workers = workers.map(|workers| {
            let mut workers = workers.to_vec();
            workers.sort_unstable_by_key(|worker| (worker.slot(), *worker));
            workers.dedup();
            workers.into_boxed_slice()
        });
        Self { pool, workers, marks, begun: None }
    }

    /// Call it right before the question is sent. A poll that was begun and not published starts
    /// anew. Takes the writer lock; does not allocate.
    ///
    /// # Errors
    /// [`Error::Busy`]; an earlier begin then still stands.
    pub fn begin(&mut self) -> Result<(), Error> {
        let Self { pool, workers, marks, begun } = self;
        let writer = pool.writer()?;
        marks.clear();
        match workers {
            Some(workers) => marks.extend(workers.iter().filter_map(|&worker| {
                let slot = writer.known_active(worker).ok()?;
                Some((worker, slot.word().tokens()))
            })),
            None => marks.extend(writer.active().map(|(slot, line)| {
                (WorkerId::new(slot, line.generation()), line.word().tokens())
            })),
        }
        *begun = Some(Begun { number: writer.next(header::BEGUN), at: sync::now() });
        Ok(())
    }

    /// Publishes the answer. Covered workers that are not in it have no load afterwards; other
    /// workers' loads stay. Returns the number of rejected entries: of workers that it does not
    /// cover, those after a worker's first valid one, those whose tokens are `u64::MAX`, and those of workers
    /// whose stored report is of a poll that began later. Takes the writer lock; does not allocate.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was not begun since it was last published, [`Error::Busy`].
    pub fn publish(&mut self, loads: &[Load]) -> Result<usize, Error> {
        self.publish_each(loads.iter().copied())
    }

    pub(crate) fn publish_each(
        &mut self,
        loads: impl Iterator<Item = Load>,
    ) -> Result<usize, Error> {
        let begun = self.begun.ok_or_else(|| {
            Error::invalid("the poll", "not begun", "publishing once after each begin")
        })?;
        let writer = self.pool.writer()?;
        self.begun = None;
        let mut rejected = 0;
        for load in loads {
            let mark = self
                .marks
                .binary_search_by_key(&load.worker.slot(), |(worker, _)| worker.slot())
                .ok()
                .map(|at| self.marks[at])
                .filter(|&(worker, _)| {
                    worker == load.worker && writer.known_active(worker).is_ok()
                });
            let accepted = mark
                .is_some_and(|(_, tokens)| load::store(self.pool.region(), &load, tokens, begun));
            rejected += usize::from(!accepted);
        }
        for &(worker, _) in &self.marks {
            if writer.known_active(worker).is_ok() {
                load::store_absence(self.pool.region(), worker.slot(), begun);
            }
        }
        Ok(writer.publish_loads(rejected))
    }
}
