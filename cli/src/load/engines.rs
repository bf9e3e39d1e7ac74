//! The mock engines behind a router, and what they tell.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use hyper::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::sleep;

use super::client::Target;

#[derive(Clone)]
pub struct Engines(pub Vec<Target>);

/// `GET /control/report`, what is needed of it.
#[derive(Debug, Deserialize)]
pub struct Report {
    pub ranks: Vec<Rank>,
    pub samples: Samples,
}

#[derive(Debug, Deserialize)]
pub struct Rank {
    pub outstanding: u32,
    pub begun: u64,
    pub finished: u64,
    pub aborted: u64,
    pub failed: u64,
}

#[derive(Debug, Deserialize)]
pub struct Samples {
    pub unix_ms: Vec<u64>,
    /// Of each rank.
    pub outstanding: Vec<Vec<u32>>,
}

pub fn unix_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64
}

impl Engines {
    pub async fn reset(&self) -> Result<()> {
        for engine in &self.0 {
            let reset = engine.fetch::<IgnoredAny>(Method::POST, "/control/reset").await;
            reset.context("no mock engine there")?;
        }
        Ok(())
    }

    async fn reports(&self) -> Result<Vec<Report>> {
        let mut reports = Vec::new();
        for engine in &self.0 {
            reports.push(engine.fetch(Method::GET, "/control/report").await?);
        }
        Ok(reports)
    }

    /// When nothing is outstanding: a router may end a request a little after its client has. What stays
    /// for five seconds stays.
    pub async fn settled(&self) -> Result<Vec<Report>> {
        let mut reports = self.reports().await?;
        for _ in 0..100 {
            if reports.iter().all(|report| report.ranks.iter().all(|rank| rank.outstanding == 0)) {
                break;
            }
            sleep(Duration::from_millis(50)).await;
            reports = self.reports().await?;
        }
        Ok(reports)
    }
}
