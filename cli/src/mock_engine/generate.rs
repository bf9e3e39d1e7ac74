//! `/generate` and `/v1/chat/completions`: what a request asks for, and its response.

use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response};
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::{Distribution, LogNormal};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::yield_now;

use super::http::{self, Body, Refusal};
use super::ranks::Work;
use super::report::Room;
use super::{End, Engine, Role, Service, unix_ms};

const DEFAULT_OUTPUT: u32 = 128;
const LONGEST_OUTPUT: u32 = 1_000_000;
/// A month.
const LONGEST_SERVICE_MS: f64 = 30.0 * 24.0 * 3_600_000.0;
const TOKEN: &str = " token";
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
const RANK_HEADER: &str = "x-data-parallel-rank";

#[derive(Clone, Copy, PartialEq)]
pub enum Api {
    Generate,
    Chat,
}

/// Of both, with what a router adds.
#[derive(Deserialize)]
struct Ask {
    text: Option<String>,
    input_ids: Option<Vec<u32>>,
    messages: Option<Vec<Message>>,
    sampling_params: Option<Sampling>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    max_new_tokens: Option<u32>,
    stream: Option<bool>,
    data_parallel_rank: Option<i64>,
    bootstrap_host: Option<String>,
    bootstrap_port: Option<u16>,
    bootstrap_room: Option<u64>,
    mock: Option<Mock>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<Content>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    text: Option<String>,
}

#[derive(Deserialize)]
struct Sampling {
    max_new_tokens: Option<u32>,
}

/// What a test may say instead of the prompt.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mock {
    input_tokens: Option<u32>,
    #[serde(default)]
    cached_tokens: u32,
    service_ms: Option<f64>,
}

struct Prompt {
    tokens: u32,
    /// The same for the same prompt.
    key: u64,
}

impl Ask {
    fn prompt(&self, api: Api) -> Result<Prompt, Refusal> {
        let of_text = |text: &str| Prompt {
            tokens: text.len().div_ceil(4).max(1) as u32,
            key: evenkeel::key(text),
        };
        match (api, &self.text, &self.input_ids, &self.messages) {
            (Api::Generate, Some(text), None, _) => Ok(of_text(text)),
            (Api::Generate, None, Some(ids), _) if !ids.is_empty() => Ok(Prompt {
                tokens: ids.len() as u32,
                key: ids.iter().fold(0, |key, id| {
                    Xoshiro256PlusPlus::seed_from_u64(key ^ u64::from(*id)).next_u64()
                }),
            }),
            (Api::Generate, ..) => Err(Refusal::bad_request("text or input_ids is needed")),
            (Api::Chat, _, _, Some(messages)) if !messages.is_empty() => {
                Ok(of_text(&messages.iter().flat_map(Message::texts).collect::<String>()))
            }
            (Api::Chat, ..) => Err(Refusal::bad_request("messages are needed")),
        }
    }

    fn output(&self) -> Result<u32, Refusal> {
        let sampling = self.sampling_params.as_ref().and_then(|params| params.max_new_tokens);
        let given = self.max_completion_tokens.or(self.max_tokens).or(self.max_new_tokens);
        let output = sampling.or(given).unwrap_or(DEFAULT_OUTPUT);
        if !(1..=LONGEST_OUTPUT).contains(&output) {
            let why = format!("{output} output tokens are not from 1 to {LONGEST_OUTPUT}");
            return Err(Refusal::bad_request(why));
        }
        Ok(output)
    }

    /// As the body says, or the header.
    fn rank(&self, headers: &HeaderMap, dp_size: u16) -> Result<Option<usize>, Refusal> {
        let header = headers.get(RANK_HEADER).map(|value| {
            value.to_str().ok().and_then(|text| text.parse::<i64>().ok()).ok_or_else(|| {
                Refusal::bad_request(format!("{RANK_HEADER} {value:?} is no number"))
            })
        });
        let header = header.transpose()?;
        if let (Some(body), Some(header)) = (self.data_parallel_rank, header)
            && body != header
        {
            let why = format!("data_parallel_rank is {body}, {RANK_HEADER} is {header}");
            return Err(Refusal::bad_request(why));
        }
        let Some(rank) = self.data_parallel_rank.or(header) else { return Ok(None) };
        if !(0..dp_size.into()).contains(&rank) {
            let why = format!("rank {rank} is not below the dp_size {dp_size}");
            return Err(Refusal::bad_request(why));
        }
        Ok(Some(rank as usize))
    }
}

impl Message {
    fn texts(&self) -> Vec<&str> {
        match &self.content {
            None => Vec::new(),
            Some(Content::Text(text)) => vec![text],
            Some(Content::Parts(parts)) => {
                parts.iter().filter_map(|part| part.text.as_deref()).collect()
            }
        }
    }
}

