//! Tools, and the programs that they make: for the tests of the border with C.
#![allow(dead_code)] // Each of them needs a part of it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs, io};

/// Flags that the headers and all programs must live with.
pub const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A new, empty folder in the target directory.
pub fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a writable target directory");
    folder
}

/// Whether all of these are there; says so if not, also when the tests pass, and fails where
/// nothing may be left out.
pub fn have(what: &str, tools: &[&str]) -> bool {
    let runs = |tool: &&&str| Command::new(tool).arg("--version").output().is_ok();
    let missing: Vec<_> = tools.iter().filter(|tool| !runs(tool)).collect();
    if !missing.is_empty() {
        assert!(env::var_os("EVENKEEL_REQUIRE_ALL").is_none(), "{what}: without {missing:?}");
        // Only the print macros are captured.
        writeln!(io::stderr(), "left out: {what}: without {missing:?}").expect("stderr");
    }
    missing.is_empty()
}

pub fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

pub fn run(command: &mut Command) -> String {
    let done = output(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}{err}", done.status);
    out
}
