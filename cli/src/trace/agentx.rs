//! AgentX traces: in the compact form, one session a line, its requests as arrays; and as published,
//! one conversation a file, its requests with the hashes of their prompts' blocks.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::without_line;
use crate::model::{Conversation, Turn};

#[derive(Deserialize)]
struct Session {
    req: Vec<Entry>,
}

enum Entry {
    Request(Request),
    SubAgent(SubAgent),
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
    requests: Vec<Request>,
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
                SubAgent::deserialize(MapAccessDeserializer::new(map)).map(Entry::SubAgent)
            }
        }

        deserializer.deserialize_any(EntryVisitor)
    }
}

/// The session's conversation and, if wanted, those of its sub-agents.
pub fn parse_session(line: &str, sub_agents: bool) -> Result<Vec<Conversation>> {
    let session: Session = serde_json::from_str(line).map_err(without_line)?;
    let mut own = Vec::new();
    let mut conversations = Vec::new();
    for entry in session.req {
        match entry {
            Entry::Request(request) => own.push(request),
            Entry::SubAgent(agent) if sub_agents => {
                conversations.push(conversation(&agent.requests).context("a sub-agent")?);
            }
            Entry::SubAgent(_) => {}
        }
    }
    conversations.insert(0, conversation(&own)?);
    Ok(conversations)
}