/// A request on its rank; dropped when the response has ended, or the client left.
struct Answer {
    engine: Arc<Engine>,
    id: u64,
    api: Api,
    rank: usize,
    input: u32,
    output: u32,
    made: watch::Receiver<u32>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.engine.state().ranks.end(self.id, End::Aborted);
    }
}

pub async fn respond(
    engine: &Arc<Engine>,
    api: Api,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    let body = http::read(body).await?;
    let ask: Ask = serde_json::from_slice(&body)
        .map_err(|error| Refusal::bad_request(format!("the body is not as expected: {error}")))?;
    drop(body);
    let began = Instant::now();
    let answer = begin(engine, api, &head.headers, &ask)?;
    let streamed = ask.stream == Some(true);
    let mut response = if streamed { answer.streamed().await } else { answer.whole().await };
    // Whoever measures a router takes off what the engine took.
    let took = format!("engine;dur={:.3}", began.elapsed().as_secs_f64() * 1e3);
    response.headers_mut().extend(took.parse().map(|value| (SERVER_TIMING, value)));
    Ok(response)
}

fn begin(
    engine: &Arc<Engine>,
    api: Api,
    headers: &HeaderMap,
    ask: &Ask,
) -> Result<Answer, Refusal> {
    let options = &engine.options;
    let prompt = ask.prompt(api)?;
    let mock = ask.mock.as_ref();
    let input = mock.and_then(|mock| mock.input_tokens).unwrap_or(prompt.tokens);
    let cached = mock.map_or(0, |mock| mock.cached_tokens);
    let output = if options.role == Role::Prefill { 1 } else { ask.output()? };
    let rank = ask.rank(headers, options.dp_size)?;
    if options.role != Role::Both && ask.bootstrap_room.is_none() {
        return Err(Refusal::bad_request("bootstrap_room is needed in prefill and decode"));
    }
    let service = match (mock.and_then(|mock| mock.service_ms), options.service) {
        (Some(ms), _) if (0.0..=LONGEST_SERVICE_MS).contains(&ms) => {
            Duration::from_secs_f64(ms / 1e3)
        }
        (Some(ms), _) => {
            let why = format!("service_ms {ms} is not from 0 to {LONGEST_SERVICE_MS}");
            return Err(Refusal::bad_request(why));
        }
        (None, Service::LogNormal(times)) => response_time(times, options.seed, prompt.key),
        (None, Service::LockStep) => Duration::ZERO,
    };

    let state = &mut *engine.state();
    state.arrived = state.arrived.wrapping_add(1);
    if state.faults.fail_every.is_some_and(|every| state.arrived.is_multiple_of(every.get())) {
        let message = "as asked for by /control".into();
        return Err(Refusal { status: state.faults.fail_status(), message });
    }
    state.begun = state.begun.wrapping_add(1);
    let breaks =
        state.faults.break_every.is_some_and(|every| state.begun.is_multiple_of(every.get()))
            || state.rng.random_bool(state.faults.break_probability);
    let work = Work {
        rank,
        input,
        uncached: input.saturating_sub(cached),
        output,
        chunk: if ask.stream == Some(true) { options.stream_interval } else { output },
        service: service.div_f64(options.time_scale),
        break_at: breaks.then_some((output / 2).max(1)),
    };
    let (id, rank, made) = state.ranks.hold(Instant::now(), work);
    if let Some(bootstrap_room) = ask.bootstrap_room {
        let Ask { bootstrap_host, bootstrap_port, .. } = ask;
        let (bootstrap_host, bootstrap_port) = (bootstrap_host.clone(), *bootstrap_port);
        state.record.room(Room { bootstrap_room, bootstrap_host, bootstrap_port, rank });
    }
    if !state.faults.requests_hang {
        engine.release(state);
    }
    Ok(Answer { engine: engine.clone(), id, api, rank, input, output, made })
}

/// The same for a prompt whichever engine it reaches, so that all routers meet the same work.
fn response_time(times: LogNormal<f64>, seed: u64, prompt: u64) -> Duration {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed ^ prompt);
    Duration::from_secs_f64(times.sample(&mut rng).min(LONGEST_SERVICE_MS / 1e3))
}

