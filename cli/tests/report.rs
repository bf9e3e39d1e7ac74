//! The report, as a browser shows it.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const POLICIES: [&str; 3] = ["round_robin", "least_requests", "balanced"];

fn simulate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("simulate").args(arguments).output().expect("the binary starts")
}

/// A report of short runs, in a folder of its own.
fn report(arguments: &[&str]) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("report.html");
    let path = path.to_str().expect("UTF-8");
    let short = ["--duration", "3m", "--warm-up", "1m", "--report", path];
    let output = simulate(&[&short, arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = fs::read_to_string(path).expect("the report is there");
    (folder, html)
}

/// Whether there is a browser; says so if not, also when the tests pass, and fails where nothing
/// may be left out.
fn have_chromium(what: &str) -> bool {
    let found = Command::new("chromium").arg("--version").output().is_ok();
    if !found {
        let all = std::env::var_os("EVENKEEL_REQUIRE_ALL").is_some();
        assert!(!all, "{what}: without chromium");
        // Only the print macros are captured.
        writeln!(io::stderr(), "left out: {what}: without chromium").expect("stderr");
    }
    found
}

/// The page's text when it has loaded, and what it said on the console.
fn browse(page: &Path, scheme: &str, width: u32) -> (String, Vec<String>) {
    let profile = tempfile::tempdir().expect("a temporary folder");
    let scheme = if scheme == "dark" { 0 } else { 1 };
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--window-size={width},900"))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("chromium starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let console = log.lines().filter(|line| line.contains("CONSOLE")).map(String::from).collect();
    (String::from_utf8_lossy(&output.stdout).into_owned(), console)
}

/// Looks at the page when it has loaded and leaves what it saw, as JSON, in an attribute.
const LOOK: &str = r#"<script>addEventListener("load", () => {
    const faults = [], charts = [];
    const luminance = (color) => {
        const [r, g, b] = color.match(/[\d.]+/g).map((part) => part / 255)
            .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const page = getComputedStyle(document.body).backgroundColor;
    const contrast = (color) => {
        const [low, high] = [luminance(color), luminance(page)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    };
    for (const svg of document.querySelectorAll("figure svg")) {
        const title = svg.parentElement.getAttribute("aria-label");
        const box = svg.getBoundingClientRect();
        if (box.width < 250 || box.height < 150) faults.push(`${title}: ${box.width} × ${box.height}`);
        const texts = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
        texts.forEach(([text, at], index) => {
            const says = `${title}: ${text.textContent.trim()}`;
            if (at.left < box.left || at.right > box.right || at.top < box.top || at.bottom > box.bottom)
                faults.push(`${says} is cut`);
            if (at.height < 8 && at.width < 8) faults.push(`${says} is too small`);
            if (contrast(getComputedStyle(text).fill) < 4.5) faults.push(`${says} is too faint`);
            for (const [other, there] of texts.slice(index + 1))
                if (at.left < there.right - 1 && there.left < at.right - 1
                    && at.top < there.bottom - 1 && there.top < at.bottom - 1)
                    faults.push(`${says} overlaps ${other.textContent.trim()}`);
        });
        const lines = [...svg.querySelectorAll("polyline")].map((line) => getComputedStyle(line).stroke);
        charts.push({ title, lines: lines.length, texts: texts.map(([text]) => text.textContent.trim()) });
    }
    for (const text of document.querySelectorAll("h1, h2, p, th, td, small, dt, dd, li, code"))
        if (contrast(getComputedStyle(text).color) < 4.5) faults.push(`${text.textContent} is too faint`);
    if (document.documentElement.scrollWidth > innerWidth) faults.push("wider than the window");
    const seen = { page, charts, faults, width: innerWidth };
    document.documentElement.setAttribute("data-seen", JSON.stringify(seen));
});</script>"#;

fn look(folder: &Path, html: &str, scheme: &str, width: u32) -> Value {
    let page = folder.join("looked-at.html");
    // Before the page's own rule against scripts.
    fs::write(&page, html.replacen("<head>", &format!("<head>{LOOK}"), 1)).expect("written");
    let (dom, _) = browse(&page, scheme, width);
    let seen = dom.split_once("data-seen=\"").expect("the script ran").1;
    let seen = seen.split('"').next().expect("the attribute ends");
    serde_json::from_str(&seen.replace("&quot;", "\"").replace("&amp;", "&")).expect("JSON")
}

#[test]
fn a_browser_shows_every_chart_whole_in_light_and_dark() {
    if !have_chromium("the report in a browser") {
        return;
    }
    let policies = POLICIES.join(",");
    let options = ["--concurrency", "32,64", "--preset", "mla-full-attention", "--seeds", "2"];
    let (folder, html) = report(&[&options[..], &["--policies", &policies, "--json"]].concat());
    let mut pages = Vec::new();
    for (scheme, width) in [("light", 1280), ("dark", 1280), ("light", 500)] {
        let (_, console) = browse(&folder.path().join("report.html"), scheme, width);
        assert!(console.is_empty(), "{scheme}: {console:?}");

        let seen = look(folder.path(), &html, scheme, width);
        assert_eq!(seen["faults"], Value::Array(Vec::new()), "{scheme}, {width} wide");
        assert_eq!(seen["width"], width);
        let charts = seen["charts"].as_array().expect("charts");
        let chart = |title: &str| {
            let chart = charts.iter().find(|chart| chart["title"] == title);
            chart.unwrap_or_else(|| panic!("{title} is missing"))
        };
        let lines = |title: &str| chart(title)["lines"].as_u64().expect("a number");
        for policy in POLICIES {
            assert!(lines(&format!("{policy}: requests in largest batch over time")) >= 1);
            assert!(lines(&format!("{policy}: outstanding requests over time")) >= 8);
        }
        for title in [
            "outstanding CV against load, a line a policy",
            "KV ratio against outstanding CV, a point a policy",
        ] {
            assert!(lines(title) >= 3, "{title}");
            let texts = chart(title)["texts"].to_string();
            assert!(POLICIES.iter().all(|policy| texts.contains(policy)), "{texts}");
        }
        let texts = chart("TPOT p50 against request_tokens")["texts"].to_string();
        for text in ["asked: 19529", "balanced", "least_requests", "least_tokens", "TPOT p50, ms"] {
            assert!(texts.contains(text), "{text} is missing in {texts}");
        }
        assert_eq!(charts.len(), 2 * POLICIES.len() + 3);
        pages.push(seen["page"].clone());
    }
    assert_eq!(pages, ["rgb(255, 255, 255)", "rgb(20, 23, 26)", "rgb(255, 255, 255)"]);
}

#[test]
fn names_are_text_and_nothing_comes_from_elsewhere() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = folder.path().join("<b>a & b's \"trace\".csv");
    let lines: String = (0..300).map(|second| format!("{second},1000,50\n")).collect();
    fs::write(&trace, format!("time_s,input_tokens,output_tokens\n{lines}")).expect("written");
    let trace = trace.to_str().expect("UTF-8");
    let (_report, html) = report(&["--trace", trace, "--rate-scale", "1,1.1", "--csv"]);
    assert!(!html.contains("<b>"), "the name is no markup");
    assert!(html.contains("&lt;b&gt;a &amp; b's"), "the name is there");
    assert!(
        html.contains(" simulate --duration 3m --warm-up 1m --report "),
        "the command is there"
    );
    assert!(html.contains("rate × 1.1"));
    for elsewhere in ["<script", "src=", "href=", "url(", "@import"] {
        assert!(!html.contains(elsewhere), "{elsewhere}");
    }
    let address = html.replace("http://www.w3.org/2000/svg", "");
    assert!(!address.contains("http://") && !address.contains("https://"));
}

#[test]
fn a_report_changes_nothing_else_that_is_printed() {
    let options = ["--duration", "1m", "--warm-up", "10s", "--policies", "requests", "--json"];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("report.html");
    let report = ["--report", path.to_str().expect("UTF-8")];
    let (without, with) = (simulate(&options), simulate(&[&options[..], &report].concat()));
    assert!(with.status.success() && path.is_file());
    assert_eq!(with.stdout, without.stdout);
    assert!(with.stderr.is_empty());
}

#[test]
fn the_table_says_what_the_step_asks_for() {
    for (preset, says) in [
        ("deepseek-v4-mi355x", "asks for request_tokens 4294967295, as large as can be"),
        ("mla-full-attention", "asks for request_tokens 19529: so many tokens cost as much as"),
    ] {
        let output = simulate(&["--duration", "1s", "--warm-up", "1s", "--preset", preset]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn an_unwritable_path_is_told_before_anything_else() {
    let output = simulate(&["--report", "/no/such/folder/out.html", "--trace", "/no/such/trace"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("error: /no/such/folder/out.html: No such file"), "{text}");
}
