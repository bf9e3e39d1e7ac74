//! The built binary, as a user meets it.

use std::env;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const POLICIES: [&str; 4] = ["round_robin", "tokens", "requests", "least_requests"];

fn evenkeel(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    evenkeel(arguments).output().expect("the binary starts")
}

/// The rows that `--json` leaves on stdout.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = run(arguments);
    assert!(output.status.success(), "{}", error_text(&output));
    serde_json::from_slice(&output.stdout).expect("stdout is a JSON array and nothing else")
}

fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} is a number in {row}"))
}

#[test]
fn json_has_a_row_for_each_concurrency_and_policy() {
    let rows = rows(&["simulate", "--concurrency", "32,64", "--duration", "2m", "--json"]);
    let names: Vec<_> =
        rows.iter().map(|row| (row["concurrency"].as_u64(), row["policy"].as_str())).collect();
    let expected: Vec<_> = [32, 64]
        .into_iter()
        .flat_map(|concurrency| POLICIES.map(|policy| (Some(concurrency), Some(policy))))
        .collect();
    assert_eq!(names, expected);
    for row in &rows {
        assert_eq!(row.as_object().map(|row| row.len()), Some(14));
        assert!(row["rank_mean_dev"].is_number() && row["ttft_p90_ms"].is_number(), "{row}");
        let cv = number(row, "outstanding_cv");
        assert!(cv > 0.0 && cv < 1.0, "{row}");
        let batch = number(row, "busiest_batch");
        assert!(batch >= 1.0 && batch <= number(row, "concurrency"), "{row}");
    }
}

