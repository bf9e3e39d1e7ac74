//! The monitor before scripted engines, over real sockets.

mod engine;

mod cases;
mod faults;
mod hostile;
mod life;
mod secure;
