//! What the router is told: flags, and a file of the same settings.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgAction, Args, Parser, ValueEnum};
use evenkeel::{Policy, Tuning};
use evenkeel_monitor::{CertificateDer, Uri, host_port, tls};
use hyper::header::HeaderName;
use hyper::http::uri::Scheme;
use tokio_rustls::rustls::pki_types::{ServerName, pem::PemObject as _};

use crate::{Cli, Command, hash_load_factor, number, time};

/// Route HTTP requests to LLM engines
///
/// Forwards any method and path, streams both ways, and counts each request on its worker from the
/// choice to the last byte of the response or to the client's leaving. Each DP rank of an engine is a
/// worker of its own. Prints its URL when it is ready.
///
/// Engines are given as `URL[,dp_size=N][,weight=W][,max_in_flight=M]`, prefill engines also with
/// [,bootstrap_port=P]: http://10.0.0.1:30000,dp_size=8. Weight and cap are those of each rank.
///
/// GET /evenkeel/status and GET /metrics are the router's own. SIGHUP reads the file again, SIGTERM
/// and SIGINT end the router after the responses that run; a second one ends it at once.
#[derive(Args, Clone, Debug, PartialEq)]
#[command(args_override_self = true)]
pub struct RouteOptions {
    /// TOML file of the same settings: policy = "balanced", engine = ["http://10.0.0.1:30000"]; flags
    /// beat it, engines of both are used
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Address to listen on; port 0: any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,

    /// Engine that serves whole requests; may be repeated
    #[arg(long, value_name = "ENGINE")]
    pub engine: Vec<EngineSpec>,

    /// Prefill engine of pairs; may be repeated
    #[arg(long, value_name = "ENGINE")]
    pub prefill: Vec<EngineSpec>,

    /// Decode engine of pairs; may be repeated
    #[arg(long, value_name = "ENGINE")]
    pub decode: Vec<EngineSpec>,

    /// round_robin, random, power_of_two (by the load metric), power_of_two:tokens,
    /// power_of_two:requests, least_requests, least_tokens, balanced or consistent_hashing [default:
    /// what the load metric asks for, if it is given, else least_requests]
    #[arg(long, value_name = "NAME")]
    policy: Option<PolicyName>,

    /// Policy of the prefill workers [default: as --policy]
    #[arg(long, value_name = "NAME")]
    prefill_policy: Option<PolicyName>,

    /// Policy of the decode workers [default: as --policy]
    #[arg(long, value_name = "NAME")]
    decode_policy: Option<PolicyName>,

    /// What power_of_two compares; beats the environment's SGLANG_ROUTER_P2C_LOAD_METRIC
    #[arg(long, value_enum)]
    p2c_load_metric: Option<Metric>,

