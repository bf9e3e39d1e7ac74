//! One client's side of HTTP: a connection and the requests that come on it.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, ReadBuf, join};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::select;

use super::Router;
use super::proxy::{self, Client};
use super::upstream::MAX_HEAD;
use crate::net::set_up;

pub async fn converse(router: Arc<Router>, stream: TcpStream, peer: SocketAddr, watcher: Watcher) {
    set_up(&stream).ok();
    let client = Client::new(peer.ip());
    let (read, write) = stream.into_split();
    let read = Arc::new(read);
    let service = service_fn(|request| async {
        Ok::<_, Infallible>(proxy::respond(&router, &client, request).await)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(router.options.client_timeout)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(join(ReadHalf(read.clone()), write)), service);
    select! {
        biased;
        // A client that left early, or that broke off a response with its engine, is no error of ours.
        _ = watcher.watch(connection) => {}
        // hyper doesn't see it while something unread is before the end.
        () = closed(&read) => {}
    }
}

/// Returns when the client has closed its sending side, or all of it.
async fn closed(read: &OwnedReadHalf) {
    // Of urgent data, or of the end; nobody has asked the system for the former.
    #[cfg(target_os = "linux")]
    if read.ready(tokio::io::Interest::PRIORITY).await.is_ok() {
        return;
    }
    std::future::pending().await
}

struct ReadHalf(Arc<OwnedReadHalf>);

impl AsyncRead for ReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.as_ref().as_ref().poll_read_ready(context))?;
            match self.0.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}
