//! https engines.

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::StatusCode;
use tempfile::NamedTempFile;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

use crate::harness::*;

/// A mock engine that talks TLS to those who begin so, and plainly to others.
struct Secured {
    engine: Process,
    /// `localhost:port`.
    name: String,
    /// PEM.
    root: NamedTempFile,
    /// Connections that were begun well.
    secure: Arc<AtomicUsize>,
    plain: Arc<AtomicUsize>,
}

impl Secured {
    /// The certificate is for this name.
    async fn new(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let mut root = NamedTempFile::new().unwrap();
        root.write_all(made.cert.pem().as_bytes()).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let engine = engine(&["--dp-size", "2"]);
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (secure, plain) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let (to, counted) = (engine.address.clone(), [secure.clone(), plain.clone()]);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, to, counted) = (acceptor.clone(), to.clone(), counted.clone());
                tokio::spawn(async move {
                    let mut first = [0];
                    if stream.peek(&mut first).await.is_ok_and(|read| read == 1) {
                        match first[0] {
                            // A record of a TLS handshake.
                            22 => {
                                let Ok(stream) = acceptor.accept(stream).await else { return };
                                counted[0].fetch_add(1, Ordering::Relaxed);
                                join(stream, to).await;
                            }
                            _ => {
                                counted[1].fetch_add(1, Ordering::Relaxed);
                                join(stream, to).await;
                            }
                        }
                    }
                });
            }
        });
        Self { engine, name: format!("localhost:{port}"), root, secure, plain }
    }

    fn url(&self) -> String {
        format!("https://{},dp_size=2", self.name)
    }

    fn root(&self) -> &str {
        self.root.path().to_str().unwrap()
    }
}

async fn join(mut stream: impl AsyncRead + AsyncWrite + Unpin, to: String) {
    let mut engine = TcpStream::connect(to).await.unwrap();
    copy_bidirectional(&mut stream, &mut engine).await.ok();
}

async fn polled(router: &Process) -> bool {
    let pool = router.pool("engines").await;
    pool["workers"].as_array().unwrap().iter().all(|worker| worker["load"].is_object())
}

#[tokio::test]
async fn https_engines_by_a_root_of_ones_own() {
    let secured = Secured::new("localhost").await;
    let router = router(&["--roots", secured.root(), "--engine", &secured.url()]);
    until(true, || polled(&router)).await;
    for _ in 0..10 {
        assert_eq!(router.post("/generate", &ask(3)).await.0, StatusCode::OK);
    }
    assert_eq!(secured.engine.count("begun").await, 10);
    // One for polls, one for requests that follow each other.
    assert_eq!(secured.secure.load(Ordering::Relaxed), 2);
    router.is_at_rest().await;
}

#[tokio::test]
async fn an_engine_that_nobody_vouches_for_gets_nothing() {
    let stranger = Secured::new("localhost").await;
    let misnamed = Secured::new("elsewhere").await;
    for (engine, roots) in [(&stranger, misnamed.root()), (&misnamed, misnamed.root())] {
        let router = router(&["--no-polls", "--roots", roots, "--engine", &engine.url()]);
        let (status, text) = router.post("/generate", &ask(1)).await;
        assert_eq!((status, code(&text)), (StatusCode::BAD_GATEWAY, "engine_unreachable".into()));
        assert!(text.contains("certificate"), "{text}");
        assert_eq!(engine.engine.count("begun").await, 0);
        router.is_at_rest().await;
    }
}

#[tokio::test]
async fn an_engine_moves_from_https_to_http() {
    let secured = Secured::new("localhost").await;
    let file = NamedTempFile::new().unwrap();
    let engine = |scheme| {
        let config = format!("engine = \"{scheme}://{},dp_size=2\"\n", secured.name);
        fs::write(file.path(), config).unwrap();
    };
    engine("https");
    let path = file.path().to_str().unwrap();
    let router = router(&["--roots", secured.root(), "--config", path]);
    until(true, || polled(&router)).await;
    assert_eq!(router.post("/generate", &ask(1)).await.0, StatusCode::OK);
    engine("http");
    router.signal("-HUP");
    // Requests have a plain connection, and so have polls.
    let before = secured.secure.load(Ordering::Relaxed);
    let plain = async || {
        assert_eq!(router.post("/generate", &ask(1)).await.0, StatusCode::OK);
        secured.plain.load(Ordering::Relaxed)
    };
    until(2, plain).await;
    until(true, || polled(&router)).await;
    assert_eq!(secured.secure.load(Ordering::Relaxed), before);
    router.is_at_rest().await;
}

#[test]
fn roots_that_are_none_are_an_error() {
    let file = NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let start = || {
        let options = ["route", "--engine=https://localhost:1", "--roots", path];
        let ended = command(&options).output().unwrap();
        assert!(!ended.status.success());
        String::from_utf8(ended.stderr).unwrap()
    };
    assert!(start().contains(&format!("--roots {path} has no certificate")), "{}", start());
    let none = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(file.path(), none).unwrap();
    assert!(start().contains("roots to trust"), "{}", start());
}
