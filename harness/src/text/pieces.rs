//! The bytes of each token, and text of tokens that come one by one: never half a
//! character.

use anyhow::{Result, bail};
use std::collections::BTreeMap;
use tokenizers::Tokenizer;

/// Space of SentencePiece-style tokenizers.
const SPACE: char = '\u{2581}';

/// How a tokenizer's tokens spell bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    /// Each character of a token stands for a byte.
    Bytes,
    /// Tokens are text with [`SPACE`] for spaces, and `<0xNN>` for single bytes.
    Spaces {
        /// Whether the first token's leading space is none of the text.
        strip: bool,
    },
}

impl Pieces {
    /// How the decoder of a tokenizer spells.
    pub(super) fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let decoder = serde_json::to_value(tokenizer.get_decoder())?;
        let mut parts = vec![&decoder];
        let members = decoder["decoders"].as_array();
        parts.extend(members.into_iter().flatten());
        let part = |name: &str| parts.iter().find(|part| part["type"] == name);
        if part("ByteLevel").is_some() {
            return Ok(Self::Bytes);
        }
        if let Some(metaspace) = part("Metaspace") {
            let strip = metaspace["prepend_scheme"] != "never";
            return Ok(Self::Spaces { strip });
        }
        if part("ByteFallback").is_some() {
            let strip = part("Strip").is_some_and(|part| part["start"] != 0);
            return Ok(Self::Spaces { strip });
        }
        let found = if decoder.is_null() {
            "none".into()
        } else {
            decoder["type"].to_string()
        };
        bail!("decoder: expected ByteLevel, Metaspace or one with ByteFallback, found {found}")
    }

    fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Self::Bytes => {
                let table = byte_characters();
                let bytes: Option<Vec<u8>> =
                    token.chars().map(|c| table.get(&c).copied()).collect();
                // An added token is spelt as it is.
                bytes.unwrap_or_else(|| token.into())
            }
            Self::Spaces { .. } => {
                let byte = token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
                match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => token.replace(SPACE, " ").into(),
                }
            }
        }
    }
}

/// The character that byte-level tokens have for each byte: itself where it is
/// printable in Latin-1, else one from U+0100 on, in order.
fn byte_characters() -> &'static BTreeMap<char, u8> {
    static TABLE: std::sync::LazyLock<BTreeMap<char, u8>> = std::sync::LazyLock::new(|| {
        let mut others = '\u{100}'..;
        (0..=u8::MAX)
            .map(|byte| match byte {
                0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => (char::from(byte), byte),
                _ => (others.next().expect("68 characters"), byte),
            })
            .collect()
    });
    &TABLE
}

/// Text of tokens that come one by one.
#[derive(Debug)]
pub struct Stream<'t> {
    tokenizer: &'t Tokenizer,
    pieces: Pieces,
    /// The beginning of a character.
    pending: Vec<u8>,
    /// Whether the first text is still to come, without its space.
    strip: bool,
}

impl<'t> Stream<'t> {
    pub(super) const fn new(tokenizer: &'t Tokenizer, pieces: Pieces) -> Self {
        Self {
            tokenizer,
            pieces,
            pending: Vec::new(),
            strip: matches!(pieces, Pieces::Spaces { strip: true }),
        }
    }

    /// The text that a token completes; empty while it ends within a character, and
    /// for special tokens. Bytes that are no text become U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        let added = self.tokenizer.get_added_vocabulary();
        let token = added.get_added_tokens_decoder().get(&id);
        if token.is_some_and(|token| token.special) {
            return String::new();
        }
        // A row of the vocabulary that pads it has no token.
        let piece = self.tokenizer.id_to_token(id).unwrap_or_default();
        let mut bytes = self.pieces.bytes(&piece);
        if self.strip && !bytes.is_empty() {
            self.strip = false;
            if bytes[0] == b' ' {
                bytes.remove(0);
            }
        }
        self.pending.extend(bytes);
        let whole = whole(&self.pending);
        let rest = self.pending.split_off(whole);
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending = rest;
        text
    }

    /// What is left when no token follows.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.pending);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Bytes before a character that more bytes could complete.
fn whole(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(_) => return bytes.len(),
            Err(error) => match error.error_len() {
                Some(wrong) => at += error.valid_up_to() + wrong,
                None => return at + error.valid_up_to(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unfinished_character_waits() {
        let family = "a👨‍👩".as_bytes();
        for (given, expected) in [(1, 1), (2, 1), (4, 1), (5, 5), (7, 5), (8, 8), (9, 8)] {
            assert_eq!(whole(&family[..given]), expected, "{given} bytes");
        }
        assert_eq!(whole(b"\xFF\xFE"), 2, "no character begins so");
        assert_eq!(
            whole(b"\xE2\x82x"),
            3,
            "a character that is cut off by another"
        );
    }

    #[test]
    fn every_byte_has_a_character() {
        assert_eq!(byte_characters().len(), 256, "all are different");
        assert_eq!(byte_characters()[&'Ġ'], b' ', "space");
        assert_eq!(byte_characters()[&'Ċ'], b'\n', "new line");
        assert_eq!(byte_characters()[&'A'], b'A', "a letter");
    }

    #[test]
    fn sentence_pieces_spell_spaces_and_bytes() {
        let pieces = Pieces::Spaces { strip: true };
        assert_eq!(pieces.bytes("▁a▁"), b" a ", "spaces");
        assert_eq!(pieces.bytes("<0x0A>"), b"\n", "a byte");
        assert_eq!(pieces.bytes("<0xZZ>"), b"<0xZZ>", "text");
    }
}
