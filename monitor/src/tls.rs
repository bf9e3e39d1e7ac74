//! https: whom to trust that an engine is who it says.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::monitor::{Error, invalid};

/// Connects to engines that one of the roots vouches for, with HTTP/1.1 inside; without roots, one of the
/// system's. A router takes it for its requests, so that they are trusted as the polls are.
///
/// Allocates; reads the system's roots from files, if it goes by them.
///
/// # Errors
/// [`Error::Roots`].
pub fn connector(roots: &[CertificateDer<'static>]) -> Result<TlsConnector, Error> {
    let mut store = RootCertStore::empty();
    if roots.is_empty() {
        let system = rustls_native_certs::load_native_certs();
        // Some systems have roots that nobody can read; one is enough to go on.
        store.add_parsable_certificates(system.certs);
        if store.is_empty() {
            return Err(Error::Roots(format!("none of the system's: {:?}", system.errors)));
        }
    }
    for root in roots {
        store.add(root.clone()).map_err(|error| Error::Roots(error.to_string()))?;
    }
    let mut config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Roots(error.to_string()))?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".into()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name that the engine's certificate has to be for: that of the URL's host.
///
/// # Errors
/// [`Error::Invalid`] for what is neither a DNS name nor an address.
pub fn server_name(host: &str) -> Result<ServerName<'static>, Error> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(bare.to_owned())
        .map_err(|_| invalid("the URL's host", host, "a DNS name or an address"))
}
