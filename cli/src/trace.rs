//! Reads traces: of conversations (AgentX) or of requests at moments of their own (Mooncake, Azure,
//! plain CSV). Whatever can't be read is an error with file, line and reason.

mod agentx;

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::str::{self, FromStr};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;

use crate::model::{Arrival, Conversation};

/// What goes beyond is no trace, and must not fill the memory.
const LONGEST_LINE: u64 = 16 << 20;

pub enum Trace {
    /// None is empty.
    Conversations(Vec<Conversation>),
    /// In the order of their times, the first at 0.
    Arrivals(Vec<Arrival>),
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Conversations(conversations) => {
                let requests: usize = conversations.iter().map(Vec::len).sum();
                write!(f, "{} conversations, {requests} requests", conversations.len())
            }
            Self::Arrivals(arrivals) => write!(f, "{} requests", arrivals.len()),
        }
    }
}

/// A folder and `.json` files are AgentX as published; of others the first line tells the format.
pub fn read(path: &Path, sub_agents: bool) -> Result<Trace> {
    let (mut conversations, mut arrivals) = (Vec::new(), Vec::new());
    if path.is_dir() {
        conversations = agentx::read_folder(path, sub_agents)?;
    } else if path.extension().is_some_and(|extension| extension == "json") {
        conversations = agentx::read_published(path, sub_agents)?;
    } else {
        let mut format = None;
        for_each_line(path, |line| {
            let format = match format {
                Some(format) => format,
                None => {
                    let told = *format.insert(Format::of(line)?);
                    if matches!(told, Format::Azure | Format::Csv) {
                        return Ok(()); // The line was a header.
                    }
                    told
                }
            };
            match format {
                Format::AgentX => conversations.extend(agentx::parse_session(line, sub_agents)?),
                Format::Mooncake => arrivals.push(parse_mooncake(line)?),
                Format::Azure => arrivals.push(parse_azure(line)?),
                Format::Csv => arrivals.push(parse_csv(line)?),
            }
            Ok(())
        })?;
    }
    conversations.retain(|conversation| !conversation.is_empty());
    if let Some(first) = arrivals.iter().map(|arrival: &Arrival| arrival.at).min() {
        arrivals.iter_mut().for_each(|arrival| arrival.at -= first);
        arrivals.sort_by_key(|arrival| arrival.at);
        return Ok(Trace::Arrivals(arrivals));
    }
    ensure!(!conversations.is_empty(), "{}: no requests in it", path.display());
    Ok(Trace::Conversations(conversations))
}

