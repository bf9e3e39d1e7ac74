//! `balanced`: the smallest step over all eligible workers, where a request more costs as much as
//! `request_tokens` tokens more.

use super::scan::{Share, requests_share, scan};
use super::{Choice, Rng, Scope};
use crate::error::Refusal;
use crate::snapshot::NO_LOAD;
use crate::word::Word;

pub(super) fn choose(
    scope: Scope<'_>,
    request_tokens: u32,
    unreported_compete: bool,
    rng: &mut Rng,
) -> Result<Choice, Refusal> {
    let rank = |position, tokens, word: Word| {
        let requests = requests_share(word, scope.view.weight(position));
        // Requests have 20 bits, request_tokens 32.
        let value = (requests.value * u64::from(request_tokens))
            .saturating_add(scope.view.live_tokens(position, tokens, word));
        (tokens == NO_LOAD && !unreported_compete, Share { value, ..requests })
    };
    scan(scope, rank, rng, |_, _| {})
}
