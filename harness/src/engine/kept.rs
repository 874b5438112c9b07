//! What is known of the tokens whose keys and values are in the cache.

use kernels::{Elem, Plan, plan::Buffer};

/// Tokens with valid keys and values, from position 0 on, and where the token that is
/// fed next came from.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The cache that holds them; another format of it has pages of its own.
    cache: Option<Cache>,
    /// `None` is the id that the log has for the position before.
    tokens: Vec<Option<u32>>,
    next: Next,
}

/// Which of the engine's KV caches a program stores to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cache(Option<(Buffer, Elem)>);

impl Cache {
    pub(super) fn of(plan: &Plan) -> Self {
        let buffers = plan.dispatches.iter().flat_map(|d| &d.buffers);
        let of =
            |buffer: &Buffer| matches!(buffer, Buffer::KvPages { .. } | Buffer::KvCodes { .. });
        let first = buffers.copied().find(of);
        Self(first.map(|buffer| (buffer, plan.elem)))
    }
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
    pub(super) fn prompt(&mut self, cache: Cache, prompt: &[u32]) {
        self.cache = Some(cache);
        self.tokens = prompt.iter().copied().map(Some).collect();
        self.next = Next::Made(prompt.len() - 1);
    }

    /// Positions from `position` on are overwritten by tokens that nobody knows.
    pub(super) fn overwrite(&mut self, cache: Cache, position: usize) {
        self.of(cache);
        self.tokens.truncate(position);
        self.next = Next::Unknown;
    }

    /// Forgets what another cache holds.
    pub(super) fn of(&mut self, cache: Cache) {
        if self.cache != Some(cache) {
            self.tokens.clear();
            self.cache = Some(cache);
        }
    }

    /// Decoding stored and logged `count` tokens from `position` on.
    pub(super) fn decoded(&mut self, cache: Cache, position: usize, count: usize) {
        self.of(cache);
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
        let [plain, int8] = [Buffer::KvPages { layer: 0 }, Buffer::KvCodes { layer: 0 }]
            .map(|buffer| Cache(Some((buffer, Elem::F16))));
        let mut kept = Kept::default();
        kept.prompt(plain, &[5, 6, 7]);
        kept.decoded(plain, 3, 2);
        assert_eq!(
            kept.tokens(),
            [Some(5), Some(6), Some(7), None, None],
            "the ids after the prompt lie in the log"
        );
        kept.set(&[9]);
        kept.decoded(plain, 4, 1);
        assert_eq!(
            kept.tokens(),
            [Some(5), Some(6), Some(7), None, Some(9)],
            "a token that was put there, over the last"
        );
        kept.decoded(plain, 7, 3);
        assert_eq!(kept.tokens().len(), 5, "positions behind a gap are not");
        kept.decoded(plain, 5, 1);
        assert_eq!(kept.tokens().len(), 5, "nor is a token made elsewhere");
        kept.overwrite(plain, 2);
        assert_eq!(kept.tokens(), [Some(5), Some(6)], "the rest is overwritten");
        kept.of(int8);
        assert!(kept.tokens().is_empty(), "another cache holds nothing");
        kept.prompt(int8, &[1]);
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
