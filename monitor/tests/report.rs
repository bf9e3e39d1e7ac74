//! Bodies, without a network.

use evenkeel_monitor::{MAX_DEPTH, MAX_RANKS, MAX_TOKENS, RankLoad, Report, parse};
use proptest::prelude::*;

/// Rank and tokens of each entry that was taken, and the number of those that were not.
fn taken(body: &str) -> (Vec<(Option<u32>, u64)>, usize) {
    let report = parse(body.as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}"));
    assert_eq!(report.rejected.reasons.len(), report.rejected.count.min(8));
    (report.ranks.iter().map(|rank| (rank.rank, rank.tokens)).collect(), report.rejected.count)
}

fn refusal(body: impl AsRef<[u8]>) -> String {
    parse(body.as_ref()).expect_err("no report").to_string()
}

/// An entry that lacks nothing but these tokens.
fn with_tokens(tokens: &str) -> String {
    format!(
        r#"{{"loads":[{{"dp_rank":0,"num_total_tokens":{tokens}}},{{"dp_rank":1,"num_total_tokens":9}}]}}"#
    )
}

#[test]
fn the_current_shape() {
    let body = r#"{"timestamp":"2026-08-17T10:00:00Z","version":"0.5.21","accelerator":null,"num_accelerators":8,
        "loads":[{"timestamp":1755424800.12,"dp_rank":0,"num_running_reqs":12,"num_waiting_reqs":3,
        "num_waiting_uncached_tokens":0,"num_used_tokens":1200000,"num_total_tokens":1450000,"num_active_tokens":1100000,
        "max_total_num_tokens":4000000,"max_running_requests":256,"token_usage":0.3,"gen_throughput":840.5,
        "cache_hit_rate":0.9,"utilization":0.4,"total_prefill_uncached_tokens":0,"total_prefill_busy_us":0,"decode_moments":null}]}"#;
    let load = RankLoad {
        rank: Some(0),
        tokens: 1_450_000,
        running: Some(12),
        waiting: Some(3),
        timestamp: Some(1755424800.12_f64.to_bits()),
    };
    let expected = Report { ranks: vec![load], ..Default::default() };
    assert_eq!(parse(body.as_bytes()), Ok(expected));
}

#[test]
fn the_older_shape_is_of_the_whole_engine() {
    let body = r#"{"dp_rank_count":8,"aggregate":{"total_running_reqs":5,"total_waiting_reqs":2,"total_reqs":7,"total_tokens":512}}"#;
    let load =
        RankLoad { rank: None, tokens: 512, running: Some(5), waiting: Some(2), timestamp: None };
    let expected = Report { ranks: vec![load], ..Default::default() };
    assert_eq!(parse(body.as_bytes()), Ok(expected));
}

#[test]
fn where_ranks_are_told_the_sum_is_not_read() {
    let body = r#"{"loads":[{"dp_rank":1,"num_total_tokens":5}],"aggregate":{"total_tokens":"?"}}"#;
    assert_eq!(taken(body), (vec![(Some(1), 5)], 0));
}

#[test]
fn the_oldest_shape() {
    let body = r#" [{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":70},
                    {"dp_rank":1,"num_reqs":1,"num_waiting_reqs":2,"num_tokens":0},
                    {"dp_rank":null,"num_tokens":3,"ts_tic":0.5}]"#;
    let report = parse(body.as_bytes()).unwrap();
    let rows: Vec<_> = report
        .ranks
        .iter()
        .map(|load| (load.rank, load.tokens, load.running, load.waiting))
        .collect();
    // One that has more waiting than all requests does not say how many run.
    assert_eq!(
        rows,
        [(Some(0), 70, Some(3), Some(2)), (Some(1), 0, None, Some(2)), (None, 3, None, None)]
    );
}

#[test]
fn numbers_are_whole_and_in_range() {
    let kept = |tokens: &str| taken(&with_tokens(tokens));
    for tokens in [0, 1, MAX_TOKENS] {
        assert_eq!(kept(&tokens.to_string()), (vec![(Some(0), tokens), (Some(1), 9)], 0));
    }
    for tokens in [
        "-1",
        "-0.0",
        "0.5",
        "1e3",
        "1e400",
        "-1e400",
        "NaN",
        "Infinity",
        "-Infinity",
        "null",
        "true",
        "\"5\"",
        "\"NaN\"",
        "[]",
        "[5]",
        "{}",
        "9007199254740992",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999999999999999",
    ] {
        assert_eq!(kept(tokens), (vec![(Some(1), 9)], 1), "{tokens}");
    }
}

