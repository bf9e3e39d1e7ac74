//! `random`: uniform over the eligible workers.

use super::{Choice, Rng, Scope, below};
use crate::error::Refusal;

/// Draws before looking at every worker. Each draw that meets an eligible worker is uniform over
/// them, and so is what follows.
const DRAWS: u32 = 4;

/// One draw, if it meets an eligible worker.
#[inline(always)]
pub(super) fn draw(scope: Scope<'_>, rng: &mut Rng) -> Option<Choice> {
    let span = scope.span();
    if span == 0 {
        return None;
    }
    scope.draw_nth(below(rng, span)).ok()
}

#[inline(always)]
pub(super) fn choose(scope: Scope<'_>, rng: &mut Rng) -> Result<Choice, Refusal> {
    for _ in 0..DRAWS {
        if let Some(choice) = draw(scope, rng) {
            return Ok(choice);
        }
    }
    let mut drawn = Err(Refusal::Empty);
    scope.draw_distinct(1, rng, |choice| drawn = Ok(choice))?;
    drawn
}