    /// Under balanced, how many tokens cost a step as much as one request more
    #[arg(long, value_name = "TOKENS", default_value = "0",
          value_parser = |text: &str| number(text, 0..=u32::MAX))]
    request_tokens: u32,

    /// Under consistent_hashing, how many percent of the mean a worker may have in flight: 100 to
    /// 10000, or 0 for no bound
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = hash_load_factor)]
    hash_load_factor: u32,

    /// Whether workers without a reported load compete also where others have one [default: true under
    /// least_requests, which takes loads for ties alone; else false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    unreported_compete: Option<bool>,

    /// Header that consistent_hashing goes by; requests without it go by their client's address
    #[arg(long, value_name = "NAME", default_value = "x-session-id")]
    pub hash_header: HeaderName,

    /// Header with a request's tokens [default: a token for 4 bytes of Content-Length]
    #[arg(long, value_name = "NAME")]
    pub tokens_header: Option<HeaderName>,

    /// Where an engine with several ranks is told the rank
    #[arg(long, value_enum, default_value = "header")]
    pub dp_rank_in: DpRankIn,

    /// Bytes of a body that are kept: for another try, and where its JSON is changed
    #[arg(long, value_name = "BYTES", default_value = "1048576",
          value_parser = |text: &str| number(text, 0..=1usize << 30))]
    pub body_limit: usize,

    /// Other workers that a request is tried on, if engines refuse it or can't be reached
    #[arg(long, value_name = "N", default_value = "3",
          value_parser = |text: &str| number(text, 0..=100u32))]
    pub retries: u32,

    /// Longest that connecting to an engine may take
    #[arg(long, value_name = "TIME", default_value = "5s",
          value_parser = |text: &str| time(text, Duration::from_millis(1)))]
    pub connect_timeout: Duration,

    /// Longest that an engine may take to begin its response [default: for ever]
    #[arg(long, value_name = "TIME",
          value_parser = |text: &str| time(text, Duration::from_millis(1)))]
    pub response_timeout: Option<Duration>,

    /// Longest that a client may take for a request's head, or be silent within its body
    #[arg(long, value_name = "TIME", default_value = "75s",
          value_parser = |text: &str| time(text, Duration::from_millis(1)))]
    pub client_timeout: Duration,

    /// Longest that an engine may be silent within a response [default: for ever]
    #[arg(long, value_name = "TIME",
          value_parser = |text: &str| time(text, Duration::from_millis(1)))]
    pub silence_timeout: Option<Duration>,

    /// PEM file of the roots that https engines are trusted by [default: the system's]
    #[arg(long, value_name = "FILE")]
    roots: Option<PathBuf>,

    /// Until when a request counts on its prefill worker
    #[arg(long, value_enum, default_value = "first-token")]
    pub prefill_counts_to: PrefillCountsTo,

    /// Don't ask engines for their loads and health
    #[arg(long)]
    pub no_polls: bool,

    /// Time between two polls of an engine
    #[arg(long, value_name = "TIME", default_value = "1s",
          value_parser = |text: &str| time(text, Duration::from_millis(1)))]
    pub poll_interval: Duration,

    /// Longest that a poll may take
    #[arg(long, value_name = "TIME", default_value = "5s",
          value_parser = |text: &str| time(text, Duration::from_millis(1)))]
    pub poll_timeout: Duration,

    /// After so many failed polls in a row an engine gets no requests
    #[arg(long, value_name = "N", default_value = "3",
          value_parser = |text: &str| number(text, 1..=u32::MAX))]
    pub poll_refusals: u32,

    /// File with the bearer key for polls; requests keep their own
    #[arg(long, value_name = "FILE", conflicts_with = "poll_key_env")]
    poll_key_file: Option<PathBuf>,

    /// Environment variable with the bearer key for polls
    #[arg(long, value_name = "NAME")]
    poll_key_env: Option<String>,

    /// Longest that running responses may take after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10m",
          value_parser = |text: &str| time(text, Duration::ZERO))]
    pub drain_timeout: Duration,

    /// Threads
    #[arg(long, value_name = "N", default_value = "2",
          value_parser = |text: &str| number(text, 1..=1024usize))]
    pub threads: usize,

    /// Form of the log, on stderr
    #[arg(long, value_enum, default_value = "text")]
    pub log: Log,

    /// error, warn, info or debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: tracing::Level,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum DpRankIn {
    /// data_parallel_rank in a JSON body; in the header where the body is another one or too long
    Body,
    /// X-Data-Parallel-Rank
    Header,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum PrefillCountsTo {
    FirstToken,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Log {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Metric {
    Tokens,
    Requests,
    LeastRequests,
}

impl Metric {
    fn policy(self) -> Policy {
        match self {
            Self::Tokens => Policy::PowerOfTwoTokens,
            Self::Requests => Policy::PowerOfTwoRequests,
            Self::LeastRequests => Policy::LeastRequests,
        }
    }
}

/// None: power_of_two by the load metric.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PolicyName(Option<Policy>);

impl FromStr for PolicyName {
    type Err = evenkeel::Error;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let policy = name.parse()?;
        Ok(Self((name != "power_of_two").then_some(policy)))
    }
}

/// An engine as it is given.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineSpec {
    pub url: Uri,
    /// `host:port`.
    pub name: String,
    /// Of https engines.
    pub server_name: Option<ServerName<'static>>,
    pub dp_size: u32,
    pub weight: u32,
    pub max_in_flight: u32,
    pub bootstrap_port: u16,
}

