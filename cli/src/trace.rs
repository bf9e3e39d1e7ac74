//! Reads AgentX traces in the compact form: one session a line, its requests as arrays
//! `[start_s, input_tokens, output_tokens, cached_input_tokens, api_time_s, think_time_s]`.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::model::{Conversation, Turn};

#[derive(Deserialize)]
struct Session {
    req: Vec<Entry>,
}

enum Entry {
    Request(Request),
    SubAgent,
}

/// The columns of a request. Times that the recording lacks are null.
#[derive(Deserialize)]
struct Request {
    start_s: f64,
    input: u32,
    output: u32,
    cached: u32,
    _api_time_s: Option<f64>,
    think_time_s: Option<f64>,
}

#[derive(Deserialize)]
struct SubAgent {
    #[serde(rename = "sub")]
    _requests: IgnoredAny,
}

/// By hand, since an untagged enum would answer every fault with "did not match any variant".
impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryVisitor;

        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(
                    "[start, input, output, cached, api time, think time] or a sub-agent's object",
                )
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Entry, A::Error> {
                Request::deserialize(SeqAccessDeserializer::new(seq)).map(Entry::Request)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
                SubAgent::deserialize(MapAccessDeserializer::new(map)).map(|_| Entry::SubAgent)
            }
        }

        deserializer.deserialize_any(EntryVisitor)
    }
}

/// Every conversation of the file. Sub-agents are left out: they are 1.4 % of AgentX's requests.
pub fn read_agentx(path: &Path) -> Result<Vec<Conversation>> {
    let name = path.display();
    let file = File::open(path).with_context(|| name.to_string())?;
    let mut conversations = Vec::new();
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let conversation = line
            .map_err(Into::into)
            .and_then(
                |line| if line.trim().is_empty() { Ok(Vec::new()) } else { parse_session(&line) },
            )
            .with_context(|| format!("{name}:{}", index + 1))?;
        conversations.push(conversation);
    }
    conversations.retain(|conversation| !conversation.is_empty());
    ensure!(!conversations.is_empty(), "{name}: no requests in this file");
    Ok(conversations)
}

fn parse_session(line: &str) -> Result<Conversation> {
    let session: Session = serde_json::from_str(line).map_err(without_line)?;
    let requests = session.req.into_iter().filter_map(|entry| match entry {
        Entry::Request(request) => Some(request),
        Entry::SubAgent => None,
    });
    let mut previous_start = 0.0;
    requests
        .enumerate()
        .map(|(index, request)| {
            let turn =
                turn(&request, previous_start).with_context(|| format!("request {}", index + 1));
            previous_start = request.start_s;
            turn
        })
        .collect()
}

fn turn(request: &Request, previous_start: f64) -> Result<Turn> {
    let Request { start_s, input, output, cached, think_time_s, .. } = *request;
    let Some(uncached) = input.checked_sub(cached) else {
        bail!("{cached} cached tokens of {input} input tokens");
    };
    // Where the previous response's end is unknown its start stands in: no pause is longer.
    let think = think_time_s.unwrap_or(start_s - previous_start);
    let think =
        Duration::try_from_secs_f64(think).with_context(|| format!("think time of {think} s"))?;
    // Some recorded responses are empty; a decode step yields a token.
    Ok(Turn { input, uncached, output: output.max(1), think })
}

/// serde_json counts lines within the text it was given, which here is one line of the file.
fn without_line(error: serde_json::Error) -> anyhow::Error {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(reason) => anyhow!("column {}: {reason}", error.column()),
        None => anyhow!(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_requests_and_leaves_sub_agents_out() {
        let line = r#"{"id":"a","tool":9,"sys":3,"req":[
            [0.0,100,10,0,1.5,0.0],
            {"sub":[[0.0,50,5,0,1.0,0.0]],"t":2.0,"k":{"agent_id":"b"}},
            [4.0,160,20,96,null,2.5]]}"#;
        let turn = |input, uncached, output, think_ms| Turn {
            input,
            uncached,
            output,
            think: Duration::from_millis(think_ms),
        };
        let conversation = parse_session(line).unwrap();
        assert_eq!(conversation, [turn(100, 100, 10, 0), turn(160, 64, 20, 2_500)]);
    }

    #[test]
    fn takes_the_time_between_starts_for_an_unknown_pause() {
        let line = r#"{"req":[[3.0,100,10,0,null,0.0],[10.0,160,20,96,null,null]]}"#;
        let conversation = parse_session(line).unwrap();
        assert_eq!(conversation[1].think, Duration::from_secs(7));
    }

    #[test]
    fn says_what_is_wrong_with_a_line() {
        for (line, reason) in [
            ("", "column 0: EOF while parsing a value"),
            (r#"{"id":"a"}"#, "column 10: missing field `req`"),
            (r#"{"req":[[0,1,2]]}"#, "column 15: invalid length 3"),
            (r#"{"req":[[0,1,2,0,0,0,0]]}"#, "trailing characters"),
            (r#"{"req":[[0,-1,2,0,0,0]]}"#, "invalid value: integer `-1`, expected u32"),
            (r#"{"req":[[0,5000000000,2,0,0,0]]}"#, "expected u32"),
            (r#"{"req":["x"]}"#, "expected [start, input, output, cached"),
            (r#"{"req":[{"t":1}]}"#, "missing field `sub`"),
            (r#"{"req":[[0,10,2,11,0,0]]}"#, "request 1: 11 cached tokens of 10 input tokens"),
            (r#"{"req":[[0,10,2,0,0,-3]]}"#, "request 1: think time of -3 s"),
            (r#"{"req":[[9,1,1,0,0,0],[5,1,1,0,0,null]]}"#, "request 2: think time of -4 s"),
        ] {
            let error = format!("{:#}", parse_session(line).unwrap_err());
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn a_file_without_requests_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"req\":[]}\n").unwrap();
        let error = read_agentx(file.path()).unwrap_err().to_string();
        assert!(error.ends_with("no requests in this file"), "{error}");
    }
}