/// Lines that are not blank; errors get their place.
fn for_each_line(path: &Path, mut read: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let name = path.display();
    let file = File::open(path).with_context(|| name.to_string())?;
    let mut text = BufReader::new(file);
    let mut line = Vec::new();
    for number in 1.. {
        let mut read_line = || {
            line.clear();
            let length = (&mut text).take(LONGEST_LINE).read_until(b'\n', &mut line)?;
            ensure!((length as u64) < LONGEST_LINE, "a line of {LONGEST_LINE} bytes or more");
            let line = str::from_utf8(&line)?.trim_start_matches('\u{feff}').trim();
            if !line.is_empty() {
                read(line)?;
            }
            Ok(length)
        };
        if read_line().with_context(|| format!("{name}:{number}"))? == 0 {
            break;
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Format {
    AgentX,
    Mooncake,
    Azure,
    Csv,
}

impl Format {
    /// Of a file that begins with this line.
    fn of(line: &str) -> Result<Self> {
        match line {
            "TIMESTAMP,ContextTokens,GeneratedTokens" => Ok(Self::Azure),
            "time_s,input_tokens,output_tokens" => Ok(Self::Csv),
            _ if !line.starts_with('{') => bail!(
                "expected a JSON object or a header, TIMESTAMP,ContextTokens,GeneratedTokens or \
                 time_s,input_tokens,output_tokens"
            ),
            _ if line.contains("\"input_length\"") => Ok(Self::Mooncake),
            _ => Ok(Self::AgentX),
        }
    }
}

fn parse_mooncake(line: &str) -> Result<Arrival> {
    #[derive(Deserialize)]
    struct Request {
        timestamp: f64,
        input_length: u32,
        output_length: u32,
    }
    let request: Request = serde_json::from_str(line).map_err(without_line)?;
    let at = seconds(request.timestamp / 1e3)?;
    Ok(arrival(at, request.input_length, request.output_length))
}

fn parse_azure(line: &str) -> Result<Arrival> {
    let [time, input, output] = fields(line)?;
    let at = humantime::parse_rfc3339_weak(time).with_context(|| format!("timestamp {time:?}"))?;
    Ok(arrival(at.duration_since(SystemTime::UNIX_EPOCH)?, parse(input)?, parse(output)?))
}

fn parse_csv(line: &str) -> Result<Arrival> {
    let [time_s, input, output] = fields(line)?;
    Ok(arrival(seconds(parse(time_s)?)?, parse(input)?, parse(output)?))
}

fn fields(line: &str) -> Result<[&str; 3]> {
    let fields: Vec<_> = line.split(',').map(str::trim).collect();
    let count = fields.len();
    fields.try_into().map_err(|_| anyhow!("{count} fields instead of 3"))
}

fn parse<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(field: &str) -> Result<T> {
    field.parse().with_context(|| format!("{field:?}"))
}

fn seconds(seconds: f64) -> Result<Duration> {
    ensure!((0.0..=1e11).contains(&seconds), "time of {seconds} s");
    Ok(Duration::from_secs_f64(seconds))
}

/// Some recorded responses are empty; a decode step yields a token.
fn arrival(at: Duration, input: u32, output: u32) -> Arrival {
    Arrival { at, input, output: output.max(1) }
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

    fn read_as(name: &str, text: &str) -> Result<Trace> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        read(&file, true)
    }

    fn arrivals(text: &str) -> Vec<(u64, u32, u32)> {
        match read_as("trace", text).unwrap() {
            Trace::Arrivals(arrivals) => arrivals
                .iter()
                .map(|arrival| (arrival.at.as_millis() as u64, arrival.input, arrival.output))
                .collect(),
            Trace::Conversations(_) => panic!("conversations in {text}"),
        }
    }

    #[test]
    fn reads_requests_at_moments_of_their_own() {
        let expected = [(0, 100, 10), (1_500, 200, 1)];
        for text in [
            "{\"timestamp\":500,\"input_length\":100,\"output_length\":10,\"hash_ids\":[1]}\n\
             {\"timestamp\":2000,\"input_length\":200,\"output_length\":0}",
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.0000000,100,10\r\n\
             2023-11-17 00:00:00.5000000,200,1\r\n",
            "\n\u{feff}time_s,input_tokens,output_tokens\n\n2.0, 100, 10\n3.5,200,1\n\n",
            "time_s,input_tokens,output_tokens\n3.5,200,1\n2,100,10\n",
        ] {
            assert_eq!(arrivals(text), expected, "{text}");
        }
    }

    #[test]
    fn reads_conversations_line_by_line() {
        let line = r#"{"req":[[0,100,10,0,null,0]]}"#;
        let text = format!("{line}\n{{\"req\":[]}}\n{line}\n");
        let Trace::Conversations(conversations) = read_as("trace", &text).unwrap() else {
            panic!("arrivals");
        };
        assert_eq!(conversations.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn says_where_a_file_is_wrong_and_how() {
        let csv = "time_s,input_tokens,output_tokens\n1,1,1\n";
        let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        let mooncake = "{\"timestamp\":1,\"input_length\":1,\"output_length\":1}\n";
        for (text, place, reason) in [
            (format!("{csv}1,2\n"), ":3: ", "2 fields instead of 3"),
            (format!("{csv}1,2,3,4\n"), ":3: ", "4 fields instead of 3"),
            (format!("{csv}\n1,-2,3\n"), ":4: ", "\"-2\": invalid digit"),
            (format!("{csv}-1,2,3\n"), ":3: ", "time of -1 s"),
            (format!("{csv}NaN,2,3\n"), ":3: ", "time of NaN s"),
            (format!("{csv}soon,2,3\n"), ":3: ", "\"soon\": invalid float"),
            (format!("{azure}yesterday,2,3\n"), ":2: ", "timestamp \"yesterday\""),
            (format!("{mooncake}{{\"timestamp\":2}}\n"), ":2: ", "column 15: missing field"),
            (format!("{mooncake}{mooncake}1,2,3\n"), ":3: ", "column 1: invalid type"),
            ("a,b\n1,2\n".into(), ":1: ", "expected a JSON object or a header"),
            (csv[..34].into(), "", "no requests in it"),
            ("\n \n".into(), "", "no requests in it"),
            ("{\"req\":[]}\n".into(), "", "no requests in it"),
        ] {
            let error = format!("{:#}", read_as("broken", &text).err().expect(&text));
            assert!(error.contains(&format!("broken{place}")), "{text}: {error}");
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bytes");
        std::fs::write(&file, b"time_s,input_tokens,output_tokens\n\xff\n").unwrap();
        let error = format!("{:#}", read(&file, true).err().unwrap());
        assert!(error.contains("bytes:2: invalid utf-8"), "{error}");
    }

    #[test]
    fn a_line_without_an_end_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("endless");
        File::create(&file).unwrap().set_len(1 << 40).unwrap();
        let error = format!("{:#}", read(&file, true).err().unwrap());
        assert!(error.contains("endless:1: a line of"), "{error}");
    }
}