impl FromStr for EngineSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let url: Uri = parts
            .next()
            .unwrap_or_default()
            .parse()
            .map_err(|error| format!("{error}; expected http[s]://HOST:PORT"))?;
        let allowed = "expected http[s]://HOST:PORT, without a user or a path";
        let name = host_port(&url).map_err(|_| allowed)?;
        if url.path() != "/" {
            return Err(allowed.into());
        }
        let server_name = match url.scheme() == Some(&Scheme::HTTPS) {
            true => Some(tls::server_name(url.host().unwrap_or_default())),
            false => None,
        };
        let mut engine = Self {
            url,
            name,
            server_name: server_name.transpose().map_err(|error| error.to_string())?,
            dp_size: 1,
            weight: 1,
            max_in_flight: 0,
            bootstrap_port: 8998,
        };
        let mut given = Vec::new();
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if given.contains(&key) {
                return Err(format!("{key} is given twice; each is allowed once"));
            }
            given.push(key);
            let said = |why| format!("{key} is {value:?}: {why}");
            match key {
                "dp_size" => engine.dp_size = number(value, 1..=1024).map_err(said)?,
                "weight" => {
                    engine.weight = number(value, 0..=evenkeel::MAX_WEIGHT).map_err(said)?;
                }
                "max_in_flight" => {
                    engine.max_in_flight = number(value, 0..=1_048_575).map_err(said)?;
                }
                "bootstrap_port" => {
                    engine.bootstrap_port = number(value, 1..=u16::MAX).map_err(said)?
                }
                _ => {
                    let allowed = "dp_size, weight, max_in_flight and bootstrap_port are allowed";
                    return Err(format!("{key:?} is unknown; {allowed}"));
                }
            }
        }
        Ok(engine)
    }
}

impl EngineSpec {
    pub fn is_https(&self) -> bool {
        self.server_name.is_some()
    }
}

impl RouteOptions {
    /// With the settings of the file, if there is one. They are put before those of the command line and
    /// read by the same parser, so that there is one list of settings and one of reasons against them.
    pub fn with_file(&self) -> Result<Self> {
        let options = match &self.config {
            None => self.clone(),
            Some(path) => {
                let given = std::env::args_os().skip(2);
                let all = ["evenkeel", "route"].map(OsString::from);
                let all = all.into_iter().chain(flags_of(path)?).chain(given);
                match Cli::try_parse_from(all) {
                    Ok(Cli { command: Command::Route(options), .. }) => *options,
                    Ok(_) => bail!("{}: no settings of route", path.display()),
                    Err(error) => {
                        bail!("{}: {}", path.display(), error.render().to_string().trim())
                    }
                }
            }
        };
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<()> {
        let pairs = [self.prefill.is_empty(), self.decode.is_empty()];
        match (self.engine.is_empty(), pairs) {
            (false, [true, true]) | (true, [false, false]) => {}
            (true, [true, true]) => {
                bail!("no engine; --engine, or --prefill and --decode, are needed")
            }
            _ => bail!("either --engine, or both --prefill and --decode, are allowed"),
        }
        if self.prefill.is_empty() && (self.prefill_policy.or(self.decode_policy)).is_some() {
            bail!("--prefill-policy and --decode-policy are for --prefill and --decode");
        }
        for engines in [&self.engine, &self.prefill, &self.decode] {
            if let Some(this) = engines.iter().find(|engine| engine.name == self.listen.to_string())
            {
                bail!("the engine {} is the router itself, by --listen", this.name);
            }
            let mut names: Vec<_> = engines.iter().map(|engine| &engine.name).collect();
            names.sort_unstable();
            if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                bail!("the engine {} is given twice; each is allowed once", twice[0]);
            }
        }
        if self.p2c_load_metric.is_some() && matches!(self.policy, Some(PolicyName(Some(_)))) {
            bail!(
                "--p2c-load-metric with another policy; power_of_two, or no --policy, is allowed"
            );
        }
        Ok(())
    }

    pub fn tuning(&self) -> Result<Tuning> {
        self.tuning_of(self.policy)
    }

    pub fn prefill_tuning(&self) -> Result<Tuning> {
        self.tuning_of(self.prefill_policy.or(self.policy))
    }

