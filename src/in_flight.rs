//! A ticket that finishes itself.

use crate::error::{Error, Refusal};
use crate::id::WorkerId;
use crate::pool::{Lease, Pool, Shared};
use crate::region::Region;
use crate::sync;
use crate::ticket::{self, Stale, Ticket};

/// A request in flight that ends when this is dropped: at the end of a scope, on unwinding, when a
/// future is dropped because its client left. `InFlight<'static>` owns its share of the pool, may
/// move to other threads, and outlives picker and pool.
#[must_use = "the request ends when this is dropped"]
pub struct InFlight<'p> {
    holder: Holder<'p>,
    /// None only while it is taken out.
    ticket: Option<Ticket>,
}

enum Holder<'p> {
    Borrowed(&'p Shared),
    Owned(Lease),
}

impl Pool {
    /// Finishes the request when dropped. Borrows the pool.
    pub fn guard(&self, ticket: Ticket) -> InFlight<'_> {
        InFlight::borrowed(&self.shared, ticket)
    }

    /// Finishes the request when dropped, on any thread and also after all handles of the pool are
    /// gone: for response bodies.
    pub fn guard_owned(&self, ticket: Ticket) -> InFlight<'static> {
        InFlight::owned(self.lease(sync::thread_number()), ticket)
    }
}

impl<'p> InFlight<'p> {
    fn borrowed(shared: &'p Shared, ticket: Ticket) -> Self {
        Self { holder: Holder::Borrowed(shared), ticket: Some(ticket) }
    }

    pub(crate) fn owned(lease: Lease, ticket: Ticket) -> Self {
        Self { holder: Holder::Owned(lease), ticket: Some(ticket) }
    }

    /// The worker that the request counts on.
    pub fn worker(&self) -> WorkerId {
        self.ticket.as_ref().map_or(WorkerId::from_raw(0), Ticket::worker)
    }

    /// The tokens that it counts.
    pub fn tokens(&self) -> u32 {
        self.ticket.as_ref().map_or(0, Ticket::tokens)
    }

    /// As [`Pool::grow`](crate::Pool::grow).
    ///
    /// # Errors
    /// [`Error::Stale`], [`Error::Overflow`].
    pub fn grow(&mut self, tokens: u32) -> Result<(), Error> {
        let worker = self.worker();
        self.change(worker, |region, ticket| ticket::grow(region, ticket, tokens))
    }

    /// As [`Pool::retarget`](crate::Pool::retarget).
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Saturated`], [`Error::Overflow`], [`Error::Stale`].
    pub fn retarget(&mut self, worker: WorkerId) -> Result<(), Error> {
        self.change(worker, |region, ticket| ticket::retarget(region, ticket, worker))
    }

    /// Ends the request now, and says whether it was still in flight.
    ///
    /// # Errors
    /// [`Stale`] if its worker was abandoned.
    pub fn finish(mut self) -> Result<(), Stale> {
        match self.ticket.take() {
            Some(ticket) => end(self.holder.region(), ticket),
            None => Ok(()),
        }
    }

    /// The ticket, which is then to be finished by hand.
    pub fn into_ticket(mut self) -> Ticket {
        self.ticket.take().expect("taken only by what consumes the guard")
    }

    fn change(
        &mut self,
        worker: WorkerId,
        change: impl FnOnce(&Region, &mut Ticket) -> Result<(), Refusal>,
    ) -> Result<(), Error> {
        match &mut self.ticket {
            Some(ticket) => {
                change(self.holder.region(), ticket).map_err(|refusal| refusal.of(worker))
            }
            None => Ok(()),
        }
    }
}

impl Holder<'_> {
    fn region(&self) -> &Region {
        match self {
            Self::Borrowed(shared) => &shared.region,
            Self::Owned(lease) => &lease.region,
        }
    }
}

fn end(region: &Region, ticket: Ticket) -> Result<(), Stale> {
    ticket::end(region, ticket.worker(), ticket.tokens()).map_err(|_| Stale { ticket })
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            // Stale is counted as an anomaly, and there is nobody here to tell.
            let _ = end(self.holder.region(), ticket);
        }
    }
}
