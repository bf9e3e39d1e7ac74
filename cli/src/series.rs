//! How a run goes over its measured time, for charts: means of windows, so that a long run keeps no
//! more than a short one.

use std::time::Duration;

const POINTS: u64 = 240;
/// More lines than these can't be told apart.
const RANKS: usize = 8;

pub struct Series {
    /// Samples, one a simulated second, of which a point is the mean.
    window: u32,
    samples: u32,
    pub ranks: usize,
    /// Each so many ranks one is kept.
    stride: usize,
    pub busiest_batch: Line,
    /// Requests, by kept rank.
    pub outstanding: Vec<Line>,
}

#[derive(Clone, Default)]
pub struct Line {
    sum: f64,
    pub points: Vec<f64>,
}

impl Line {
    fn add(&mut self, value: f64, is_last: bool, window: u32) {
        self.sum += value;
        if is_last {
            self.points.push(self.sum / f64::from(window));
            self.sum = 0.0;
        }
    }
}

impl Series {
    /// Of so many ranks in a measured time.
    pub fn new(time: Duration, ranks: usize) -> Self {
        let stride = ranks.div_ceil(RANKS);
        Self {
            window: time.as_secs().div_ceil(POINTS).max(1) as u32,
            samples: 0,
            ranks,
            stride,
            busiest_batch: Line::default(),
            outstanding: vec![Line::default(); ranks.div_ceil(stride)],
        }
    }

    pub fn sample(&mut self, busiest_batch: f64, outstanding: impl Iterator<Item = f64>) {
        self.samples += 1;
        let is_last = self.samples.is_multiple_of(self.window);
        self.busiest_batch.add(busiest_batch, is_last, self.window);
        for (line, outstanding) in self.outstanding.iter_mut().zip(outstanding.step_by(self.stride))
        {
            line.add(outstanding, is_last, self.window);
        }
    }

    pub fn window(&self) -> Duration {
        Duration::from_secs(self.window.into())
    }

    /// Of all ranks those that are kept, in the order of their lines.
    pub fn kept_ranks(&self) -> impl Iterator<Item = usize> {
        (0..self.ranks).step_by(self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_the_mean_of_its_window() {
        let mut series = Series::new(Duration::from_secs(2 * POINTS), 2);
        for sample in 0..5 {
            let sample = f64::from(sample);
            series.sample(sample, [10.0 * sample, 20.0].into_iter());
        }
        assert_eq!(series.window(), Duration::from_secs(2));
        assert_eq!(series.busiest_batch.points, [0.5, 2.5], "the fifth sample fills no window");
        assert_eq!(series.outstanding[0].points, [5.0, 25.0]);
        assert_eq!(series.outstanding[1].points, [20.0, 20.0]);
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let seconds = 100_000;
        let mut series = Series::new(Duration::from_secs(seconds), 100);
        for _ in 0..seconds {
            series.sample(1.0, (0..100).map(f64::from));
        }
        assert!(series.busiest_batch.points.len() <= POINTS as usize);
        let kept: Vec<_> = series.kept_ranks().map(|rank| rank as f64).collect();
        assert!(kept.len() <= RANKS && kept.len() > RANKS / 2);
        let lines: Vec<_> = series.outstanding.iter().map(|line| line.points[0]).collect();
        assert_eq!(lines, kept);
    }
}