    pub fn decode_tuning(&self) -> Result<Tuning> {
        self.tuning_of(self.decode_policy.or(self.policy))
    }

    fn tuning_of(&self, name: Option<PolicyName>) -> Result<Tuning> {
        let in_environment = std::env::var_os(evenkeel::METRIC_VARIABLE).is_some();
        let policy = match (name, self.p2c_load_metric) {
            (Some(PolicyName(Some(policy))), _) => policy,
            (_, Some(metric)) => metric.policy(),
            (Some(PolicyName(None)), None) => Policy::from_env()?,
            (None, None) if in_environment => Policy::from_env()?,
            (None, None) => Policy::default(),
        };
        Ok(Tuning {
            policy,
            request_tokens: self.request_tokens,
            unreported_compete: self.unreported_compete.unwrap_or(policy == Policy::LeastRequests),
            hash_load_factor: self.hash_load_factor,
            ..Tuning::default()
        })
    }

    /// The bearer key for polls.
    pub fn poll_key(&self) -> Result<Option<String>> {
        let key = match (&self.poll_key_file, &self.poll_key_env) {
            (Some(path), _) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read --poll-key-file {}", path.display()))?,
            (None, Some(name)) => {
                std::env::var(name).with_context(|| format!("--poll-key-env {name}"))?
            }
            (None, None) => return Ok(None),
        };
        Ok(Some(key.trim().to_owned()))
    }

    /// Whom to trust that https engines are who they say; none: the system's roots.
    pub fn roots(&self) -> Result<Vec<CertificateDer<'static>>> {
        let Some(path) = &self.roots else { return Ok(Vec::new()) };
        let cannot = || format!("cannot read --roots {}", path.display());
        let roots = CertificateDer::pem_file_iter(path).with_context(cannot)?;
        let roots = roots.collect::<Result<Vec<_>, _>>().with_context(cannot)?;
        if roots.is_empty() {
            bail!("--roots {} has no certificate; at least one is needed", path.display());
        }
        Ok(roots)
    }

    /// The settings that only a start can change.
    pub fn lasting(&self) -> Self {
        Self {
            engine: Vec::new(),
            prefill: Vec::new(),
            decode: Vec::new(),
            policy: None,
            prefill_policy: None,
            decode_policy: None,
            p2c_load_metric: None,
            request_tokens: 0,
            hash_load_factor: 0,
            unreported_compete: None,
            poll_key_file: None,
            poll_key_env: None,
            ..self.clone()
        }
    }
}

/// Each setting of the file as the flag that it is.
fn flags_of(path: &Path) -> Result<Vec<OsString>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let table: toml::Table =
        toml::from_str(&text).with_context(|| format!("{} is no TOML", path.display()))?;
    let command = RouteOptions::augment_args(clap::Command::new("route"));
    let mut flags = Vec::new();
    for (name, value) in table {
        let name = name.replace('_', "-");
        let wrong = |why: &str| anyhow!("{}: {name} {why}", path.display());
        let mut settings = command.get_arguments().filter(|setting| setting.get_id() != "config");
        let setting = settings.find(|setting| setting.get_long() == Some(&name));
        let setting = setting.ok_or_else(|| wrong("is no setting of a file"))?;
        let values = match (value, setting.get_action()) {
            (toml::Value::Array(values), ArgAction::Append) => values,
            (toml::Value::Array(_), _) => return Err(wrong("is a list; one value is allowed")),
            (value, _) => vec![value],
        };
        let is_switch = matches!(setting.get_action(), ArgAction::SetTrue);
        for value in values {
            let text = match value {
                toml::Value::Boolean(false) if is_switch => continue,
                toml::Value::Boolean(true) if is_switch => {
                    flags.push(format!("--{name}").into());
                    continue;
                }
                _ if is_switch => return Err(wrong("is true or false; nothing else is allowed")),
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(bool) => bool.to_string(),
                other => {
                    let why = "text, a whole number, true, false or a list of them is allowed";
                    return Err(wrong(&format!("is {other}; {why}")));
                }
            };
            flags.push(format!("--{name}={text}").into());
        }
    }
    Ok(flags)
}