#[test]
fn the_table_says_what_was_run() {
    let output = run(&["simulate", "--concurrency", "16", "--ranks", "2", "--duration", "90s"]);
    assert!(output.status.success(), "{}", error_text(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    for part in ["synthetic", "ranks 2", "poll interval 1s", "duration 1m 30s", "seeds 1"]
        .iter()
        .chain(&POLICIES)
    {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
    assert_eq!(error_text(&output), "", "no progress bar where stderr is no terminal");
}

#[test]
fn the_same_options_print_the_same_rows() {
    let options = ["simulate", "--duration", "2m", "--seeds", "3", "--json"];
    assert_eq!(rows(&options), rows(&options));
}

#[test]
fn more_seeds_change_the_means() {
    let one = rows(&["simulate", "--duration", "2m", "--seeds", "1", "--json"]);
    let two = rows(&["simulate", "--duration", "2m", "--seeds", "2", "--json"]);
    assert!(one.iter().zip(&two).all(|(one, two)| one != two));
}

#[test]
fn a_bad_option_is_named_with_what_is_allowed() {
    for (option, value, allowed) in [
        ("--concurrency", "0", "a whole number from 1 to 1000000"),
        ("--concurrency", "192,many", "a whole number from 1 to 1000000"),
        ("--ranks", "65536", "a whole number from 1 to 65535"),
        ("--ranks", "-1", "a whole number from 1 to 65535"),
        ("--seeds", "1.5", "a whole number from 1 to 10000"),
        ("--duration", "forever", "a time such as 1h, 90s or 250ms, from 1s to 30days"),
        ("--duration", "100ms", "from 1s to 30days"),
        ("--poll-interval", "0s", "from 1ms to 30days"),
        ("--poll-interval", "5", "from 1ms to 30days"),
        ("--rate-scale", "0", "expected a number from 0.001 to 1000"),
        ("--step", "1,2", "three numbers from 0 to 60000"),
        ("--step", "1,2,-3", "three numbers from 0 to 60000"),
        ("--policies", "fastest", "least_requests"),
        ("--preset", "h100", "deepseek-v4-mi355x, mla-full-attention, opt13b-a100"),
    ] {
        let output = run(&["simulate", &format!("{option}={value}")]);
        assert_eq!(output.status.code(), Some(2), "{option} {value}");
        let text = error_text(&output);
        let rejected = match option {
            "--step" => value,
            _ => value.split(',').next_back().unwrap_or(value),
        };
        assert!(text.contains(&format!("'{rejected}' for '{option}")), "{text}");
        assert!(text.contains(allowed), "{text}");
    }
}

#[test]
fn csv_has_a_line_for_each_rate() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("requests.csv");
    let lines: String = (0..120).map(|second| format!("{second},1000,50\n")).collect();
    std::fs::write(&file, format!("time_s,input_tokens,output_tokens\n{lines}")).expect("written");
    let trace = file.to_str().expect("UTF-8");
    let options = ["simulate", "--trace", trace, "--warm-up", "10s", "--csv"];
    let both = ["--rate-scale", "1,2", "--policies", "requests,random"];
    let output = run(&[&options[..], &both].concat());
    assert!(output.status.success(), "{}", error_text(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split(',').collect()).collect();
    let names: Vec<_> = lines.iter().map(|line| (line[0], line[1])).collect();
    let expected = [
        ("policy", "rate_scale"),
        ("requests", "1.0"),
        ("random", "1.0"),
        ("requests", "2.0"),
        ("random", "2.0"),
    ];
    assert_eq!(names, expected);
    // 50 tokens a request on 16 GPUs.
    let throughput = |line: &[&str]| line[2].parse::<f64>().expect("a number") * 16.0 / 50.0;
    assert!((throughput(&lines[1]) - 1.0).abs() < 0.03, "{text}");
    assert!((throughput(&lines[3]) - 2.0).abs() < 0.06, "{text}");

    let output = run(&[&options[..], &["--rate-scale", "20"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let text = error_text(&output);
    assert!(text.contains("the trace ends 5s after its start: too soon for a --warm-up of 10s"));
}

#[test]
fn an_unreadable_trace_is_named_with_line_and_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("broken.jsonl");
    let good = r#"{"id":"a","tool":1,"sys":1,"req":[[0.0,100,10,0,1.0,0.0]]}"#;
    std::fs::write(&file, format!("{good}\n{{\"req\":[[0.0,\"many\"]]}}\n")).expect("written");
    let output = run(&["simulate", "--trace", file.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = error_text(&output);
    assert!(text.contains(&format!("{}:2: ", file.display())), "{text}");
    assert!(text.contains("invalid type: string \"many\", expected u32"), "{text}");
}

#[test]
fn a_missing_trace_is_named() {
    let output = run(&["simulate", "--trace", "no-such-file.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error_text(&output).starts_with("error: no-such-file.jsonl: "));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = evenkeel(&["simulate", "--concurrency", "8", "--duration", "1s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert_eq!(error_text(&output), "");
}

/// The published measurement, 8 ranks at concurrency 192.
#[test]
fn agrees_with_the_published_measurement_on_agentx() {
    let Some(traces) = env::var_os("EVENKEEL_TRACES") else {
        // Not eprintln!, which is captured while a test passes.
        let note = b"left out: the published measurement on AgentX (EVENKEEL_TRACES is not set)\n";
        io::stderr().write_all(note).expect("stderr is open");
        return;
    };
    let trace = Path::new(&traces).join("agentx/agentx.jsonl");
    let trace = trace.to_str().expect("a UTF-8 path");
    let rows = rows(&["simulate", "--trace", trace, "--seeds", "5", "--json"]);
    let cv = |policy: &str| {
        let row = rows.iter().find(|row| row["policy"] == policy);
        number(row.unwrap_or_else(|| panic!("a row for {policy}")), "outstanding_cv")
    };
    for (policy, published, bound) in [
        ("least_requests", 0.05, 0.03),
        ("requests", 0.09, 0.03),
        ("round_robin", 0.17, 0.03),
        ("tokens", 0.22, 0.04),
    ] {
        let cv = cv(policy);
        assert!((cv - published).abs() <= bound, "{policy}: {cv}, published is {published}");
    }
    assert!(cv("least_requests") < cv("requests"));
    assert!(cv("requests") < cv("round_robin"));
    assert!(cv("round_robin") < cv("tokens"));
}

/// A CSV trace of three requests in a minute, in a folder that goes with the test.
fn short_trace() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a writable folder");
    let path = folder.path().join("short.csv");
    let text = "time_s,input_tokens,output_tokens\n0,100,10\n30,100,10\n60,100,10\n";
    std::fs::write(&path, text).expect("a writable folder");
    (folder, path.to_str().expect("UTF-8").into())
}

#[test]
fn a_trace_that_ends_early_says_how_long_was_measured() {
    let (_folder, path) = short_trace();
    let output = run(&["simulate", "--trace", &path, "--warm-up", "10s"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("duration 50s to the end of the trace"), "{text}");
}

#[test]
fn options_of_the_other_kind_of_trace_are_refused() {
    let (_folder, path) = short_trace();
    for (arguments, said) in [
        (vec!["--trace", &path, "--concurrency", "1,2"], "use --rate-scale"),
        (vec!["--rate-scale", "2"], "use --concurrency"),
    ] {
        let output = run(&[vec!["simulate"], arguments].concat());
        assert!(!output.status.success() && error_text(&output).contains(said));
    }
}

#[test]
fn a_report_never_replaces_the_trace() {
    let (_folder, path) = short_trace();
    let output = run(&["simulate", "--trace", &path, "--warm-up", "10s", "--report", &path]);
    assert!(!output.status.success() && error_text(&output).contains("would replace the trace"));
    assert!(std::fs::read_to_string(&path).expect("still there").starts_with("time_s,"));
}

/// A rank's tokens have 32 bits.
#[test]
fn what_does_not_fit_is_told_with_its_load() {
    let (_folder, path) = short_trace();
    let text = "time_s,input_tokens,output_tokens\n0,4294967295,10\n1,4294967295,10\n9,1,1\n";
    std::fs::write(&path, text).expect("a writable folder");
    let output = run(&["simulate", "--trace", &path, "--warm-up", "0s", "--ranks", "1"]);
    assert!(error_text(&output).contains("rate × 1, "), "{}", error_text(&output));
}
