//! `random`: uniform over the eligible workers.

use super::{Candidate, Rng, Scope, below};
use crate::error::Refusal;

/// Draws before looking at every worker. Each draw that meets an eligible worker is uniform over
/// them, and so is what follows.
const DRAWS: u32 = 4;

pub(super) fn choose<'a>(scope: &Scope<'a, '_>, rng: &mut Rng) -> Result<Candidate<'a>, Refusal> {
    let len = scope.view.len();
    if len > 0 {
        for _ in 0..DRAWS {
            if let Ok(candidate) = scope.eligible(below(rng, len)) {
                return Ok(candidate);
            }
        }
    }
    let mut drawn = Err(Refusal::Empty);
    scope.draw_distinct(1, rng, |draw| drawn = Ok(draw.candidate))?;
    drawn
}