#[test]
fn other_numbers_reject_their_entry_too() {
    for field in [
        r#""num_running_reqs":-1"#,
        r#""num_running_reqs":4294967296"#,
        r#""num_waiting_reqs":"3""#,
        r#""num_waiting_reqs":NaN"#,
        r#""timestamp":"2026-08-17T10:00:00Z""#,
        r#""timestamp":1e400"#,
        r#""dp_rank":1"#,
        r#""num_total_tokens":1"#,
    ] {
        let body = format!(r#"{{"loads":[{{"dp_rank":0,"num_total_tokens":5,{field}}}]}}"#);
        assert_eq!(taken(&body), (vec![], 1), "{field}");
    }
}

#[test]
fn numbers_that_nobody_reads_may_be_anything() {
    for value in ["NaN", "-Infinity", "1e400", "\"NaN Infinity \\\" NaN\"", "{\"a\":[NaN]}"] {
        let body = format!(
            r#"{{"x":{value},"loads":[{{"dp_rank":0,"num_total_tokens":5,"gen_throughput":{value}}}]}}"#
        );
        assert_eq!(taken(&body), (vec![(Some(0), 5)], 0), "{value}");
    }
}

#[test]
fn ranks_come_once_and_are_numbers() {
    let entries = |entries: &[&str]| taken(&format!(r#"{{"loads":[{}]}}"#, entries.join(",")));
    let five = r#"{"dp_rank":0,"num_total_tokens":5}"#;
    let six = r#"{"dp_rank":0,"num_total_tokens":6}"#;
    // The first valid one.
    let bad = r#"{"dp_rank":0,"num_total_tokens":-1}"#;
    assert_eq!(entries(&[bad, five, six]), (vec![(Some(0), 5)], 2));
    for rank in ["-1", "0.0", "4294967296", "\"0\"", "NaN", "true", "[0]"] {
        let entry = format!(r#"{{"dp_rank":{rank},"num_total_tokens":5}}"#);
        assert_eq!(entries(&[&entry, six]), (vec![(Some(0), 6)], 1), "{rank}");
    }
    let unranked = r#"{"num_total_tokens":5}"#;
    assert_eq!(entries(&[unranked, unranked]), (vec![(None, 5)], 1));
    for entry in ["null", "5", "\"x\"", "[]", "[0,5,1,2,null]", "{}"] {
        assert_eq!(entries(&[entry, six]), (vec![(Some(0), 6)], 1), "{entry}");
    }
}

#[test]
fn what_is_no_report() {
    for body in [
        "",
        " ",
        "null",
        "5",
        "\"loads\"",
        "{",
        "{}",
        "[",
        "[1",
        "NaN",
        "[NaNaN]",
        "[-NaN-NaN-InfinityInfinity]",
        r#"{"loads":null}"#,
        r#"{"loads":5}"#,
        r#"{"loads":{}}"#,
        r#"{"loads":[]"#,
        r#"{"loads":[]}x"#,
        r#"{"loads":[,]}"#,
        r#"{"loads":[],"loads":[]}"#,
        r#"{"aggregate":null}"#,
        r#"{"error":"no"}"#,
        "<html>",
        "\u{feff}{\"loads\":[]}",
    ] {
        refusal(body);
    }
    for bytes in [
        b"{\"loads\":[\0]}".as_slice(),
        b"\0",
        b"{\"loads\":[]}\0",
        b"{\"a\":\"\xff\",\"loads\":[]}x",
        b"\xff\xfe",
    ] {
        refusal(bytes);
    }
}

#[test]
fn nesting_and_length_are_bounded() {
    let nested =
        |depth: usize| format!(r#"{{"loads":[],"x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert_eq!(taken(&nested(MAX_DEPTH - 1)), (vec![], 0));
    assert!(refusal(nested(MAX_DEPTH)).contains("deeper than 32"));
    // Brackets in strings nest nothing.
    let text = format!(r#"{{"x":"\"{}","loads":[]}}"#, "[".repeat(100));
    assert_eq!(taken(&text), (vec![], 0));
    let many = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
    assert_eq!(taken(&many(MAX_RANKS)), (vec![], MAX_RANKS));
    assert_eq!(refusal(many(MAX_RANKS + 1)), "65536 entries; at most 65535 are allowed");
}

#[test]
fn reasons_name_the_value_and_are_short() {
    let report = parse(with_tokens("-17").as_bytes()).unwrap();
    assert!(
        report.rejected.reasons[0].contains("entry 0")
            && report.rejected.reasons[0].contains("-17")
    );
    let long = with_tokens(&format!("{:?}", "é".repeat(100_000)));
    let reason = &parse(long.as_bytes()).unwrap().rejected.reasons[0];
    assert!(reason.chars().count() < 250, "{} characters", reason.chars().count());
}

#[test]
fn reasons_name_what_is_no_number_of_json() {
    for (tokens, why) in [
        ("NaN", r#"string "NaN", expected u64"#),
        ("Infinity", r#"string "Infinity", expected u64"#),
        ("-Infinity", r#"string "-Infinity", expected u64"#),
        ("1e400", r#"out of range at line 1 column 37 of {"dp_rank":0,"num_total_tokens":1e400}"#),
    ] {
        let report = parse(with_tokens(tokens).as_bytes()).unwrap();
        assert!(report.rejected.reasons[0].contains(why), "{:?}", report.rejected.reasons);
    }
}

/// Nothing that an engine sends looks like a line of the log's own, or hides what stands beside it.
#[test]
fn reasons_are_one_line_of_what_can_be_seen() {
    for (entry, seen) in [
        ("[\"a\",\n\"2026-11-30T00:00:00Z ERROR forged\"\r\n]", r#"["a",\n"2026"#),
        ("[\"\u{7f}\u{9b}2J\"]", r#"["\u{7f}\u{9b}2J"]"#),
        ("[\"\u{202e}\u{2028}\u{feff}\"]", r#"["\u{202e}\u{2028}\u{feff}"]"#),
        ("{\"num_total_tokens\":\n\n-1}", r#"{"num_total_tokens":\n\n-1}"#),
        (r#"["it's \n \" é 好"]"#, r#"["it's \n \" é 好"]"#),
    ] {
        let report = parse(format!(r#"{{"loads":[{entry}]}}"#).as_bytes()).unwrap();
        let [reason] = &report.rejected.reasons[..] else { panic!("{report:?}") };
        assert!(reason.contains(seen), "{reason}");
        assert!(!reason.contains(char::is_control), "{reason:?}");
    }
}

fn near_json() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\"loads\":[",
        "\"aggregate\":",
        "{\"dp_rank\":",
        "\"num_total_tokens\":",
        "\"num_tokens\":",
        "\"total_tokens\":",
        "0",
        "-1",
        "1e400",
        "NaN",
        "aN",
        "-",
        "Infinity",
        "null",
        "\"x\"",
        " ",
        "\0",
        "é",
        "5}",
        "}]}",
    ];
    prop::collection::vec(prop::sample::select(PIECES), 0..60).prop_map(|pieces| pieces.concat())
}

/// What holds for any body at all.
fn holds(body: &[u8]) {
    let Ok(report) = parse(body) else { return };
    assert!(report.ranks.iter().all(|rank| rank.tokens <= MAX_TOKENS));
    let mut ranks: Vec<_> = report.ranks.iter().map(|rank| rank.rank).collect();
    ranks.sort_unstable();
    assert!(ranks.is_sorted_by(|a, b| a < b), "each once");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        holds(&body);
    }

    #[test]
    fn what_is_nearly_json_is_read_without_a_panic(body in near_json()) {
        holds(body.as_bytes());
        holds(format!("{{\"loads\":[{body}").as_bytes());
        holds(format!("{{\"loads\":[{{\"dp_rank\":0,\"num_total_tokens\":5}},{body}]}}").as_bytes());
    }

    #[test]
    fn a_good_body_with_a_byte_changed(at in 0_usize..200, byte in any::<u8>()) {
        let mut body = with_tokens("5").into_bytes();
        let at = at % body.len();
        body[at] = byte;
        holds(&body);
    }
}
