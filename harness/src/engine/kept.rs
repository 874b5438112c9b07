//! What is known of the tokens whose keys and values are in the cache.

use kernels::{Elem, kv::KvFormat};

/// Tokens with valid keys and values, from position 0 on, and where the token that is
/// fed next came from.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// `None` is the id that the log has for the position before.
    tokens: Vec<Option<u32>>,
    next: Next,
    /// Type and format of the keys and values.
    cache: Option<(Elem, KvFormat)>,
}

/// Where the token in the first row of the token buffer came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    /// Nobody knows.
    #[default]
    Unknown,
    /// It was put there.
    Set(u32),
    /// It was made, and logged, at this position.
    Made(usize),
}

impl Kept {
    /// Nothing in the cache is valid any more.
    pub(super) fn forget(&mut self) {
        self.tokens.clear();
    }

    /// These tokens are fed next.
    pub(super) fn set(&mut self, tokens: &[u32]) {
        self.next = match tokens {
            [token] => Next::Set(*token),
            _ => Next::Unknown,
        };
    }

    /// A whole prompt was stored and its next token logged.
    pub(super) fn prompt(&mut self, prompt: &[u32], cache: (Elem, KvFormat)) {
        self.cache = Some(cache);
        self.tokens = prompt.iter().copied().map(Some).collect();
        self.next = Next::Made(prompt.len() - 1);
    }

    /// Positions from `position` on are overwritten by tokens that nobody knows.
    pub(super) fn overwrite(&mut self, position: usize) {
        self.tokens.truncate(position);
        self.next = Next::Unknown;
    }

    /// Decoding stored and logged `count` tokens from `position` on.
    pub(super) fn decoded(&mut self, position: usize, count: usize) {
        self.tokens.truncate(position);
        let first = match self.next {
            Next::Set(token) => Some(Some(token)),
            Next::Made(at) if at + 1 == position => Some(None),
            Next::Made(_) | Next::Unknown => None,
        };
        if let Some(first) = first.filter(|_| self.tokens.len() == position && count > 0) {
            self.tokens.push(first);
            self.tokens.resize(position + count, None);
        }
        self.next = Next::Made(position + count - 1);
    }

    /// Type and format of the keys and values, where a prompt stored some.
    pub(super) const fn cache(&self) -> Option<(Elem, KvFormat)> {
        self.cache
    }

    /// The positions whose ids lie in the log, and how many are kept.
    pub(super) fn tokens(&self) -> &[Option<u32>] {
        &self.tokens
    }
}

/// How many tokens `prompt` and the kept ones share from the start on, the last of
/// `prompt` left out: one is fed at least, for its logits.
pub(super) fn shared(kept: &[u32], prompt: &[u32]) -> usize {
    let pairs = kept.iter().zip(&prompt[..prompt.len() - 1]);
    pairs.take_while(|(kept, fed)| kept == fed).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_goes_on_from_what_is_known() {
        let mut kept = Kept::default();
        kept.prompt(&[5, 6, 7], (Elem::F16, KvFormat::Plain));
        kept.decoded(3, 2);
        assert_eq!(
            kept.tokens(),
            [Some(5), Some(6), Some(7), None, None],
            "the ids after the prompt lie in the log"
        );
        kept.set(&[9]);
        kept.decoded(4, 1);
        assert_eq!(
            kept.tokens(),
            [Some(5), Some(6), Some(7), None, Some(9)],
            "a token that was put there, over the last"
        );
        kept.decoded(7, 3);
        assert_eq!(kept.tokens().len(), 5, "positions behind a gap are not");
        kept.decoded(5, 1);
        assert_eq!(kept.tokens().len(), 5, "nor is a token made elsewhere");
        kept.overwrite(2);
        assert_eq!(kept.tokens(), [Some(5), Some(6)], "the rest is overwritten");
        kept.forget();
        assert!(kept.tokens().is_empty(), "nothing is valid");
    }

    #[test]
    fn a_prefix_leaves_one_token_to_feed() {
        assert_eq!(shared(&[1, 2, 3], &[1, 2, 3]), 2, "the same prompt");
        assert_eq!(shared(&[1, 2, 3], &[1, 2, 3, 4, 5]), 3, "a longer one");
        assert_eq!(shared(&[1, 2, 3], &[1, 9, 3]), 1, "another");
        assert_eq!(shared(&[1, 2, 3], &[1]), 0, "one token");
        assert_eq!(shared(&[], &[1, 2]), 0, "nothing kept");
    }
}
