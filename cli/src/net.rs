//! Sockets, for servers of many connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// With room for a burst: whom the usual 128 places leave out tries again a second later.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(4_096)
}

/// As many open files as this process may ask for: each connection is one.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // What it had goes on.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).ok();
}

/// For a connection on which responses take long and come in small parts.
pub fn set_up(stream: &TcpStream) -> io::Result<()> {
    // Without it a token waits for the acknowledgement of the one before.
    stream.set_nodelay(true)?;
    // A host that lost its power or its network closes nothing; after two minutes it is taken for gone.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15))
        .with_retries(4);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
