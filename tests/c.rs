//! The C border, from C: programs against the static and the shared library, the header in several
//! languages, and what the shared library shows of itself.
#![cfg(all(not(loom), target_os = "linux"))]

use std::collections::HashSet;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs, io};

/// Flags that the header and these programs must live with.
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"];
/// What a static Rust library needs of the system.
const SYSTEM: [&str; 3] = ["-lpthread", "-ldl", "-lm"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn compiler(variable: &str, default: &str) -> Command {
    Command::new(env::var_os(variable).unwrap_or_else(|| default.into()))
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        done.status.success(),
        "{command:?}: {}\n{}{}",
        done.status,
        text(&done.stdout),
        text(&done.stderr)
    );
    text(&done.stdout)
}

struct Libraries {
    fixed: PathBuf,
    /// Under the name that programs look for.
    shared: PathBuf,
}

/// Built by the cargo and with the profile that built this test.
fn libraries() -> &'static Libraries {
    static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let messages = run(Command::new(env!("CARGO"))
            .args([
                "build",
                "--lib",
                "--profile",
                "test",
                "--message-format",
                "json",
                "--manifest-path",
            ])
            .arg(root().join("Cargo.toml")));
        let built = |end: &str| {
            let built = messages.split('"').find(|name| name.ends_with(end));
            PathBuf::from(built.unwrap_or_else(|| panic!("cargo built no {end}:\n{messages}")))
        };
        let shared = built("libevenkeel.so");
        let named = out("libevenkeel.so.0");
        let _ = fs::remove_file(&named);
        symlink(shared, &named).expect("a writable target directory");
        Libraries { fixed: built("libevenkeel.a"), shared: named }
    })
}

/// A file of this test in the target directory.
fn out(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
    fs::create_dir_all(&folder).expect("a writable target directory");
    folder.join(name)
}

/// Compiles a program of `tests/c`, and runs it with the static and with the shared library.
fn passes(name: &str) {
    let libraries = libraries();
    for (kind, library) in [("static", &libraries.fixed), ("shared", &libraries.shared)] {
        let program = out(&format!("{name}-{kind}"));
        let mut compile = compiler("CC", "cc");
        compile
            .args(["-std=c11", "-g", "-O1", "-I"])
            .arg(root().join("include"))
            .arg(format!("-DEVENKEEL_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")))
            .args(STRICT)
            .arg(root().join("tests/c").join(name).with_extension("c"))
            .arg(library);
        run(compile.args(SYSTEM).arg("-o").arg(&program));
        let folder = libraries.shared.parent().expect("in a folder");
        run(Command::new(program).env("LD_LIBRARY_PATH", folder));
    }
}

#[test]
fn every_function() {
    passes("all_functions");
}

#[test]
fn every_function_is_in_the_program_of_every_function() {
    let program = fs::read_to_string(root().join("tests/c/all_functions.c")).expect("is there");
    let words: HashSet<_> =
        program.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let inline =
        ["ek_pool_config_init", "ek_tuning_init", "ek_worker_config_init", "ek_request_init"];
    for name in exported().iter().map(String::as_str).chain(inline) {
        assert!(words.contains(name), "tests/c/all_functions.c does not use {name}");
    }
}

/// Case 46.
#[test]
fn forged_tickets_and_ids() {
    passes("forged");
}

/// R6.
#[test]
fn two_threads_finish_one_ticket() {
    passes("one_ticket");
}

/// It counts what the GNU C library allocates.
#[test]
#[cfg(target_env = "gnu")]
fn requests_and_reports_allocate_nothing() {
    passes("no_allocation");
}

/// Case 38.
#[test]
fn header_in_c_and_in_cpp() {
    let compile = |variable: &str, default: &str, language: &str, standard: &str| {
        let mut compile = compiler(variable, default);
        compile.args(["-fsyntax-only", "-fshort-enums", "-x", language]).args(STRICT);
        compile.arg(format!("-std={standard}")).arg("-I").arg(root().join("include"));
        run(compile.arg(root().join("tests/c/header.c")));
    };
    for standard in ["c11", "c17"] {
        compile("CC", "cc", "c", standard);
    }
    if compiler("CXX", "c++").arg("--version").output().is_err() {
        left_out("the header as C++: no C++ compiler");
        return;
    }
    for standard in ["c++11", "c++17", "c++20"] {
        compile("CXX", "c++", "c++", standard);
    }
}

/// The names that the shared library may export.
fn exported() -> Vec<String> {
    let list = fs::read_to_string(root().join("tests/exported_symbols.txt")).expect("is there");
    list.lines().map(String::from).collect()
}

#[test]
fn shared_library_exports_the_listed_symbols_alone() {
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&libraries().shared));
    let mut names: Vec<_> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    names.sort_unstable();
    assert_eq!(names, exported(), "against tests/exported_symbols.txt");
    assert!(names.iter().all(|name| name.starts_with("ek_")));
}

#[test]
fn shared_library_has_its_soname() {
    let dynamic = run(Command::new("readelf").arg("-d").arg(&libraries().shared));
    assert!(dynamic.contains("Library soname: [libevenkeel.so.0]"), "{dynamic}");
}

/// Says it also when the tests pass.
fn left_out(what: &str) {
    // Only the print macros are captured.
    writeln!(io::stderr(), "left out: {what}").expect("stderr");
}
