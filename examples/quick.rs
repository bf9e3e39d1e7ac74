//! A pool of four ranks: a report of their loads, requests, a rank that fails, a rank that leaves.
//! `cargo run --example quick`

use evenkeel::{Error, Load, Pool, PoolConfig, Request, WorkerConfig};

const RANKS: [&str; 4] =
    ["10.0.0.1:30000@0", "10.0.0.1:30000@1", "10.0.0.2:30000@0", "10.0.0.2:30000@1"];

fn main() -> Result<(), Error> {
    let pool = Pool::new(PoolConfig::default())?;
    let mut ranks = Vec::new();
    for label in RANKS {
        let config = WorkerConfig { label, max_in_flight: 256, ..Default::default() };
        ranks.push(pool.add(evenkeel::key(label), config)?);
    }

    // Ask the engines; what the pool counts meanwhile is credited on top of their answers.
    let mut poll = pool.poll(None);
    poll.begin()?;
    let loads = ranks.iter().map(|&worker| Load {
        worker,
        tokens: 100_000,
        running: Some(10),
        waiting: Some(0),
        timestamp: None,
    });
    assert_eq!(poll.publish(&loads.collect::<Vec<_>>())?, 0, "none is rejected");

    // One thread's choices. A ticket's guard is moved into the response, and ends with it.
    let mut picker = pool.picker(0)?;
    let (mut responses, mut refused) = (Vec::new(), false);
    let request = Request { tokens: 1_200, ..Default::default() };
    for _ in 0..100 {
        let mut ticket = picker.dispatch(&request)?;
        if ticket.worker() == ranks[3] && !refused {
            // It refuses one request: the next attempt goes elsewhere.
            refused = true;
            pool.finish(ticket)?;
            ticket = picker.dispatch(&Request { excluded: &[ranks[3]], ..request })?;
        }
        responses.push(picker.guard_owned(ticket));
    }

    pool.remove(ranks[0])?; // No new requests; its last ones end as always.

    println!(
        "{:18} {:10} {:>9} {:>7} {:>9}",
        "worker", "state", "in flight", "tokens", "with poll"
    );
    for row in pool.stats()? {
        println!(
            "{:18} {:10} {:9} {:7} {:9}",
            &*row.label,
            format!("{:?}", row.state),
            row.in_flight,
            row.tokens,
            row.live_tokens
        );
    }
    drop(responses);

    let totals = pool.totals()?;
    println!("{} finished, {} in flight", totals.finished, totals.in_flight);
    assert_eq!((totals.workers, totals.draining), (3, 0));
    assert_eq!((totals.finished, totals.in_flight, totals.anomalies), (101, 0, 0));
    Ok(())
}
