//! `evenkeel route`, as clients, engines and operators meet it.

mod harness;
mod accounting;
mod operating;
mod pairs;
mod proxying;
mod retries;
mod secure;
