//! https, and what must stay secret.

use std::sync::Arc;

use evenkeel::{Pool, PoolConfig};
use evenkeel_monitor::{CertificateDer, Error, Monitor, Options};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

use crate::engine::*;

/// A server with a certificate of its own, for this name.
async fn secure_server(name: &str) -> (Server, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = Server::with("https", move |stream| {
        let acceptor = acceptor.clone();
        async move { acceptor.accept(stream).await.ok() }
    });
    (server.await, certificate)
}

#[tokio::test]
async fn https_by_a_root_of_ones_own() {
    let (server, root) = secure_server("localhost").await;
    let pool = Pool::new(PoolConfig::default()).unwrap();
    let monitor = Monitor::new(&pool, Options { roots: vec![root], ..options() }).unwrap();
    let workers = add(&pool, &monitor, &server, 2);
    server.until_asked(1).await;
    server.reply(loads(&[1, 2])).await;
    assert_eq!(tokens(&pool, &workers), [Some(1), Some(2)]);
    server.reply(loads(&[3, 4])).await;
    assert_eq!(tokens(&pool, &workers), [Some(3), Some(4)]);
    assert_eq!(server.connections(), 1);
    monitor.stop().await;
    eventually("no connection is left", || server.open() == 0).await;
}

/// An engine that nobody vouches for, or for another name, is asked nothing and told no key.
#[tokio::test]
async fn https_without_trust_is_no_connection() {
    let (stranger, _) = secure_server("localhost").await;
    let (misnamed, root) = secure_server("elsewhere").await;
    let (_, other_root) = secure_server("localhost").await;
    for (server, roots) in [(&stranger, vec![other_root]), (&misnamed, vec![root])] {
        let pool = Pool::new(PoolConfig::default()).unwrap();
        let monitor = Monitor::new(&pool, Options { roots, ..options() }).unwrap();
        let workers = add(&pool, &monitor, server, 1);
        eventually("a failure", || status(&monitor, server).failures > 1).await;
        let failure = status(&monitor, server).last_failure.unwrap();
        assert!(failure.starts_with("no connection: "), "{failure}");
        assert_eq!((tokens(&pool, &workers), server.asked()), (vec![None], 0));
    }
}

#[tokio::test]
async fn a_root_that_is_none_is_an_error() {
    let (server, _) = secure_server("localhost").await;
    let pool = Pool::new(PoolConfig::default()).unwrap();
    let worker = pool.add(1, Default::default()).unwrap();
    let roots = vec![CertificateDer::from(b"no certificate".to_vec())];
    let monitor = Monitor::new(&pool, Options { roots, ..options() }).unwrap();
    assert!(matches!(monitor.add(engine(&server, &[worker])), Err(Error::Roots(_))));
    assert_eq!(monitor.engines(), []);
}

#[tokio::test]
async fn the_key_goes_to_the_engine_and_nowhere_else() {
    keep_logs();
    let bench = Bench::new(1).await;
    bench.server.until_asked(1).await;
    let head = bench.server.heads()[0].to_ascii_lowercase();
    for line in [
        "get /v1/loads?include=core http/1.1",
        &format!("host: {}", bench.server.name()),
        "authorization: bearer s3cret",
        "accept-encoding: identity",
    ] {
        assert!(head.lines().any(|header| header == line), "{line} in {head}");
    }
    bench.server.reply(loads(&[1])).await;
    bench.server.always(answer("401 Unauthorized", "", ""));
    bench.until_failed(4).await;
    bench.server.kill();
    bench.until_failed(6).await;
    assert!(logs().contains(&bench.server.name()));
    let engine = engine(&bench.server, &bench.workers);
    for told in [logs(), format!("{:?}", bench.monitor), format!("{engine:?} {engine:#?}")] {
        assert!(!told.contains("s3cret"));
    }
    bench.monitor.remove(&bench.server.name()).await;
    let bad = evenkeel_monitor::Engine { bearer: Some("s3cret\r\nX: y".into()), ..engine };
    let error = bench.monitor.add(bad).unwrap_err();
    assert!(error.to_string().contains("bearer key"), "{error}");
    assert!(!format!("{error:?} {error}").contains("s3cret"));
}
