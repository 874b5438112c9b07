//! What somebody says in a chat is text: a special token written in it is none.
//!
//! A template joins messages and its own special tokens to one text, in which both look
//! alike. So what the tokenizer would take for a special token in a message is hidden
//! from template and tokenizer behind a character of private use, and the text between
//! two special tokens of the template that has such a character is encoded with what
//! was hidden, special tokens off. All else is encoded as ever.

use super::{Message, Text};
use anyhow::{Result, anyhow, bail};
use tokenizers::{Encoding, Tokenizer};

/// Characters that stand for what is hidden: a plane of private use.
const STAND_INS: std::ops::RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// Messages in which no special token is left.
#[derive(Debug)]
pub struct Shielded {
    /// The messages, for the template.
    pub messages: Vec<Message>,
    /// Each character and what it stands for.
    hidden: Vec<(char, String)>,
}

impl Shielded {
    fn hides(&self, text: &str) -> bool {
        self.hidden
            .iter()
            .any(|(stand_in, _)| text.contains(*stand_in))
    }

    fn revealed(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (stand_in, hidden) in &self.hidden {
            text = text.replace(*stand_in, hidden);
        }
        text
    }
}

impl Text {
    /// Hides what the tokenizer would take for a special token in messages.
    ///
    /// # Errors
    /// When the tokenizer refuses a message.
    pub fn shield(&self, messages: &[Message]) -> Result<Shielded> {
        let mut unused = STAND_INS.filter(|&c| !messages.iter().any(|m| m.content.contains(c)));
        let mut hidden: Vec<(char, String)> = Vec::new();
        let mut shielded = messages.to_vec();
        for message in &mut shielded {
            let content = std::mem::take(&mut message.content);
            let mut end = 0;
            for (from, to) in self.specials(&content)? {
                let token = &content[from..to];
                let known = hidden.iter().find(|(_, text)| text == token);
                let stand_in = match known {
                    Some((stand_in, _)) => *stand_in,
                    None => {
                        let new = unused.next().ok_or_else(|| {
                            anyhow!("a message with too many special tokens; shorten it")
                        })?;
                        hidden.push((new, token.to_owned()));
                        new
                    }
                };
                message.content.push_str(&content[end..from]);
                message.content.push(stand_in);
                end = to;
            }
            message.content.push_str(&content[end..]);
        }
        Ok(Shielded {
            messages: shielded,
            hidden,
        })
    }

    /// The ids of a text, or of a part of it, that the template made of shielded messages.
    ///
    /// # Errors
    /// When the tokenizer refuses the text, or reads an end of turn in what was said.
    pub fn encode_shielded(&self, text: &str, shielded: &Shielded) -> Result<Vec<u32>> {
        if !shielded.hides(text) {
            return self.encode(text, false);
        }
        let mut plain = self.tokenizer.clone();
        plain.set_encode_special_tokens(true);
        let encoded = self.encoded(&self.tokenizer, text)?;
        let (mut ids, mut run, mut end) = (Vec::new(), Vec::new(), 0);
        // The ids of the text since the last special token, which were `run` with what is
        // hidden in it.
        let said = |part: &str, run: Vec<u32>| -> Result<Vec<u32>> {
            if !shielded.hides(part) {
                return Ok(run);
            }
            let encoded = self.encoded(&plain, &shielded.revealed(part))?;
            let ids = encoded.get_ids();
            if let Some(&id) = ids.iter().find(|id| self.stops.contains(id)) {
                let token = self.tokenizer.id_to_token(id).unwrap_or_default();
                bail!("the message has {token:?}, which would end its turn; leave it out");
            }
            Ok(ids.to_vec())
        };
        for (&id, &(from, to)) in encoded.get_ids().iter().zip(encoded.get_offsets()) {
            // Where a tokenizer has no bytes, a stand-in is its unknown token.
            let stands_in = || text.get(from..to).is_some_and(|part| shielded.hides(part));
            if !self.is_special(id) || stands_in() {
                run.push(id);
                continue;
            }
            let part = text.get(end..from).unwrap_or_default();
            ids.extend(said(part, std::mem::take(&mut run))?);
            ids.push(id);
            end = to;
        }
        ids.extend(said(&text[end..], run)?);
        Ok(ids)
    }

    /// Where the tokenizer reads special tokens, or tokens that end a reply.
    fn specials(&self, text: &str) -> Result<Vec<(usize, usize)>> {
        let encoded = self.encoded(&self.tokenizer, text)?;
        let places = encoded.get_ids().iter().zip(encoded.get_offsets());
        let mut found: Vec<(usize, usize)> = places
            .filter(|(id, (from, to))| self.is_special(**id) && from < to)
            .map(|(_, place)| *place)
            .filter(|&(from, to)| text.get(from..to).is_some())
            .collect();
        // An unknown character may be several tokens in one place.
        found.dedup();
        Ok(found)
    }

    fn is_special(&self, id: u32) -> bool {
        let added = self.tokenizer.get_added_vocabulary();
        let token = added.get_added_tokens_decoder().get(&id);
        self.stops.contains(&id) || token.is_some_and(|token| token.special)
    }

    fn encoded(&self, tokenizer: &Tokenizer, text: &str) -> Result<Encoding> {
        let encoded = tokenizer.encode(text, false);
        encoded.map_err(|error| anyhow!("{}: the text has no ids: {error}", self.source.display()))
    }
}
