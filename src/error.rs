//! What can go wrong, in words that name the value and what is allowed.

use crate::id::WorkerId;
use std::fmt;

/// Why an operation did nothing. Whatever fails leaves the pool as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A value outside what is allowed.
    Invalid(Invalid),
    /// Every slot of the pool is taken.
    Full {
        /// The pool's capacity.
        capacity: u32,
    },
    /// An active worker has this key already.
    Exists {
        /// The key.
        key: u64,
    },
    /// No active worker has this key.
    UnknownKey {
        /// The key.
        key: u64,
    },
    /// The id is none of a worker that this operation applies to: never given out by this pool,
    /// or of a worker that was removed.
    Unknown {
        /// The id.
        worker: WorkerId,
    },
    /// No eligible worker.
    Empty,
    /// Every worker that is eligible otherwise is at its `max_in_flight`.
    Saturated,
    /// The request has ended already, its worker was abandoned, or the ticket is another pool's.
    Stale,
    /// A count would not fit: 1,048,575 requests or 4,294,967,295 tokens in flight on one worker.
    Overflow,
    /// Other threads kept the writers' lock for one second.
    Busy,
    /// The operating system gave no random numbers, or no memory for the pool.
    Io(String),
}

/// A value that is not allowed, and what is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    what: &'static str,
    value: String,
    allowed: &'static str,
}

impl Error {
    pub(crate) fn no_entropy(reason: std::io::Error) -> Self {
        Self::Io(format!("no random numbers from the operating system: {reason}"))
    }

    pub(crate) fn no_memory(bytes: usize) -> Self {
        Self::Io(format!("no memory from the operating system for a pool of {bytes} bytes"))
    }

    pub(crate) fn invalid(
        what: &'static str,
        value: impl fmt::Display,
        allowed: &'static str,
    ) -> Self {
        Self::Invalid(Invalid { what, value: value.to_string(), allowed })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(Invalid { what, value, allowed }) => {
                write!(f, "{what} is {value}; allowed: {allowed}")
            }
            Self::Full { capacity } => write!(f, "all {capacity} slots of the pool are taken"),
            Self::Exists { key } => write!(f, "an active worker has the key {key} already"),
            Self::UnknownKey { key } => write!(f, "no active worker has the key {key}"),
            Self::Unknown { worker } => write!(f, "{worker} is not a worker that this applies to"),
            Self::Empty => f.write_str("no worker is eligible"),
            Self::Saturated => f.write_str("every eligible worker is at its max_in_flight"),
            Self::Stale => f.write_str(
                "the request has ended already, its worker was abandoned, or it is another pool's",
            ),
            Self::Overflow => f.write_str(
                "a count would not fit; a worker has at most 1048575 requests and 4294967295 tokens in flight",
            ),
            Self::Busy => f.write_str("other threads kept changing the pool for one second"),
            Self::Io(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {}

/// Why the core refused: small enough to come back in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    Empty,
    Saturated,
    Overflow,
    Unknown,
    Stale,
}

impl Refusal {
    /// The refusal of this number, as `as` gives it.
    #[cold]
    pub(crate) fn from_number(number: u64) -> Self {
        let all = [Self::Empty, Self::Saturated, Self::Overflow, Self::Unknown, Self::Stale];
        all[number as usize]
    }

    #[cold]
    pub(crate) fn of(self, worker: WorkerId) -> Error {
        match self {
            Self::Empty => Error::Empty,
            Self::Overflow => Error::Overflow,
            Self::Saturated => Error::Saturated,
            Self::Unknown => Error::Unknown { worker },
            Self::Stale => Error::Stale,
        }
    }
}
