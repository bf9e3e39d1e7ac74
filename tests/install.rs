//! The installation by CMake (case 40), and the examples, built against the installed copy.
#![cfg(all(not(loom), target_os = "linux"))]

mod programs;

use programs::{STRICT, have, root, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What CMake needs.
const BUILD: [&str; 4] = ["cmake", "make", "cc", "c++"];

fn folder(name: &str) -> PathBuf {
    programs::folder(&format!("install/{name}"))
}

/// Configures, with cargo's own target directory, so that the library is built once.
fn configure(source: &Path, build: &Path, options: &[&str]) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("in the target directory");
    let mut cmake = Command::new("cmake");
    cmake.arg("-S").arg(source).arg("-B").arg(build);
    cmake.arg(concat!("-DCARGO=", env!("CARGO"))).arg("-DCMAKE_BUILD_TYPE=RelWithDebInfo");
    let strict = STRICT.join(" ");
    cmake.arg(format!("-DCMAKE_C_FLAGS={strict}")).arg(format!("-DCMAKE_CXX_FLAGS={strict}"));
    run(cmake.args(options).env("CARGO_TARGET_DIR", target));
}

fn build(build: &Path) {
    run(Command::new("cmake").arg("--build").arg(build));
}

/// Where evenkeel is installed: not where it was configured for.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let (library, prefix) = (folder("build"), folder("prefix"));
        configure(root(), &library, &["-DCMAKE_INSTALL_LIBDIR=lib"]);
        build(&library);
        run(Command::new("cmake").arg("--install").arg(library).arg("--prefix").arg(&prefix));
        prefix
    })
}

fn prefix_option() -> String {
    format!("-DCMAKE_PREFIX_PATH={}", prefix().display())
}

/// The README's program in C++.
fn readme_program(folder: &Path) -> PathBuf {
    let readme = fs::read_to_string(root().join("README.md")).expect("is there");
    let mut blocks = readme.split("```cpp\n").skip(1).filter_map(|block| block.split_once("\n```"));
    let (program, _) = blocks.next().expect("a block of C++ in the README");
    let path = folder.join("main.cpp");
    fs::write(&path, program).expect("a writable target directory");
    path
}

fn chooses(program: &mut Command) {
    let said = run(program);
    assert!(said.starts_with("send it to slot "), "{said}");
}

/// Builds the README's program by a project of these lines, with the shared and the static library.
fn project(name: &str, lines: &str, options: &[&str]) {
    let project = folder(name);
    readme_program(&project);
    let lists = format!(
        "cmake_minimum_required(VERSION 3.19)\n\
         project({name} LANGUAGES CXX)\n\
         set(CMAKE_CXX_STANDARD 17)\n\
         {lines}\n\
         add_executable(shared main.cpp)\n\
         target_link_libraries(shared PRIVATE evenkeel::evenkeel)\n\
         add_executable(fixed main.cpp)\n\
         target_link_libraries(fixed PRIVATE evenkeel::static)\n"
    );
    fs::write(project.join("CMakeLists.txt"), lists).expect("a writable target directory");
    let built = project.join("build");
    configure(&project, &built, options);
    build(&built);
    for (program, needs_it) in [("shared", true), ("fixed", false)] {
        chooses(&mut Command::new(built.join(program)));
        assert_eq!(needs_library(&built.join(program)), needs_it, "{program}");
    }
}

fn needs_library(program: &Path) -> bool {
    run(Command::new("readelf").arg("-d").arg(program)).contains("[libevenkeel.so.0]")
}

#[test]
fn by_find_package() {
    if have("find_package", &BUILD) {
        let version = env!("CARGO_PKG_VERSION");
        let (minor, _) = version.rsplit_once('.').expect("three numbers");
        let lines = format!("find_package(evenkeel {minor} REQUIRED)");
        project("by_find_package", &lines, &[&prefix_option()]);
    }
}

#[test]
fn by_add_subdirectory() {
    if have("add_subdirectory", &BUILD) {
        let line = format!("add_subdirectory({} evenkeel)", root().display());
        project("by_add_subdirectory", &line, &[]);
    }
}

#[test]
fn by_pkg_config() {
    if !have("pkg-config", &BUILD) || !have("pkg-config", &["pkg-config"]) {
        return;
    }
    let libraries = prefix().join("lib");
    let asked = |options: &[&str]| {
        let mut ask = Command::new("pkg-config");
        run(ask.args(options).arg("evenkeel").env("PKG_CONFIG_PATH", libraries.join("pkgconfig")))
    };
    assert_eq!(asked(&["--modversion"]).trim(), env!("CARGO_PKG_VERSION"));
    let folder = folder("by_pkg_config");
    let source = readme_program(&folder);
    for (kind, options) in [
        ("-rdynamic", &["--cflags", "--libs"][..]),
        ("-static", &["--static", "--cflags", "--libs"]),
    ] {
        let program = folder.join(&kind[1..]);
        let mut compile = Command::new("c++");
        compile.args(["-std=c++17", kind]).args(STRICT).arg(&source);
        compile.args(asked(options).split_whitespace()).arg("-o").arg(&program);
        run(&mut compile);
        chooses(Command::new(&program).env("LD_LIBRARY_PATH", &libraries));
        assert_eq!(needs_library(&program), kind != "-static");
    }
}

#[test]
fn installed_files() {
    if !have("the installed files", &BUILD) {
        return;
    }
    let version = env!("CARGO_PKG_VERSION");
    for file in ["include/evenkeel.h", "include/evenkeel.hpp", "lib/libevenkeel.a"] {
        assert!(prefix().join(file).is_file(), "{file}");
    }
    let link = |name: &str| fs::read_link(prefix().join("lib").join(name)).expect("a link");
    let shared = format!("libevenkeel.so.{version}");
    assert!(prefix().join("lib").join(&shared).symlink_metadata().expect("is there").is_file());
    assert_eq!(link("libevenkeel.so.0"), Path::new(&shared));
    assert_eq!(link("libevenkeel.so"), Path::new("libevenkeel.so.0"));
}

/// Those in C, C++ and Python; each fails if something is off.
#[test]
fn examples() {
    if !have("the examples in C and C++", &BUILD) {
        return;
    }
    let built = folder("examples");
    configure(&root().join("examples"), &built, &[&prefix_option()]);
    build(&built);
    let told = run(Command::new("ctest")
        .args(["--output-on-failure", "--timeout", "120"])
        .current_dir(&built));
    let python = have("the example in Python", &["python3"]);
    assert!(
        told.contains(&format!("0 tests failed out of {}", if python { 6 } else { 5 })),
        "{told}"
    );
}

#[test]
fn example_in_rust() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--profile", "test", "--example", "quick", "--manifest-path"]);
    let told = run(cargo.arg(root().join("Cargo.toml")));
    assert!(told.ends_with("101 finished, 0 in flight\n"), "{told}");
}
