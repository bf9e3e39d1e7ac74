//! Status codes, the last error in words, and the fence that no panic passes.

use crate::error::Error;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What functions return: 0, or a negative number. Frozen.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ek_status {
    /// Done.
    EK_OK = 0,
    /// A pointer is NULL that must not be.
    EK_ERR_NULL = -1,
    /// A value outside what is allowed.
    EK_ERR_INVALID = -2,
    /// Every slot of the pool is taken.
    EK_ERR_FULL = -3,
    /// An active worker has this key already.
    EK_ERR_EXISTS = -4,
    /// No such worker.
    EK_ERR_UNKNOWN = -5,
    /// No worker is eligible.
    EK_ERR_EMPTY = -6,
    /// Every worker that is eligible otherwise is at its max_in_flight.
    EK_ERR_SATURATED = -7,
    /// The request has ended already, its worker was abandoned, or it is another pool's.
    EK_ERR_STALE = -8,
    /// A count would not fit.
    EK_ERR_OVERFLOW = -9,
    /// Other threads kept changing the pool for one second.
    EK_ERR_BUSY = -10,
    /// A struct is larger than this library's, and what is beyond isn't 0.
    EK_ERR_VERSION = -11,
    /// The operating system gave no random numbers, or no memory for the pool.
    EK_ERR_IO = -12,
    /// A fault inside the library. The pool stays usable.
    EK_ERR_PANIC = -13,
}

use ek_status::*;

impl ek_status {
    const ALL: [Self; 14] = [
        EK_OK,
        EK_ERR_NULL,
        EK_ERR_INVALID,
        EK_ERR_FULL,
        EK_ERR_EXISTS,
        EK_ERR_UNKNOWN,
        EK_ERR_EMPTY,
        EK_ERR_SATURATED,
        EK_ERR_STALE,
        EK_ERR_OVERFLOW,
        EK_ERR_BUSY,
        EK_ERR_VERSION,
        EK_ERR_IO,
        EK_ERR_PANIC,
    ];

    fn text(self) -> &'static CStr {
        match self {
            EK_OK => c"ok",
            EK_ERR_NULL => c"a pointer is NULL",
            EK_ERR_INVALID => c"a value is not allowed",
            EK_ERR_FULL => c"the pool is full",
            EK_ERR_EXISTS => c"the key exists",
            EK_ERR_UNKNOWN => c"no such worker",
            EK_ERR_EMPTY => c"no worker is eligible",
            EK_ERR_SATURATED => c"every eligible worker is at its cap",
            EK_ERR_STALE => c"the request is not in flight",
            EK_ERR_OVERFLOW => c"a count would not fit",
            EK_ERR_BUSY => c"the pool is being changed",
            EK_ERR_VERSION => c"a struct is of a later version",
            EK_ERR_IO => c"the operating system failed",
            EK_ERR_PANIC => c"a fault inside the library",
        }
    }
}

/// An error whose words this thread's message has: every way to make one writes them.
#[derive(Debug)]
pub(super) struct Failed(ek_status);

impl Failed {
    #[cold]
    pub(super) fn new(status: ek_status, words: fmt::Arguments<'_>) -> Self {
        LAST.with_borrow_mut(|last| {
            last.len = 0;
            // Stops where the buffer is full.
            let _ = last.write_fmt(words);
        });
        Self(status)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn null(what: &str) -> Self {
        Self::new(EK_ERR_NULL, format_args!("{what} is NULL"))
    }

    #[cold]
    pub(super) fn invalid(what: &str, value: impl fmt::Display, allowed: &str) -> Self {
        Self::new(EK_ERR_INVALID, format_args!("{what} is {value}; allowed: {allowed}"))
    }

    #[cold]
    #[inline(never)]
    fn panic(payload: Box<dyn Any + Send>) -> Self {
        let words = payload.downcast_ref::<&str>().copied();
        let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let words = words.unwrap_or("no words");
        Self::new(EK_ERR_PANIC, format_args!("a fault inside evenkeel: {words}"))
    }
}

impl From<Error> for Failed {
    #[cold]
    #[inline(never)]
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Invalid(_) => EK_ERR_INVALID,
            Error::Full { .. } => EK_ERR_FULL,
            Error::Exists { .. } => EK_ERR_EXISTS,
            Error::UnknownKey { .. } | Error::Unknown { .. } => EK_ERR_UNKNOWN,
            Error::Empty => EK_ERR_EMPTY,
            Error::Saturated => EK_ERR_SATURATED,
            Error::Stale => EK_ERR_STALE,
            Error::Overflow => EK_ERR_OVERFLOW,
            Error::Busy => EK_ERR_BUSY,
            Error::Io(_) => EK_ERR_IO,
        };
        Self::new(status, format_args!("{error}"))
    }
}

/// Runs what a function does and gives its status.
#[inline]
pub(super) fn status(run: impl FnOnce() -> Result<(), Failed>) -> i32 {
    match fenced(run, Err) {
        Ok(()) => EK_OK as i32,
        Err(Failed(status)) => status as i32,
    }
}

/// The fence: every function that could panic runs inside.
#[inline]
pub(super) fn fenced<R>(run: impl FnOnce() -> R, fallen: impl FnOnce(Failed) -> R) -> R {
    // Unwind safe: the core's own state is (its writer lock notes an owner that unwinds), and an
    // out_... is written by the last step.
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| fallen(Failed::panic(payload)))
}

/// A text of limited length.
struct Message {
    bytes: [u8; 511],
    len: usize,
}

thread_local! {
    // Nothing in it needs a destructor, so threads may end after the library is unloaded.
    static LAST: RefCell<Message> = const { RefCell::new(Message { bytes: [0; 511], len: 0 }) };
}

impl Message {
    fn text(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).unwrap_or("")
    }
}

impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let kept = beginning(text, self.bytes.len() - self.len);
        self.bytes[self.len..][..kept.len()].copy_from_slice(kept.as_bytes());
        self.len += kept.len();
        if kept.len() == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// As many whole characters as fit into this many bytes.
fn beginning(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// A status in words.
///
/// Parameters: status: any number.
/// Returns: the words, or "unknown status" for a number that is none. Never NULL.
/// Ownership: the text is a constant.
/// Thread safety: any thread.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn ek_status_str(status: i32) -> *const c_char {
    let named = ek_status::ALL.into_iter().find(|&named| named as i32 == status);
    named.map_or(c"unknown status", ek_status::text).as_ptr()
}

/// The calling thread's last error in words: the value, and what is allowed. Successful calls leave
/// it; before the first error it is empty.
///
/// Parameters: out_text: room for size bytes, where as many whole characters as fit are written,
/// and NUL. size: at least 1; no message has more than 511 bytes.
/// Returns: EK_OK, also if the text was cut; EK_ERR_NULL; EK_ERR_INVALID.
/// Ownership: out_text stays the caller's.
/// Thread safety: any thread; each has its own last error.
/// Progress: wait-free.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ek_error_message(out_text: *mut c_char, size: usize) -> i32 {
    status(|| {
        if out_text.is_null() {
            return Err(Failed::null("out_text"));
        }
        if size == 0 {
            return Err(Failed::invalid("size", size, "1 or more"));
        }
        LAST.with_borrow(|last| {
            let text = beginning(last.text(), size - 1);
            let out_text = out_text.cast::<u8>();
            // SAFETY: `out_text` has room for `size` bytes, and the text is shorter.
            unsafe { out_text.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
            // SAFETY: as above.
            let end = unsafe { out_text.add(text.len()) };
            // SAFETY: as above.
            unsafe { end.write(0) };
        });
        Ok(())
    })
}