fn conversation(requests: &[Request]) -> Result<Conversation> {
    let mut previous_start = 0.0;
    requests
        .iter()
        .enumerate()
        .map(|(index, request)| {
            let turn =
                turn(request, previous_start).with_context(|| format!("request {}", index + 1));
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

/// Every conversation of the folder's `.json` files, in the order of their names.
pub fn read_folder(path: &Path, sub_agents: bool) -> Result<Vec<Conversation>> {
    let entries: std::io::Result<Vec<_>> =
        fs::read_dir(path).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut files = entries.with_context(|| path.display().to_string())?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let mut conversations = Vec::new();
    for file in files {
        conversations.extend(read_published(&file, sub_agents)?);
    }
    Ok(conversations)
}

pub fn read_published(path: &Path, sub_agents: bool) -> Result<Vec<Conversation>> {
    let name = path.display();
    let file = File::open(path).with_context(|| name.to_string())?;
    let published: Published = serde_json::from_reader(BufReader::new(file))
        .map_err(|error| anyhow!("{name}:{}: {:#}", error.line(), without_line(error)))?;
    published.conversations(sub_agents).with_context(|| name.to_string())
}

#[derive(Deserialize)]
struct Published {
    block_size: u32,
    requests: Vec<PublishedEntry>,
}

/// A request or a sub-agent, which has requests of its own.
#[derive(Deserialize)]
struct PublishedEntry {
    t: f64,
    #[serde(rename = "in")]
    input: Option<u32>,
    #[serde(rename = "out")]
    output: Option<u32>,
    #[serde(default)]
    hash_ids: Vec<u64>,
    think_time: Option<f64>,
    requests: Option<Vec<PublishedEntry>>,
}

impl Published {
    fn conversations(&self, sub_agents: bool) -> Result<Vec<Conversation>> {
        let agents = self.requests.iter().filter_map(|entry| entry.requests.as_deref());
        [self.requests.as_slice()]
            .into_iter()
            .chain(agents.filter(|_| sub_agents))
            .map(|entries| conversation(&self.requests_of(entries)?))
            .collect()
    }

    /// A block is cached once the conversation had it, as long as all before it are.
    fn requests_of(&self, entries: &[PublishedEntry]) -> Result<Vec<Request>> {
        ensure!(self.block_size > 0, "block_size is 0");
        let mut seen = HashSet::new();
        let requests = entries.iter().filter(|entry| entry.requests.is_none()).enumerate();
        requests
            .map(|(index, entry)| {
                let (Some(input), Some(output)) = (entry.input, entry.output) else {
                    bail!("request {} has no `in` or no `out`", index + 1);
                };
                let hits = entry.hash_ids.iter().take_while(|id| seen.contains(*id)).count();
                seen.extend(entry.hash_ids.iter().copied());
                let cached = (hits as u64 * u64::from(self.block_size)).min(input.into()) as u32;
                Ok(Request {
                    start_s: entry.t,
                    input,
                    output,
                    cached,
                    _api_time_s: None,
                    think_time_s: entry.think_time,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};

    fn turn(input: u32, uncached: u32, output: u32, think_ms: u64) -> Turn {
        Turn { input, uncached, output, think: Duration::from_millis(think_ms) }
    }

    #[test]
    fn sub_agents_are_conversations_or_left_out() {
        let line = r#"{"id":"a","tool":9,"sys":3,"req":[
            [0.0,100,10,0,1.5,0.0],
            {"sub":[[0.0,50,5,0,1.0,0.0]],"t":2.0,"k":{"agent_id":"b"}},
            [4.0,160,20,96,null,2.5]]}"#;
        let own = vec![turn(100, 100, 10, 0), turn(160, 64, 20, 2_500)];
        let agent = vec![turn(50, 50, 5, 0)];
        let [without, with] = [false, true].map(|wanted| parse_session(line, wanted).unwrap());
        assert_eq!(with, [own, agent]);
        assert_eq!(without, with[..1]);
    }

    const PUBLISHED: &str = r#"{"id": "a", "block_size": 64, "tool_tokens": 9, "requests": [
        {"t": 0.0, "type": "n", "in": 150, "out": 10, "hash_ids": [1, 2, 3], "think_time": 0.0},
        {"t": 2.0, "type": "subagent", "agent_id": "b", "requests": [
            {"t": 0.0, "type": "n", "in": 70, "out": 5, "hash_ids": [1, 9], "think_time": 0.0},
            {"t": 3.0, "type": "n", "in": 60, "out": 5, "hash_ids": [1], "think_time": 1.5}]},
        {"t": 4.0, "type": "s", "in": 300, "out": 20, "hash_ids": [1, 2, 4, 3, 5], "think_time": 2.5},
        {"t": 9.0, "type": "s", "in": 300, "out": 0, "hash_ids": [6, 2, 4, 3, 5]}]}"#;

    #[test]
    fn a_published_block_is_cached_behind_cached_ones_of_its_conversation() {
        let published: Published = serde_json::from_str(PUBLISHED).unwrap();
        let own = vec![
            turn(150, 150, 10, 0),
            turn(300, 300 - 2 * 64, 20, 2_500),
            turn(300, 300, 1, 5_000),
        ];
        let agent = vec![turn(70, 70, 5, 0), turn(60, 0, 5, 1_500)];
        let [without, with] = [false, true].map(|wanted| published.conversations(wanted).unwrap());
        assert_eq!(with, [own, agent]);
        assert_eq!(without, with[..1]);
    }

    #[test]
    fn reads_a_folder_of_published_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for (name, input) in [("b.json", 2), ("a.json", 1)] {
            let text = format!(
                r#"{{"block_size":64,"requests":[{{"t":0,"in":{input},"out":1,"think_time":0}}]}}"#
            );
            fs::write(folder.path().join(name), text).unwrap();
        }
        fs::write(folder.path().join("README.md"), "no trace").unwrap();
        let conversations = read_folder(folder.path(), true).unwrap();
        assert_eq!(conversations, [[turn(1, 1, 1, 0)], [turn(2, 2, 1, 0)]]);
    }

    #[test]
    fn says_what_is_wrong_with_a_published_file() {
        for (from, to, reason) in [
            (r#""out": 20"#, r#""out": "many""#, "broken.json:6: column "),
            (r#""out": 20"#, r#""output": 20"#, "broken.json: request 2 has no `in` or no `out`"),
            (r#""block_size": 64"#, r#""block_size": 0"#, "broken.json: block_size is 0"),
            (r#""block_size": 64,"#, "", "missing field `block_size`"),
            (r#""think_time": 2.5"#, r#""think_time": -2.5"#, "request 2: think time of -2.5 s"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("broken.json");
            fs::write(&file, PUBLISHED.replacen(from, to, 1)).unwrap();
            let error = format!("{:#}", read_published(&file, true).unwrap_err());
            assert!(error.contains(reason), "{to}: {error}");
        }
    }

    /// Both forms of the same conversations.
    #[test]
    fn the_published_and_the_compact_form_are_the_same() {
        let Some(traces) = std::env::var_os("EVENKEEL_TRACES") else {
            // Not eprintln!, which is captured while a test passes.
            let note = b"left out: both forms of AgentX (EVENKEEL_TRACES is not set)\n";
            io::stderr().write_all(note).expect("stderr is open");
            return;
        };
        let folder = Path::new(&traces).join("agentx");
        let compact = fs::read_to_string(folder.join("agentx.jsonl")).unwrap();
        let files = fs::read_dir(folder.join("raw")).unwrap();
        for file in files.map(|entry| entry.unwrap().path()) {
            let id = format!(r#"{{"id":"{}""#, file.file_stem().unwrap().to_str().unwrap());
            let line = compact.lines().find(|line| line.starts_with(&id)).unwrap();
            let from_compact = parse_session(line, true).unwrap();
            let published = read_published(&file, true).unwrap();
            assert_eq!(published, from_compact, "{id}");
        }
    }

    #[test]
    fn takes_the_time_between_starts_for_an_unknown_pause() {
        let line = r#"{"req":[[3.0,100,10,0,null,0.0],[10.0,160,20,96,null,null]]}"#;
        let conversations = parse_session(line, true).unwrap();
        assert_eq!(conversations[0][1].think, Duration::from_secs(7));
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
            (r#"{"req":[{"sub":[[0,1,2,3,0,0]]}]}"#, "a sub-agent: request 1: 3 cached tokens"),
            (r#"{"req":[[0,10,2,11,0,0]]}"#, "request 1: 11 cached tokens of 10 input tokens"),
            (r#"{"req":[[0,10,2,0,0,-3]]}"#, "request 1: think time of -3 s"),
            (r#"{"req":[[9,1,1,0,0,0],[5,1,1,0,0,null]]}"#, "request 2: think time of -4 s"),
        ] {
            let error = format!("{:#}", parse_session(line, true).unwrap_err());
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
