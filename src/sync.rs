//! The only switch between the machine and the model checker: atomics, the writer lock, clocks and
//! seeds. Under `--cfg loom` it also shrinks the sizes that decide how many runs a model has.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words in a cache-padded line: 128 bytes, since x86-64 fetches lines in pairs and aarch64 has lines of 128.
pub(crate) const LINE: usize = if cfg!(loom) { 6 } else { 16 };
/// Buffers in the snapshot ring.
pub(crate) const RING: u64 = if cfg!(loom) { 3 } else { 4 };
/// Bits of a slot's generation that its load word carries.
pub(crate) const TAG_BITS: u32 = if cfg!(loom) { 1 } else { 11 };
/// Counters of finished requests a slot has, by generation (see [`crate::worker::Slot`]).
pub(crate) const FINISHED: usize = if cfg!(loom) { 2 } else { 8 };
/// Words of a label: 255 bytes at most.
pub(crate) const LABEL_WORDS: usize = if cfg!(loom) { 1 } else { 32 };
/// How often a pick rereads a view that a publisher overwrote before it takes what it has (R3).
pub(crate) const PICK_RETRIES: u32 = if cfg!(loom) { 0 } else { 8 };

pub(crate) use lock::WriterLock;
pub(crate) use platform::{entropy, forks, now, now_coarse, thread_number};

/// Takes the lock word, unless its owner is this one, and returns what the last owner left in it.
pub(crate) fn try_lock(word: &AtomicU64, own: u64) -> Option<u64> {
    let left = word.load(Ordering::Relaxed);
    // E5 unlock→lock (acquire side): this owner sees all that the last one wrote.
    let exchanged = left != own
        && word.compare_exchange(left, own, Ordering::Acquire, Ordering::Relaxed).is_ok();
    exchanged.then_some(left)
}

pub(crate) fn unlock(word: &AtomicU64, left: u64) {
    // E5 unlock→lock (release side)
    word.store(left, Ordering::Release);
}

#[cfg(evenkeel_count_retries)]
thread_local! {
    /// What this thread has done again because another was faster.
    pub static RETRIES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Something is done again because another thread was faster. Counted for the bench `contention` alone.
#[inline(always)]
pub(crate) fn retry() {
    #[cfg(evenkeel_count_retries)]
    RETRIES.set(RETRIES.get() + 1);
}

#[cfg(not(loom))]
mod lock {
    use super::{AtomicU64, try_lock, unlock};
    use crossbeam_utils::Backoff;
    use std::time::{Duration, Instant};

    const FREE: u64 = 0;
    /// Left by an owner that unwound: what is derived must be rebuilt before use.
    const BROKEN: u64 = u64::MAX;
    const PATIENCE: Duration = Duration::from_secs(1);

    /// The lock of the writers, held while this lives. The lock word names its owner, so that a
    /// child that was forked while a thread of its parent wrote finds that nobody is there.
    pub(crate) struct WriterLock<'a> {
        word: &'a AtomicU64,
        /// The last owner did not come to its end.
        pub(crate) broken: bool,
    }

    impl<'a> WriterLock<'a> {
        /// Waits one second at most, then gives up.
        pub(crate) fn acquire(word: &'a AtomicU64) -> Option<Self> {
            let own = owner();
            let mut deadline = None;
            let backoff = Backoff::new();
            loop {
                if let Some(left) = try_lock(word, own) {
                    return Some(Self { word, broken: left != FREE });
                }
                backoff.snooze();
                if backoff.is_completed() {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
                    if Instant::now() >= deadline {
                        return None;
                    }
                }
            }
        }
    }

    impl Drop for WriterLock<'_> {
        fn drop(&mut self) {
            unlock(self.word, if std::thread::panicking() { BROKEN } else { FREE });
        }
    }

    /// This process, also apart from the one it was forked from. The region is on the heap, so any
    /// other owner is a thread that the fork left behind.
    fn owner() -> u64 {
        u64::from(super::forks()) << 32 | u64::from(std::process::id())
    }
}

#[cfg(loom)]
mod lock {
    use super::AtomicU64;

    /// Loom explores a mutex in far fewer runs than a spinning word. It belongs to the model's
    /// one pool; the word stays unused.
    pub(crate) struct WriterLock<'a> {
        _held: loom::sync::MutexGuard<'a, ()>,
        pub(crate) broken: bool,
    }

    loom::lazy_static! {
        static ref WRITER: loom::sync::Mutex<()> = loom::sync::Mutex::new(());
    }

    impl<'a> WriterLock<'a> {
        pub(crate) fn acquire(_word: &'a AtomicU64) -> Option<Self> {
            Some(Self { _held: WRITER.lock().ok()?, broken: false })
        }
    }
}

#[cfg(not(loom))]
mod platform {
    use std::cell::Cell;
    use std::io;
    use std::sync::Once;
    use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

    static FORKS: AtomicU32 = AtomicU32::new(0);
    static WATCH_FORKS: Once = Once::new();

    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }

    /// How many forks lie between this process and the one that loaded the library.
    pub(crate) fn forks() -> u32 {
        FORKS.load(Ordering::Relaxed)
    }

    /// A random number from the operating system.
    pub(crate) fn entropy() -> io::Result<u64> {
        // Every pool asks here first, so every process that has a pool counts its forks.
        WATCH_FORKS.call_once(|| {
            // SAFETY: `in_child` only adds to an atomic, which is safe between fork and exec.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        let mut bytes = [0; 8];
        // SAFETY: the buffer is 8 bytes long and writable.
        match unsafe { libc::getentropy(bytes.as_mut_ptr().cast(), bytes.len()) } {
            0 => Ok(u64::from_ne_bytes(bytes)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Nanoseconds of the monotonic clock.
    pub(crate) fn now() -> u64 {
        clock(libc::CLOCK_MONOTONIC)
    }

    /// The same clock as of the last timer tick, some milliseconds old at most and far cheaper.
    pub(crate) fn now_coarse() -> u64 {
        #[cfg(target_os = "linux")]
        return clock(libc::CLOCK_MONOTONIC_COARSE);
        #[cfg(not(target_os = "linux"))]
        return now();
    }

    /// A number of the calling thread, for spreading threads over counters.
    pub(crate) fn thread_number() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
        }
        NUMBER.with(|number| {
            let own = number.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
            number.set(Some(own));
            own
        })
    }

    fn clock(id: libc::clockid_t) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for the write. The call can't fail for these clocks.
        unsafe { libc::clock_gettime(id, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

#[cfg(loom)]
mod platform {
    /// A model must run the same way each time.
    pub(crate) fn entropy() -> std::io::Result<u64> {
        Ok(0)
    }
    pub(crate) fn forks() -> u32 {
        0
    }
    pub(crate) fn now() -> u64 {
        0
    }
    pub(crate) fn now_coarse() -> u64 {
        0
    }
    pub(crate) fn thread_number() -> usize {
        0
    }
}
