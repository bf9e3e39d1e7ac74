//! How an engine misbehaves: one JSON object, at the start and at run time.

use std::num::NonZeroU32;
use std::str::FromStr;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    pub loads_shape: Shape,
    pub loads_status: Option<u16>,
    /// From the moment that they are sampled.
    pub loads_delay_ms: u64,
    pub loads_hang: bool,
    /// What each rank claims to hold, with no requests.
    pub loads_tokens: Option<u64>,
    /// As they were when this was asked for, with new timestamps.
    pub loads_frozen: bool,
    /// The same for the ranks' timestamps.
    pub timestamps_frozen: bool,
    pub dp_size: Option<u16>,
    pub fail_every: Option<NonZeroU32>,
    /// 503 if none is given.
    pub fail_status: Option<u16>,
    pub break_every: Option<NonZeroU32>,
    pub break_probability: f64,
    pub requests_hang: bool,
    /// Once: closes the port and every connection, and opens the port again after that time.
    pub down_ms: Option<u64>,
    /// Once: the process ends with this code.
    pub exit: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    #[default]
    V1,
    /// `/v1/loads` of an older engine: sums over its ranks.
    Aggregate,
    /// The oldest engine: `/v1/loads` is unknown, `/get_load` a list.
    List,
    Html,
    Truncated,
    /// Every second entry, from the first on, has a string for its tokens.
    WrongTypes,
    /// Every second entry, from the first on, has −1 for all counts.
    MinusOne,
}

impl Faults {
    pub fn fail_status(&self) -> StatusCode {
        self.fail_status.and_then(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
    }

    pub fn loads_status(&self) -> Option<StatusCode> {
        self.loads_status.and_then(status)
    }
}

/// Those that last from the start on.
pub fn at_start(text: &str) -> Result<Faults, String> {
    let faults: Faults = text.parse()?;
    match (faults.down_ms, faults.exit) {
        (None, None) => Ok(faults),
        _ => Err("down_ms and exit are of the moment; POST /control takes them".into()),
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.trim_start().starts_with('{') {
            return Err("expected a JSON object".into());
        }
        let faults: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        for given in [faults.loads_status, faults.fail_status].into_iter().flatten() {
            status(given).ok_or_else(|| format!("{given} is no status from 400 to 599"))?;
        }
        if !(0.0..=1.0).contains(&faults.break_probability) {
            return Err("break_probability is not from 0 to 1".into());
        }
        Ok(faults)
    }
}

fn status(code: u16) -> Option<StatusCode> {
    StatusCode::from_u16(code).ok().filter(|_| (400..600).contains(&code))
}
