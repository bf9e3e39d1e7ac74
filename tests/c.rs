//! The border with C and C++: programs by each compiler against the static and the shared library,
//! the headers in each language, and what the shared library shows of itself.
#![cfg(all(not(loom), target_os = "linux"))]

mod programs;

use programs::{STRICT, folder, have, output, root, run};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What a static Rust library needs of the system.
const SYSTEM: [&str; 3] = ["-lpthread", "-ldl", "-lm"];

const C: [&str; 2] = ["gcc", "clang"];
const CPP: [&str; 2] = ["g++", "clang++"];
/// Most programs in C are programs in C++ as well.
const BOTH: [&str; 4] = ["gcc", "clang", "g++", "clang++"];

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
            .args(["build", "--lib", "--profile", "test"])
            .args(["--message-format", "json", "--manifest-path"])
            .arg(root().join("Cargo.toml")));
        let built = |end: &str| {
            let built = messages.split('"').find(|name| name.ends_with(end));
            PathBuf::from(built.unwrap_or_else(|| panic!("cargo built no {end}:\n{messages}")))
        };
        let shared = folder("shared").join("libevenkeel.so.0");
        symlink(built("libevenkeel.so"), &shared).expect("a writable target directory");
        Libraries { fixed: built("libevenkeel.a"), shared }
    })
}

/// A compilation in C11 or C++17, as the compiler is.
fn compile(compiler: &str) -> Command {
    let mut compile = Command::new(compiler);
    let cpp = compiler.ends_with("++");
    compile.args(if cpp { ["-xc++", "-std=c++17"] } else { ["-xc", "-std=c11"] });
    compile.args(STRICT).arg("-I").arg(root().join("include"));
    compile
}

/// Compiles this file of `tests`.
fn object(source: &str, compiler: &str, folder: &Path) -> PathBuf {
    let object = folder.join("program.o");
    let version = format!("-DEVENKEEL_VERSION=\"{}\"", env!("CARGO_PKG_VERSION"));
    let mut compile = compile(compiler);
    compile.args(["-g", "-O1", "-c", &version]).arg(root().join("tests").join(source));
    run(compile.arg("-o").arg(&object));
    object
}

/// Links a program with these libraries, and runs it.
fn runs(compiler: &str, object: &Path, libraries_of_it: &[&Path]) {
    let program = object.with_extension("");
    let mut link = Command::new(compiler);
    link.arg(object).args(libraries_of_it).args(SYSTEM);
    run(link.arg("-o").arg(&program));
    run(Command::new(program).env("LD_LIBRARY_PATH", libraries().shared.parent().expect("in one")));
}

/// This program of `tests` passes, by each of these compilers and with each library.
fn passes(source: &str, compilers: &[&str]) {
    for compiler in compilers {
        if have(source, &[compiler]) {
            let object = object(source, compiler, &folder(&format!("{source}-{compiler}")));
            for library in [&libraries().fixed, &libraries().shared] {
                runs(compiler, &object, &[library]);
            }
        }
    }
}

/// Case 37 among them.
#[test]
fn every_function() {
    passes("c/all_functions.c", &BOTH);
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

/// evenkeel.hpp.
#[test]
fn ownership() {
    passes("cpp/ownership.cpp", &CPP);
}

#[test]
fn results_cannot_be_overlooked() {
    let folder = folder("overlooked");
    let compiles = |compiler: &str, statement: &str| {
        let program = format!(
            "#include <evenkeel.hpp>\n\
             void use(evenkeel::Pool &pool, evenkeel::InFlight &in_flight) {{\n\
             auto kept = in_flight.finish(); (void)kept; (void)pool.dispatch(); {statement};\n}}\n"
        );
        let source = folder.join("main.cpp");
        fs::write(&source, program).expect("a writable target directory");
        output(compile(compiler).arg("-fsyntax-only").arg(&source)).status.success()
    };
    for compiler in CPP {
        if !have("overlooked results", &[compiler]) {
            continue;
        }
        assert!(compiles(compiler, ""));
        for overlooked in [
            "pool.dispatch()",
            "pool.add(1)",
            "pool.remove(1)",
            "in_flight.grow(1)",
            "in_flight.release()",
            "pool.guard({})",
            "evenkeel::Pool::create()",
        ] {
            assert!(!compiles(compiler, overlooked), "{compiler}: {overlooked}");
        }
    }
}

/// Case 38.
#[test]
fn headers_in_each_language() {
    let compiles = |compiler: &str, standard: &str, option: &str, source: &str| {
        let mut compile = compile(compiler);
        compile.arg(format!("-std={standard}")).args(["-fsyntax-only", option]);
        run(compile.arg(root().join("tests").join(source)));
    };
    for compiler in C.into_iter().filter(|compiler| have("evenkeel.h as C", &[compiler])) {
        for standard in ["c11", "c17", "c2x"] {
            compiles(compiler, standard, "-fshort-enums", "c/header.c");
            compiles(compiler, standard, "-fno-short-enums", "c/header.c");
        }
    }
    for compiler in CPP.into_iter().filter(|compiler| have("the headers as C++", &[compiler])) {
        for standard in ["c++11", "c++17", "c++20", "c++2b"] {
            compiles(compiler, standard, "-fshort-enums", "c/header.c");
            compiles(compiler, standard, "-fno-short-enums", "c/header.c");
        }
        for (standard, option) in [
            ("c++17", "-fno-exceptions"),
            ("c++17", "-fshort-enums"),
            ("c++20", "-fno-rtti"),
            ("c++2b", "-O0"),
        ] {
            compiles(compiler, standard, option, "cpp/ownership.cpp");
        }
    }
}

/// Case 39. What only the inside can provoke is tested there.
#[test]
fn a_panic_is_a_status() {
    passes("c/panics.c", &BOTH);
}

/// The names that the shared library may export.
fn exported() -> Vec<String> {
    let list = fs::read_to_string(root().join("tests/exported_symbols.txt")).expect("is there");
    list.lines().map(String::from).collect()
}

/// Case 40.
#[test]
fn shared_library_exports_the_listed_symbols_alone() {
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&libraries().shared));
    let mut names: Vec<_> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    names.sort_unstable();
    assert_eq!(names, exported(), "against tests/exported_symbols.txt");
    assert!(names.iter().all(|name| name.starts_with("ek_")));
}