impl Answer {
    async fn whole(mut self) -> Response<Body> {
        let output = self.output;
        let broken = self.made.wait_for(|made| *made == output).await.is_err();
        let made = *self.made.borrow();
        let text = TOKEN.repeat(made as usize);
        let body = match self.api {
            Api::Generate => json!({ "text": text, "output_ids": vec![1; made as usize],
                "meta_info": self.meta_info(made) }),
            Api::Chat => json!({ "id": self.name(), "object": "chat.completion",
                "created": unix_ms() / 1000, "model": "mock",
                "choices": [{ "index": 0, "message": { "role": "assistant", "content": text },
                    "finish_reason": "length" }],
                "usage": { "prompt_tokens": self.input, "completion_tokens": made,
                    "total_tokens": u64::from(self.input) + u64::from(made) } }),
        };
        if !broken {
            return http::json(&body);
        }
        let body = body.to_string();
        let half = Bytes::from(body[..body.len() / 2].to_owned());
        let parts = stream::unfold(Some(half), async |half| match half {
            Some(half) => Some((Ok(Frame::data(half)), None)),
            None => Some((Err(break_off().await), None)),
        });
        let mut response = http::with_type(
            HeaderValue::from_static("application/json"),
            StreamBody::new(parts).boxed_unsync(),
        );
        response.headers_mut().insert(CONTENT_LENGTH, body.len().into());
        response
    }

    /// Begins with the first token, so that until then it may fail as a whole.
    async fn streamed(mut self) -> Response<Body> {
        self.made.wait_for(|made| *made > 0).await.ok();
        let chunks = stream::unfold((self, 0), async |(mut answer, sent)| {
            let chunk = answer.next_chunk(sent).await?;
            let (chunk, sent) = match chunk {
                Ok((text, sent)) => (Ok(Frame::data(Bytes::from(text))), sent),
                Err(error) => (Err(error), sent),
            };
            Some((chunk, (answer, sent)))
        });
        http::with_type(
            HeaderValue::from_static("text/event-stream"),
            StreamBody::new(chunks).boxed_unsync(),
        )
    }

    /// Every event that is due; how many tokens have been sent then.
    async fn next_chunk(&mut self, mut sent: u32) -> Option<io::Result<(String, u32)>> {
        if sent == self.output {
            return None;
        }
        let interval = self.engine.options.stream_interval;
        loop {
            let made = *self.made.borrow_and_update();
            let mut text = String::new();
            while sent < made {
                let next = made.min(sent + interval);
                self.write_event(&mut text, next - sent, next);
                sent = next;
            }
            if sent == self.output {
                text.push_str("data: [DONE]\n\n");
            }
            if !text.is_empty() {
                return Some(Ok((text, sent)));
            }
            if self.made.changed().await.is_err() {
                return Some(Err(break_off().await));
            }
        }
    }

    fn write_event(&self, text: &mut String, tokens: u32, made: u32) {
        let delta = TOKEN.repeat(tokens as usize);
        let event = match self.api {
            Api::Generate => json!({ "text": delta, "output_ids": vec![1; tokens as usize],
                "meta_info": self.meta_info(made) }),
            Api::Chat => json!({ "id": self.name(), "object": "chat.completion.chunk",
                "created": 0, "model": "mock",
                "choices": [{ "index": 0, "delta": { "content": delta },
                    "finish_reason": self.finish_reason(made) }] }),
        };
        write!(text, "data: {event}\n\n").expect("a String takes it");
    }

    fn name(&self) -> String {
        format!("mock-{}", self.id)
    }

    fn finish_reason(&self, made: u32) -> Option<&'static str> {
        (made == self.output).then_some("length")
    }

    fn meta_info(&self, made: u32) -> serde_json::Value {
        let finish_reason =
            self.finish_reason(made).map(|kind| json!({ "type": kind, "length": made }));
        json!({ "id": self.name(), "finish_reason": finish_reason, "dp_rank": self.rank,
            "prompt_tokens": self.input, "completion_tokens": made })
    }
}

/// What was written goes out before the connection ends.
async fn break_off() -> io::Error {
    yield_now().await;
    io::Error::other("as asked for by /control")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_times_follow_from_prompt_and_seed() {
        let times = LogNormal::from_mean_cv(0.6, 1.5).unwrap();
        let time =
            |seed, prompt: &str| response_time(times, seed, evenkeel::key(prompt)).as_secs_f64();
        assert_eq!(time(1, "a"), time(1, "a"));
        assert_ne!(time(1, "a"), time(2, "a"));

        let drawn: Vec<_> = (0..100_000).map(|nth| time(1, &format!("prompt {nth}"))).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let squares: f64 = drawn.iter().map(|time| (time - mean).powi(2)).sum();
        let cv = (squares / drawn.len() as f64).sqrt() / mean;
        assert!((mean - 0.6).abs() < 0.02, "{mean}");
        assert!((cv - 1.5).abs() < 0.1, "{cv}");
    }
}
