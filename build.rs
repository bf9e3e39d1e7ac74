//! Gives the shared library its SONAME, which ends with the number of the ABI.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|family| family == value);
    let elf = is("CARGO_CFG_TARGET_FAMILY", "unix") && !is("CARGO_CFG_TARGET_VENDOR", "apple");
    if elf {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libevenkeel.so.0");
    }
}