/// Case 40.
#[test]
fn shared_library_has_its_soname() {
    let dynamic = run(Command::new("readelf").arg("-d").arg(&libraries().shared));
    assert!(dynamic.contains("Library soname: [libevenkeel.so.0]"), "{dynamic}");
}

/// Case 40: next to another Rust library, which is a static one. If both are static and of different
/// Rust compilers, one symbol is in the way, that the README says how to weaken.
#[test]
fn beside_another_rust_library() {
    const OTHER: &str = r#"
        #[unsafe(no_mangle)]
        pub extern "C" fn other_sum(limit: u64) -> u64 {
            let sum = std::thread::spawn(move || (0..limit).collect::<Vec<_>>().iter().sum::<u64>());
            let caught = std::panic::catch_unwind(|| panic!("of the other"));
            sum.join().unwrap() + u64::from(caught.is_err())
        }"#;
    let at = folder("beside");
    fs::write(at.join("other.rs"), OTHER).expect("a writable target directory");
    let other = |toolchain: Option<&str>| {
        let library = at.join(format!("libother{}.a", toolchain.unwrap_or_default()));
        let mut compile = Command::new("rustc");
        compile.args(toolchain).args(["--edition", "2024", "--crate-type", "staticlib"]);
        let compiled = output(compile.arg(at.join("other.rs")).arg("-o").arg(&library));
        (compiled.status.success(), library)
    };
    let Libraries { fixed, shared } = libraries();
    let (compiled, of_same) = other(None);
    assert!(compiled, "{OTHER}");
    let mut beside = vec![[shared, &of_same], [fixed, &of_same], [&of_same, fixed]];
    let weakened = at.join("libevenkeel.a");
    let (compiled, of_nightly) = other(Some("+nightly"));
    if compiled && have("another Rust compiler's library", &["objcopy"]) {
        run(Command::new("objcopy")
            .arg("--weaken-symbol=rust_eh_personality")
            .args([fixed, &weakened]));
        beside.extend([[shared, &of_nightly], [&weakened, &of_nightly], [&of_nightly, &weakened]]);
    }
    for compiler in C.into_iter().filter(|compiler| have("beside another library", &[compiler])) {
        let object = object("c/beside.c", compiler, &folder(&format!("beside-{compiler}")));
        for [first, second] in &beside {
            runs(compiler, &object, &[first, second]);
        }
    }
}

/// Case 41.
#[test]
fn many_pools() {
    passes("c/many_pools.c", &BOTH);
}

/// Case 42.
#[test]
fn forks() {
    passes("c/forks.c", &BOTH);
}

/// Case 43.
#[test]
fn requests_end_in_destructors_and_at_exit() {
    passes("c/late_ends.c", &BOTH);
}

/// Case 43.
#[test]
fn loaded_and_unloaded() {
    for compiler in BOTH.into_iter().filter(|compiler| have("loading", &[compiler])) {
        let object = object("c/unload.c", compiler, &folder(&format!("unload-{compiler}")));
        let program = object.with_extension("");
        run(Command::new(compiler).arg(&object).args(SYSTEM).arg("-o").arg(&program));
        run(Command::new(program).arg(&libraries().shared));
    }
}

/// Cases 41, 42, 43, 45, 47 and 48, of evenkeel.hpp.
#[test]
fn border_of_owning_handles() {
    passes("cpp/border.cpp", &CPP);
}

/// Case 45.
#[test]
fn statistics_change_no_choice() {
    passes("c/statistics.c", &BOTH);
}

/// Case 46.
#[test]
fn forged_tickets_and_ids() {
    passes("c/forged.c", &BOTH);
}

/// Case 47.
#[test]
fn pickers_and_polls_after_their_pool() {
    passes("c/after_free.c", &BOTH);
}

/// Case 48.
#[test]
fn largest_counts() {
    passes("c/largest.c", &BOTH);
}

/// R6.
#[test]
fn two_threads_finish_one_ticket() {
    passes("c/one_ticket.c", &C);
}

#[test]
fn stress() {
    passes("c/stress.c", &BOTH);
    passes("cpp/stress.cpp", &CPP);
}

/// It counts what the GNU C library allocates.
#[test]
#[cfg(target_env = "gnu")]
fn requests_and_reports_allocate_nothing() {
    passes("c/no_allocation.c", &C);
}
