//! The driver of the fuzz target by pseudo-random bytes, the same in each run. `ci/fuzz.sh` looks for
//! bytes that reach more.
#![cfg(not(loom))]

#[path = "../fuzz/driver.rs"]
mod driver;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

#[test]
fn whole_interface_by_arbitrary_bytes() {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    for _ in 0..30_000 {
        let mut bytes = vec![0; (random.next_u64() % 4096) as usize];
        random.fill_bytes(&mut bytes);
        driver::drive(&bytes);
    }
}
