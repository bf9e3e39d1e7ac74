//! What engines answer when they are asked for their loads: from bytes to numbers, without a network
//! or a pool.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// The deepest nesting of arrays and objects that [`parse`] takes.
pub const MAX_DEPTH: usize = 32;
/// The most tokens of one rank, 2⁵³ − 1: above it JSON's numbers are not exact.
pub const MAX_TOKENS: u64 = (1 << 53) - 1;
/// The most ranks in one body: as many as a pool has workers.
pub const MAX_RANKS: usize = 65_535;

/// Rejections whose reason is kept; the others are only counted.
const REASONS: usize = 8;
/// The most characters that are told of anything that may quote what an engine sent.
const TOLD: usize = 200;

/// What one engine answered.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Each rank at most once, in the order of the body.
    pub ranks: Vec<RankLoad>,
    /// The entries that are not among them.
    pub rejected: Rejected,
}

/// The load of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankLoad {
    /// The DP rank; none: all of the engine, whose ranks can't be told apart.
    pub rank: Option<u32>,
    /// Tokens in its KV cache plus those of its waiting requests; at most [`MAX_TOKENS`].
    pub tokens: u64,
    /// Running requests, if it said so.
    pub running: Option<u32>,
    /// Waiting requests, if it said so.
    pub waiting: Option<u32>,
    /// When it was sampled: the bits of the number that was reported, to be compared for equality
    /// alone.
    pub timestamp: Option<u64>,
}

/// Entries that were not taken.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rejected {
    /// How many.
    pub count: usize,
    /// Why, of the first eight. A reason quotes what was sent, shortened and in one line.
    pub reasons: Vec<String>,
}

impl Rejected {
    pub(crate) fn add(&mut self, reason: impl fmt::Display) {
        self.count += 1;
        if self.reasons.len() < REASONS {
            self.reasons.push(one_line(reason));
        }
    }
}

/// Why a body is no report at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError(String);

