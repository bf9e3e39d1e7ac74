//! `evenkeel demo` in a short form: its table, and that nothing is left of it.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A wait for this long is a failure; nothing depends on how short it is.
const PATIENCE: Duration = Duration::from_secs(60);

fn demo(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("demo").args(options).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn each_policy_has_a_row() {
    let options = ["--duration", "2s", "--warm-up", "500ms", "--clients", "40"];
    let output = demo(&options).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    for policy in ["round_robin", "tokens", "requests", "least_requests"] {
        let row = text.lines().find(|line| line.contains(&format!("│ {policy} ")));
        let cells: Vec<&str> =
            row.unwrap_or_else(|| panic!("{policy}: {text}")).split('┆').collect();
        assert_eq!(cells.len(), 8, "{text}");
        let cv: f64 = cells[2].trim().parse().unwrap();
        assert!(cv > 0.0, "{text}");
    }
}

/// Its children share its standard error: the pipe closes only when the demo and all its children have ended.
#[test]
fn children_end_with_it_even_if_it_is_killed() {
    let mut demo = demo(&["--duration", "1h"]).spawn().unwrap();
    let children = || {
        let path = format!("/proc/{0}/task/{0}/children", demo.id());
        std::fs::read_to_string(path).unwrap().split_whitespace().count()
    };
    while children() < 2 {
        thread::sleep(Duration::from_millis(5));
    }
    demo.kill().unwrap();
    demo.wait().unwrap();
    let mut stderr = demo.stderr.take().unwrap();
    let (closed, until_closed) = mpsc::channel();
    thread::spawn(move || {
        stderr.read_to_end(&mut Vec::new()).ok();
        closed.send(()).ok();
    });
    until_closed.recv_timeout(PATIENCE).expect("the children end");
}
