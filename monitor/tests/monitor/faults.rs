//! What went wrong in load monitors of the field, each fault by its name.

use evenkeel::{Policy, Request};

use crate::engine::*;

#[tokio::test]
async fn fault_a_failed_or_reshaped_poll_became_minus_one_and_looked_least_loaded() {
    let bench = Bench::with(1, evenkeel_monitor::Options { refusals: 1000, ..options() }).await;
    let (other, others) = bench.another().await;
    other.always(loads(&[70]));
    let replies = [
        answer("500 Internal Server Error", "", "{}"),
        answer("204 No Content", "", ""),
        json(""),
        json("-1"),
        json("null"),
        json(r#"{"error":"shutting down"}"#),
        json(r#"{"loads":null}"#),
        json(r#"{"loads":{"0":{"num_total_tokens":5}}}"#),
        json(r#"{"loads":[{"dp_rank":0,"tokens":5}]}"#),
        json(r#"{"loads":[{"dp_rank":0,"num_total_tokens":-1}]}"#),
        json(r#"{"aggregate":{"total_tokens":null}}"#),
        json(r#"[{"dp_rank":0,"num_tokens":"5"}]"#),
    ];
    for reply in replies {
        bench.server.reply(loads(&[7])).await;
        assert_eq!(bench.tokens(), [Some(7)]);
        bench.server.reply(reply.clone()).await;
        assert_eq!(bench.tokens(), [None]);
        eventually("the other reports", || tokens(&bench.pool, &others) == [Some(70)]).await;
        for policy in [Policy::LeastRequests, Policy::LeastTokens] {
            let request = Request { policy: Some(policy), ..Default::default() };
            assert_eq!(bench.pool.pick(&request), Ok(others[0]));
        }
    }
}

#[tokio::test]
async fn fault_404_became_minus_one() {
    let bench = Bench::new(2).await;
    bench.server.reply(loads(&[7, 8])).await;
    // By neither path.
    bench.server.reply(not_found()).await;
    bench.server.reply(not_found()).await;
    assert_eq!(bench.tokens(), [None, None]);
    assert_eq!(bench.status().failures, 1);
    assert_eq!(bench.status().last_failure.unwrap(), "status 404; only 200 is allowed");
}

#[tokio::test]
async fn fault_a_failed_worker_kept_its_last_idle_value_as_publishing_merged() {
    let bench = Bench::new(2).await;
    let (other, others) = bench.another().await;
    bench.server.reply(loads(&[0, 0])).await;
    other.reply(loads(&[50, 60])).await;
    assert_eq!(bench.tokens(), [Some(0), Some(0)]);
    bench.server.kill();
    bench.until_failed(1).await;
    other.reply(loads(&[51, 61])).await;
    assert_eq!(bench.tokens(), [None, None]);
    assert_eq!(tokens(&bench.pool, &others), [Some(51), Some(61)]);
}

#[tokio::test]
async fn fault_one_slow_engine_delayed_the_whole_publication() {
    let bench = Bench::new(1).await;
    bench.server.until_asked(1).await;
    let (other, others) = bench.another().await;
    for tokens_now in 1..=20 {
        other.reply(loads(&[tokens_now])).await;
        assert_eq!(tokens(&bench.pool, &others), [Some(tokens_now)]);
    }
    assert_eq!(bench.server.asked(), 1, "the slow one is still asked for the first time");
}

#[tokio::test]
async fn fault_each_rank_got_all_ranks_sum() {
    let bench = Bench::new(3).await;
    bench.server.reply(loads(&[1, 20, 300])).await;
    assert_eq!(bench.tokens(), [Some(1), Some(20), Some(300)]);
    let sum = r#"{"aggregate":{"total_running_reqs":3,"total_waiting_reqs":0,"total_tokens":321}}"#;
    bench.server.reply(json(sum)).await;
    assert_eq!(bench.tokens(), [None; 3]);
    assert_eq!(bench.status().failures, 0, "the engine is well");
}

#[tokio::test]
async fn fault_a_late_older_report_overwrote_a_newer_one() {
    let bench = Bench::new(1).await;
    bench.server.until_asked(1).await;
    let mut later = bench.pool.poll(Some(&bench.workers));
    later.begin().unwrap();
    let load = evenkeel::Load {
        worker: bench.workers[0],
        tokens: 900,
        running: None,
        waiting: None,
        timestamp: None,
    };
    later.publish(&[load]).unwrap();
    bench.server.reply(loads(&[1])).await;
    assert_eq!(bench.tokens(), [Some(900)]);
    // Nor does a failure that was asked for before it.
    later.begin().unwrap();
    later.publish(&[load]).unwrap();
    bench.server.reply(answer("500 Internal Server Error", "", "")).await;
    assert_eq!(bench.tokens(), [Some(900)]);
}

#[tokio::test]
async fn fault_a_report_wiped_what_was_dispatched_since_and_each_poll_started_a_herd() {
    let bench = Bench::new(4).await;
    bench.server.reply(loads(&[0; 4])).await;
    // The answer to the poll that is now under way is of the time before these.
    let request = Request { policy: Some(Policy::LeastTokens), tokens: 100, ..Default::default() };
    let mut tickets: Vec<_> = (0..4).map(|_| bench.pool.dispatch(&request).unwrap()).collect();
    bench.server.reply(loads(&[0; 4])).await;
    for &worker in &bench.workers {
        let stats = bench.stats(worker);
        assert_eq!((stats.in_flight, stats.live_tokens), (1, 100));
    }
    tickets.extend((0..4).map(|_| bench.pool.dispatch(&request).unwrap()));
    for &worker in &bench.workers {
        assert_eq!(bench.stats(worker).in_flight, 2);
    }
}

#[tokio::test]
async fn fault_adding_all_in_flight_to_the_polled_counted_requests_twice() {
    let bench = Bench::new(1).await;
    let worker = bench.workers[0];
    let _tickets: Vec<_> = (0..10).map(|_| bench.pool.begin(worker, 100).unwrap()).collect();
    bench.server.until_asked(1).await;
    // The poll that was under way began before some of them; the next knows all ten.
    bench.server.reply(loads(&[1000])).await;
    bench.server.reply(loads(&[1000])).await;
    assert_eq!(bench.stats(worker).live_tokens, 1000);
}
