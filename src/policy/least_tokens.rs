//! `least_tokens`: the fewest live tokens over all eligible workers.

use super::scan::{Share, requests_share, scan};
use super::{Choice, Rng, Scope};
use crate::error::Refusal;
use crate::snapshot::NO_LOAD;
use crate::word::Word;

pub(super) fn choose(
    scope: Scope<'_>,
    unreported_compete: bool,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    let rank = |position, tokens, word: Word| {
        let weight = scope.view.weight(position);
        (
            tokens == NO_LOAD && !unreported_compete,
            Share { value: scope.view.live_tokens(position, tokens, word), weight },
            requests_share(word, weight),
        )
    };
    scan(scope, rank, rng, |_, _| {})
}
