use evenkeel::*;
#[test]
fn smoke() {
    let pool = Pool::new(PoolConfig::default()).unwrap();
    let ids: Vec<_> = (0..8).map(|k| pool.add(k, WorkerConfig::default()).unwrap()).collect();
    let mut picker = pool.picker(1).unwrap();
    for policy in Policy::ALL {
        let mut tickets = vec![];
        for _ in 0..80 {
            tickets.push(
                picker
                    .dispatch(&Request {
                        policy: Some(policy),
                        tokens: 10,
                        excluded: &ids[..1],
                        ..Default::default()
                    })
                    .unwrap(),
            );
        }
        println!(
            "{policy} {:?}",
            pool.stats().unwrap().iter().map(|s| s.in_flight).collect::<Vec<_>>()
        );
        for t in tickets {
            pool.finish(t).unwrap();
        }
    }
    println!("{:?}", pool.totals().unwrap());
}
