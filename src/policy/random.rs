//! `random`: uniform over the eligible workers.

use super::{Choice, Rng, Scope, below};
use crate::error::Refusal;

/// Draws before looking at every worker. Each draw that meets an eligible worker is uniform over
/// them, and so is what follows.
const DRAWS: u32 = 4;

/// One draw, if it meets an eligible worker.
#[inline(always)]
pub(super) fn draw(scope: Scope<'_>, rng: &mut Rng) -> Option<Choice> {
    scope.draw(below(rng, scope.view.len())).ok()
}

#[inline(always)]
pub(super) fn choose(scope: Scope<'_>, rng: &mut Rng) -> Result<Choice, Refusal> {
    let len = scope.view.len();
    if len > 0 {
        for _ in 0..DRAWS {
            if let Ok(choice) = scope.draw(below(rng, len)) {
                return Ok(choice);
            }
        }
    }
    let mut drawn = Err(Refusal::Empty);
    scope.draw_distinct(1, rng, |choice| drawn = Ok(choice))?;
    drawn
}
