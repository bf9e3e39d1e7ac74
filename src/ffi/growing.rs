//! Structs that get more fields at their end: each comes with its size, as its caller knows it.

use super::error::{Failed, ek_status};
use std::mem::MaybeUninit;

/// Sizes that are taken for sizes. One that was never set is likely outside.
const SMALLEST: usize = size_of::<u64>();
const LARGEST: usize = 4096;

/// A struct that its caller may know shorter or longer than this library.
///
/// # Safety
/// Every value of its bytes is one of the type.
pub(super) unsafe trait Growing: Copy {
    /// Has its `struct_size` in it, if it has one.
    const DEFAULT: Self;
    /// Where its fields end, in their order.
    const ENDS: &'static [usize];
}

/// Makes a struct of integers and pointers growing, with all its fields and their defaults.
macro_rules! growing {
    ($name:ident { $($field:ident: $default:expr),+ $(,)? }) => {
        // SAFETY: any bytes are an integer or a raw pointer.
        unsafe impl Growing for $name {
            const DEFAULT: Self = Self { $($field: $default),+ };
            const ENDS: &'static [usize] =
                &[$(std::mem::offset_of!($name, $field) + size_of_val(&Self::DEFAULT.$field)),+];
        }
        const _: () = {
            let ends = <$name as Growing>::ENDS;
            let mut at = 1;
            while at < ends.len() {
                assert!(ends[at - 1] < ends[at], "fields in their order");
                at += 1;
            }
            // Of a later version's field there, an older caller's bytes would be taken for it.
            assert!(ends[at - 1] == size_of::<$name>(), "no room at the end");
        };
    };
}
pub(super) use growing;

/// Whether a size may be one of a struct.
pub(super) fn check_size(what: &str, size: usize) -> Result<(), Failed> {
    match size {
        SMALLEST..=LARGEST => Ok(()),
        _ => Err(Failed::invalid(what, size, "8 to 4096 bytes")),
    }
}

/// A struct whose first field is its size: the caller's, if it has just the fields known here, or
/// else a copy in `room`.
///
/// # Safety
/// It is readable for as many bytes as it says, as long as the result lives.
#[inline(always)]
pub(super) unsafe fn read<T: Growing>(
    from: *const T,
    room: &mut MaybeUninit<T>,
) -> Result<&T, Failed> {
    // SAFETY: whatever its size, the size is there.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size == size_of::<T>() {
        // SAFETY: readable for its size, and any bytes are a `T`.
        return Ok(unsafe { &*from });
    }
    // SAFETY: the caller's promise.
    unsafe { copy(from) }.map(|copy| &*room.write(copy))
}

/// A copy of a struct whose first field is its size, which may lie anywhere.
///
/// # Safety
/// It is readable for as many bytes as it says.
#[cold]
#[inline(never)]
pub(super) unsafe fn copy<T: Growing>(from: *const T) -> Result<T, Failed> {
    // SAFETY: whatever its size, the size is there.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    // SAFETY: the caller's promise.
    unsafe { check(from, "struct_size", size) }?;
    // SAFETY: the caller's promise.
    Ok(unsafe { read_sized(from, size) })
}

/// Whether a struct of this size is one that the library understands. It may lie anywhere.
///
/// # Safety
/// It is readable for `size` bytes.
pub(super) unsafe fn check<T: Growing>(
    from: *const T,
    what: &str,
    size: usize,
) -> Result<(), Failed> {
    check_size(what, size)?;
    let Some(beyond) = size.checked_sub(size_of::<T>()) else {
        return Ok(());
    };
    // SAFETY: within the `size` bytes.
    let rest = unsafe { from.add(1) }.cast::<u8>();
    // SAFETY: as above.
    let rest = unsafe { std::slice::from_raw_parts(rest, beyond) };
    match rest.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => Err(Failed::new(
            ek_status::EK_ERR_VERSION,
            format_args!(
                "byte {} of a struct with {what} {size} is not 0; allowed beyond the {} bytes that \
                 this version knows: 0",
                size_of::<T>() + at,
                size_of::<T>(),
            ),
        )),
    }
}

/// The fields that are whole in `size` bytes, and the others' defaults. They may lie anywhere.
///
/// # Safety
/// It is readable for `size` bytes.
#[inline]
pub(super) unsafe fn read_sized<T: Growing>(from: *const T, size: usize) -> T {
    let mut value = T::DEFAULT;
    let whole = T::ENDS.iter().rev().find(|&&end| end <= size).copied().unwrap_or(0);
    let to = (&raw mut value).cast::<u8>();
    // SAFETY: `whole` is no more than `size` and no more than a `T` has, and any bytes are a `T`.
    unsafe { to.copy_from_nonoverlapping(from.cast(), whole) };
    value
}

/// Writes a struct, cut or followed by zeros.
///
/// # Safety
/// `size` bytes are writable.
pub(super) unsafe fn write_sized<T: Copy>(to: *mut u8, size: usize, value: &T) {
    let known = size.min(size_of::<T>());
    // SAFETY: both have that many bytes.
    unsafe { to.copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), known) };
    // SAFETY: `known` is no more than `size`.
    let rest = unsafe { to.add(known) };
    // SAFETY: as above.
    unsafe { rest.write_bytes(0, size - known) };
}

/// Writes the defaults, and the size as the struct's own.
///
/// # Safety
/// `size` bytes are writable, or it is NULL.
pub(super) unsafe fn init<T: Growing>(to: *mut u8, what: &str, size: usize) -> Result<(), Failed> {
    if to.is_null() {
        return Err(Failed::null(what));
    }
    check_size("size", size)?;
    // SAFETY: not NULL, so writable.
    unsafe { write_sized(to, size, &T::DEFAULT) };
    // SAFETY: as above, and it starts with its size.
    unsafe { to.cast::<usize>().write_unaligned(size) };
    Ok(())
}
