//! The whole C interface by arbitrary bytes: `ci/fuzz.sh`.
#![no_main]

mod driver;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| driver::drive(bytes));
