//! Cases 29 to 35 of the reference, as the monitor brings them about.

use evenkeel::{Load, Policy, Pool, PoolConfig, Request, WorkerId};
use evenkeel_monitor::Monitor;

use crate::engine::*;

fn least() -> Request<'static> {
    Request { policy: Some(Policy::LeastRequests), ..Default::default() }
}

fn hold(pool: &Pool, worker: WorkerId, requests: usize) {
    for _ in 0..requests {
        let _ = pool.begin(worker, 0).unwrap();
    }
}

#[tokio::test]
async fn case_29_an_engine_that_never_answered_is_not_at_0() {
    let bench = Bench::new(1).await;
    let (b, bs) = bench.another().await;
    let (c, cs) = bench.another().await;
    hold(&bench.pool, bs[0], 5);
    hold(&bench.pool, cs[0], 5);
    b.reply(loads(&[0])).await;
    c.reply(loads(&[100])).await;
    let picks = || (0..100).map(|_| bench.pool.pick(&least()).unwrap()).collect::<Vec<_>>();
    assert_eq!(picks(), [bs[0]; 100]);
    b.reply(answer("500 Internal Server Error", "", "")).await;
    assert_eq!(picks(), [cs[0]; 100]);
    // Nobody has a load now: a, which is idle.
    c.reply(answer("500 Internal Server Error", "", "")).await;
    assert_eq!(picks(), [bench.workers[0]; 100]);
}

