//! What it costs to poll many engines, and whether one that hangs changes the others' intervals.
//!
//! `many_engines [ENGINES] [SECONDS]`: default 200 engines of 8 ranks, two phases of 15 seconds; in the
//! second, the first engine accepts polls and answers none. The engines are another process of this
//! program, whose CPU time is not counted; it also tells when polls arrived. Linux only. Fails if polling took
//! 20 % of one core, or if an engine was polled less often than once a second but for one.

use std::env;
use std::error::Error;
use std::fs;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel::{Pool, PoolConfig, WorkerConfig};
use evenkeel_monitor::{Engine, Monitor, Options, host_port, worker_label};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{ChildStdin, ChildStdout, Command};

const RANKS: u32 = 8;
const MAX_CPU: f64 = 0.2;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("serve") {
        return serve(arguments.next().ok_or("how many engines?")?.parse()?).await;
    }
    let engines: u32 = first.map_or(Ok(200), |engines| engines.parse())?;
    let seconds = arguments.next().map_or(Ok(15), |seconds| seconds.parse())?;

    let mut child = Command::new(env::current_exe()?)
        .args(["serve", &engines.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut told = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut tell = child.stdin.take().expect("piped");

    let pool = Pool::new(PoolConfig { capacity: engines * RANKS, ..Default::default() })?;
    let monitor = Monitor::new(&pool, Options::default())?;
    for _ in 0..engines {
        let port = told.next_line().await?.ok_or("the engines ended")?;
        let url = format!("http://127.0.0.1:{port}").parse()?;
        let name = host_port(&url)?;
        let add = |rank| {
            let label = worker_label(&name, rank);
            pool.add(evenkeel::key(&label), WorkerConfig { label: &label, ..Default::default() })
        };
        let workers = (0..RANKS).map(add).collect::<Result<_, _>>()?;
        monitor.add(Engine { url, workers, bearer: Some("key".into()) })?;
    }
    // Past the first polls, which are all at once.
    tokio::time::sleep(Duration::from_secs(3)).await;

    println!("{engines} engines of {RANKS} ranks, polled once a second");
    let mut held = true;
    for phase in ["all answer", "one hangs"] {
        let cpu = cpu_seconds()?;
        let since = Instant::now();
        ask(&mut tell, &mut told, phase).await?;
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let share = (cpu_seconds()? - cpu) / since.elapsed().as_secs_f64();
        let seen = ask(&mut tell, &mut told, "report").await?;
        let (fewest, rest) = seen.split_once(' ').ok_or("no report")?;
        println!("{phase}: {:.1} % of one core; {rest}", share * 100.0);
        held &= share < MAX_CPU && fewest.parse::<u64>()? >= seconds - 1;
    }
    let loaded = pool.stats()?.iter().filter(|stats| stats.load.is_some()).count();
    println!("{loaded} of {} ranks have a load at the end", engines * RANKS);
    monitor.stop().await;
    held &= loaded as u32 == (engines - 1) * RANKS;
    if held { Ok(()) } else { Err("a bar is not met".into()) }
}

async fn ask(
    tell: &mut ChildStdin,
    told: &mut Lines<BufReader<ChildStdout>>,
    line: &str,
) -> Result<String, Box<dyn Error>> {
    tell.write_all(format!("{line}\n").as_bytes()).await?;
    Ok(told.next_line().await?.ok_or("the engines ended")?)
}

/// CPU time of this process so far, of all its threads.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").ok_or("/proc/self/stat")?;
    let fields: Vec<_> = fields.split(' ').collect();
    let ticks = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}

#[derive(Default)]
struct Seen {
    /// When polls arrived in this phase, by engine.
    polls: Vec<Vec<Instant>>,
    hanging: bool,
}

/// The engines' side: ports, one a line; then an answer to each line of stdin.
async fn serve(engines: usize) -> Result<(), Box<dyn Error>> {
    let seen = Arc::new(Mutex::new(Seen { polls: vec![Vec::new(); engines], hanging: false }));
    for engine in 0..engines {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let seen = seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(engine, stream, seen.clone()));
            }
        });
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let mut seen = seen.lock().expect("not poisoned");
        if line == "report" {
            println!("{}", intervals(&seen.polls[1..]));
        } else {
            seen.hanging = line == "one hangs";
            seen.polls.iter_mut().for_each(Vec::clear);
            println!("{line}");
        }
    }
    Ok(())
}

async fn answer(
    engine: usize,
    mut stream: TcpStream,
    seen: Arc<Mutex<Seen>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut timestamp = 1755424800.0;
    loop {
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let hangs = {
            let mut seen = seen.lock().expect("not poisoned");
            seen.polls[engine].push(Instant::now());
            seen.hanging && engine == 0
        };
        if hangs {
            stream.read_u8().await?;
        }
        timestamp += 1.0;
        let ranks: Vec<_> = (0..RANKS)
            .map(|rank| {
                format!(
                    r#"{{"timestamp":{timestamp}12,"dp_rank":{rank},"num_running_reqs":12,"num_waiting_reqs":3,"num_waiting_uncached_tokens":0,"num_used_tokens":1200000,"num_total_tokens":1450000,"num_active_tokens":1100000,"max_total_num_tokens":4000000,"max_running_requests":256,"token_usage":0.3,"gen_throughput":840.5,"cache_hit_rate":0.9,"utilization":0.4,"total_prefill_uncached_tokens":0,"total_prefill_busy_us":0,"decode_moments":null}}"#
                )
            })
            .collect();
        let body = format!(
            r#"{{"timestamp":"2026-08-17T10:00:00Z","version":"0.5.21","accelerator":null,"num_accelerators":8,"loads":[{}]}}"#,
            ranks.join(",")
        );
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await?;
    }
}

/// The fewest polls of an engine, and what the intervals between polls were.
fn intervals(polls: &[Vec<Instant>]) -> String {
    let mut all: Vec<f64> = polls
        .iter()
        .flat_map(|polls| polls.windows(2))
        .map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3)
        .collect();
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all.get((all.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let fewest = polls.iter().map(Vec::len).min().unwrap_or(0);
    let most = polls.iter().map(Vec::len).max().unwrap_or(0);
    format!(
        "{fewest} each of the other engines was polled {fewest} to {most} times; intervals in ms: shortest {:.1}, 1 % {:.1}, median {:.1}, 99 % {:.1}, longest {:.1}",
        at(0.0),
        at(0.01),
        at(0.5),
        at(0.99),
        all.last().copied().unwrap_or(f64::NAN)
    )
}
