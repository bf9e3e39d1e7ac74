//! The committed header is the one that src/ffi makes.
#![cfg(not(loom))]

use std::path::Path;
use std::{env, fs};

const MEND: &str = "EVENKEEL_BLESS=1 cargo test --test header";

#[test]
fn committed_header_is_what_the_sources_make() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let builder = cbindgen::Builder::new().with_config(config);
    let bindings = builder.with_src(root.join("src/ffi/mod.rs")).generate();
    let mut fresh = Vec::new();
    bindings.expect("src/ffi makes a header").write(&mut fresh);
    let fresh = String::from_utf8(fresh).expect("the sources are UTF-8");

    let path = root.join("include/evenkeel.h");
    if env::var_os("EVENKEEL_BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("in include")).expect("a writable tree");
        fs::write(&path, &fresh).expect("a writable tree");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let differs = fresh.lines().zip(committed.lines()).position(|(fresh, old)| fresh != old);
    let line = differs.unwrap_or(fresh.lines().count().min(committed.lines().count()));
    assert!(
        fresh == committed,
        "include/evenkeel.h is not what src/ffi makes, from line {} on:\n  \
         committed: {}\n  fresh:     {}\nThis mends it:\n  {MEND}",
        line + 1,
        committed.lines().nth(line).unwrap_or("(ends)"),
        fresh.lines().nth(line).unwrap_or("(ends)"),
    );
}