#[tokio::test]
async fn case_30_a_rank_that_a_report_leaves_out_has_no_load() {
    let bench = Bench::new(2).await;
    bench.server.reply(loads(&[0, 50])).await;
    assert_eq!(bench.tokens(), [Some(0), Some(50)]);
    bench.server.reply(report(&[entry(r#""dp_rank":1,"num_total_tokens":50"#)])).await;
    assert_eq!(bench.tokens(), [None, Some(50)]);
}

#[tokio::test]
async fn case_31_tokens_of_one_are_not_compared_with_requests_of_another() {
    let bench = Bench::new(2).await;
    hold(&bench.pool, bench.workers[0], 5);
    hold(&bench.pool, bench.workers[1], 50);
    bench.server.reply(loads(&[50_000])).await;
    assert_eq!(bench.tokens(), [Some(50_000), None]);
    let request = Request { policy: Some(Policy::PowerOfTwoTokens), ..Default::default() };
    for _ in 0..100 {
        assert_eq!(bench.pool.pick(&request), Ok(bench.workers[0]));
    }
}

#[tokio::test]
async fn case_32_bad_entries_are_rejected_one_by_one() {
    let bench = Bench::new(6).await;
    let (other, others) = bench.another().await;
    other.reply(loads(&[7; 6])).await;
    let fields = [
        r#""dp_rank":0,"num_total_tokens":-1"#,
        r#""dp_rank":1,"num_total_tokens":10"#,
        r#""dp_rank":1,"num_total_tokens":11"#,
        r#""dp_rank":6,"num_total_tokens":12"#,
        r#""dp_rank":-1,"num_total_tokens":13"#,
        r#""dp_rank":2,"num_total_tokens":NaN"#,
        r#""dp_rank":3,"num_total_tokens":1e400"#,
        r#""dp_rank":4,"num_total_tokens":"14""#,
        r#""dp_rank":5,"num_total_tokens":0"#,
    ];
    bench.server.reply(report(&fields.map(entry))).await;
    assert_eq!(bench.tokens(), [None, Some(10), None, None, None, Some(0)]);
    let load = bench.stats(bench.workers[1]).load.unwrap();
    assert_eq!((load.running, load.waiting), (Some(12), Some(3)));
    // An empty report clears this engine's workers and no others'.
    bench.server.reply(report(&[])).await;
    assert_eq!(bench.tokens(), [None; 6]);
    assert_eq!(tokens(&bench.pool, &others), [Some(7); 6]);
    assert_eq!(bench.status().failures, 0);
}

#[tokio::test]
async fn case_33_a_load_ages_when_nobody_publishes_any_more() {
    let pool = Pool::new(PoolConfig { load_max_age_ms: 1000, ..Default::default() }).unwrap();
    let monitor = Monitor::new(&pool, options()).unwrap();
    let server = Server::new().await;
    let workers = add(&pool, &monitor, &server, 1);
    server.reply(loads(&[5])).await;
    // The engine hangs from now on.
    eventually("the load is too old", || stats(&pool, workers[0]).load.is_none()).await;
    server.always(loads(&[6]));
    eventually("a load again", || tokens(&pool, &workers) == [Some(6)]).await;
}

#[tokio::test]
async fn case_33_of_two_polls_the_one_that_began_later_stays() {
    let bench = Bench::new(2).await;
    bench.server.until_asked(1).await;
    let mut later = bench.pool.poll(Some(&bench.workers));
    later.begin().unwrap();
    let load = |rank: usize, tokens| Load {
        worker: bench.workers[rank],
        tokens,
        running: None,
        waiting: None,
        timestamp: None,
    };
    later.publish(&[load(0, 30), load(1, 31)]).unwrap();
    bench.server.reply(loads(&[1, 2])).await;
    assert_eq!(bench.tokens(), [Some(30), Some(31)]);
    // The next poll began later than that.
    bench.server.reply(loads(&[3, 4])).await;
    assert_eq!(bench.tokens(), [Some(3), Some(4)]);
}

#[tokio::test]
async fn case_33_the_stored_timestamp_is_nothing_new() {
    let bench = Bench::new(1).await;
    let worker = bench.workers[0];
    bench.server.reply(loads_at(Some(1755424800.12), &[1000])).await;
    let _ticket = bench.pool.begin(worker, 100).unwrap();
    let live = || (bench.tokens(), bench.stats(worker).live_tokens);
    assert_eq!(live(), (vec![Some(1000)], 1100));
    for _ in 0..3 {
        bench.server.reply(loads_at(Some(1755424800.12), &[9999])).await;
        assert_eq!(live(), (vec![Some(1000)], 1100));
    }
    // A tenth of a millisecond later by the engine's clock is news.
    bench.server.reply(loads_at(Some(1755424800.1201), &[1100])).await;
    assert_eq!(live(), (vec![Some(1100)], 1100));
}

#[tokio::test]
async fn case_34_a_stale_report_starts_no_herd() {
    let bench = Bench::new(8).await;
    bench.server.reply(loads(&[0; 8])).await;
    for round in 1..=2 {
        for _ in 0..8 {
            let _ = bench.pool.dispatch(&Request { tokens: 100, ..least() }).unwrap();
        }
        // Sampled before the dispatches, and asked for before them.
        bench.server.reply(loads(&[0; 8])).await;
        for &worker in &bench.workers {
            let stats = bench.stats(worker);
            assert_eq!(stats.in_flight, round);
            assert_eq!(stats.live_tokens, 100, "of what began while the poll was under way");
        }
    }
}

#[tokio::test]
async fn case_35_live_tokens_are_the_report_and_what_was_counted_since() {
    let bench = Bench::new(1).await;
    let worker = bench.workers[0];
    let live = || bench.stats(worker).live_tokens;
    let begin = || bench.pool.begin(worker, 100).unwrap();
    let mut tickets: Vec<_> = (0..10).map(|_| begin()).collect();
    bench.server.until_asked(1).await;
    bench.server.reply(loads(&[1000])).await;
    bench.server.reply(loads(&[1000])).await;
    assert_eq!(live(), 1000);
    tickets.extend((0..2).map(|_| begin()));
    assert_eq!(live(), 1200);
    bench.pool.finish(tickets.remove(0)).unwrap();
    assert_eq!(live(), 1100);

    // The polls of two engines overlap: what one publishes leaves the other's credit alone.
    let (other, others) = bench.another().await;
    other.until_asked(1).await;
    let _theirs = bench.pool.begin(others[0], 100).unwrap();
    bench.server.reply(loads(&[1000])).await;
    other.reply(loads(&[5])).await;
    assert_eq!(bench.stats(others[0]).live_tokens, 105);
    bench.server.reply(loads(&[1000])).await;
    assert_eq!(bench.stats(others[0]).live_tokens, 105);
}