impl ParseError {
    fn new(reason: impl fmt::Display) -> Self {
        Self(one_line(reason))
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseError {}

/// Reads a report in any of the three shapes that SGLang's engines have had.
///
/// | shape | ranks | tokens | running |
/// |---|---|---|---|
/// | `/v1/loads`: an object with `loads` | `dp_rank` | `num_total_tokens` | `num_running_reqs` |
/// | older: an object with `aggregate` and no `loads` | none: the whole engine | `total_tokens` | `total_running_reqs` |
/// | oldest, `/get_load`: a list | `dp_rank` | `num_tokens` | `num_reqs` − `num_waiting_reqs` |
///
/// The tokens are what SGLang's own router compares: those in the KV cache plus the lengths of all
/// waiting requests, in each of the shapes. Tokens in use alone would make an engine with a long
/// queue look idle. An object that has both `loads` and `aggregate` is read by its `loads`.
///
/// Numbers are whole and at least 0. An entry in which one is missing, negative, too large or of
/// another type, or whose rank came before, is rejected by itself. `NaN` and `Infinity`, which
/// Python writes and JSON does not know, reject only entries that have them where a number is read.
/// An entry without a `dp_rank`, or with `null`, is of the whole engine.
///
/// Allocates in proportion to the body. Never panics.
///
/// # Errors
/// The body is no JSON, is none of the shapes, nests deeper than [`MAX_DEPTH`], or has more than
/// [`MAX_RANKS`] entries.
pub fn parse(body: &[u8]) -> Result<Report, ParseError> {
    let body = tame(body)?;
    if body.trim_ascii_start().starts_with(b"[") {
        return ranks::<OldestEntry>(&read::<Vec<&RawValue>>(&body)?);
    }
    let Object { loads, aggregate } = read(&body)?;
    match (loads, aggregate) {
        (Some(loads), _) => ranks::<Entry>(&loads),
        (None, Some(aggregate)) => ranks::<Aggregate>(&[aggregate]),
        (None, None) => {
            Err(ParseError::new("an object without `loads` and `aggregate`; one of them is needed"))
        }
    }
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    loads: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    aggregate: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Entry {
    dp_rank: Option<u32>,
    num_total_tokens: u64,
    num_running_reqs: Option<u32>,
    num_waiting_reqs: Option<u32>,
    timestamp: Option<f64>,
}

impl From<Entry> for RankLoad {
    fn from(entry: Entry) -> Self {
        Self {
            rank: entry.dp_rank,
            tokens: entry.num_total_tokens,
            running: entry.num_running_reqs,
            waiting: entry.num_waiting_reqs,
            timestamp: entry.timestamp.map(f64::to_bits),
        }
    }
}

#[derive(Deserialize)]
struct Aggregate {
    total_tokens: u64,
    total_running_reqs: Option<u32>,
    total_waiting_reqs: Option<u32>,
}

impl From<Aggregate> for RankLoad {
    fn from(aggregate: Aggregate) -> Self {
        Self {
            rank: None,
            tokens: aggregate.total_tokens,
            running: aggregate.total_running_reqs,
            waiting: aggregate.total_waiting_reqs,
            timestamp: None,
        }
    }
}

#[derive(Deserialize)]
struct OldestEntry {
    dp_rank: Option<u32>,
    num_tokens: u64,
    /// Running and waiting ones.
    num_reqs: Option<u32>,
    num_waiting_reqs: Option<u32>,
}

impl From<OldestEntry> for RankLoad {
    fn from(entry: OldestEntry) -> Self {
        let running = entry.num_reqs.zip(entry.num_waiting_reqs);
        Self {
            rank: entry.dp_rank,
            tokens: entry.num_tokens,
            running: running.and_then(|(all, waiting)| all.checked_sub(waiting)),
            waiting: entry.num_waiting_reqs,
            timestamp: None,
        }
    }
}

fn ranks<E: DeserializeOwned + Into<RankLoad>>(
    entries: &[&RawValue],
) -> Result<Report, ParseError> {
    if entries.len() > MAX_RANKS {
        let reason = format!("{} entries; at most {MAX_RANKS} are allowed", entries.len());
        return Err(ParseError::new(reason));
    }
    let mut report = Report::default();
    let mut seen = HashSet::new();
    for (index, entry) in entries.iter().enumerate() {
        match rank::<E>(entry.get()) {
            Ok(load) if seen.insert(load.rank) => report.ranks.push(load),
            Ok(RankLoad { rank: Some(rank), .. }) => report
                .rejected
                .add(format_args!("entry {index}: rank {rank} came before; each is allowed once")),
            Ok(_) => report.rejected.add(format_args!(
                "entry {index}: a second one without a rank; only one is allowed"
            )),
            Err(reason) => report.rejected.add(format_args!("entry {index}: {reason}")),
        }
    }
    Ok(report)
}

fn rank<E: DeserializeOwned + Into<RankLoad>>(entry: &str) -> Result<RankLoad, String> {
    if !entry.starts_with('{') {
        return Err(format!("only an object is allowed, not {entry}"));
    }
    let load: RankLoad =
        serde_json::from_str::<E>(entry).map_err(|error| format!("{error} of {entry}"))?.into();
    if load.tokens > MAX_TOKENS {
        return Err(format!("{} tokens; at most {MAX_TOKENS} are allowed", load.tokens));
    }
    Ok(load)
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ParseError> {
    serde_json::from_slice(body).map_err(ParseError::new)
}

/// The body, with `NaN` and `Infinity` made strings, which JSON knows and where a number is read
/// [`parse`] does not take. Refuses deep nesting, which readers of JSON pay for with stack.
fn tame(body: &[u8]) -> Result<Cow<'_, [u8]>, ParseError> {
    let mut tamed = Vec::new();
    let mut tamed_to = 0;
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut at = 0;
    while let Some(&byte) = body.get(at) {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => at += 1,
            _ if in_string => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'N' | b'I' => {
                let is_next = |word: &&str| body[at..].starts_with(word.as_bytes());
                if let Some(word) = ["NaN", "Infinity"].into_iter().find(is_next) {
                    let negative = body[tamed_to..at].ends_with(b"-");
                    let from = at - usize::from(negative);
                    let to = at + word.len();
                    tamed.extend([&body[tamed_to..from], b"\"", &body[from..to], b"\""].concat());
                    tamed_to = to;
                    at = to - 1;
                }
            }
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(ParseError::new(format!(
                "arrays and objects nested deeper than {MAX_DEPTH}, which is the most allowed"
            )));
        }
        at += 1;
    }
    if tamed_to == 0 {
        return Ok(Cow::Borrowed(body));
    }
    tamed.extend(&body[tamed_to..]);
    Ok(Cow::Owned(tamed))
}

/// Shortened, and with all escaped that can't be seen: whoever reads a log has to know where a line
/// ends and who wrote it.
pub(crate) fn one_line(text: impl fmt::Display) -> String {
    let text = text.to_string();
    let mut line = String::new();
    for char in text.chars().take(TOLD) {
        match char {
            '"' | '\'' | '\\' => line.push(char),
            _ => line.extend(char.escape_debug()),
        }
    }
    if text.chars().nth(TOLD).is_some() {
        line.push('…');
    }
    line
}
