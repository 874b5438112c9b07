//! The states of a hybrid: after which tokens they are, and checkpoints to go back to.
//! A state cannot be cut back as a cache can, and a program may run only on that of the
//! tokens before its own.

use super::{
    Engine, Prefill,
    buffers::{empty, padded},
};
use anyhow::{Result, ensure};
use kernels::{Elem, Plan, plan::Buffer};
use std::collections::BTreeMap;

/// Checkpoints that are held: of a prompt the start of its last chunk and its end, and
/// the end of the prompt before.
const HELD: usize = 3;

/// After which tokens the states of one type of activations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// After so many, from position 0 on.
    After(usize),
    /// After whichever a program asks for: the keys and values are made up as well.
    Anywhere,
}

/// A copy of the states.
#[derive(Debug)]
struct Checkpoint {
    elem: Elem,
    /// Tokens that they are after.
    tokens: usize,
    copies: BTreeMap<Buffer, wgpu::Buffer>,
}

/// What is known of the states.
#[derive(Debug, Default)]
pub(super) struct States {
    stand: BTreeMap<Elem, Stand>,
    snapshot: BTreeMap<Elem, Stand>,
    /// The oldest first.
    checkpoints: Vec<Checkpoint>,
}

impl States {
    pub(super) fn snapshot(&mut self) {
        self.snapshot = self.stand.clone();
    }

    pub(super) fn restore(&mut self) {
        self.stand = self.snapshot.clone();
        self.checkpoints.clear();
    }

    /// Keys and values of any position are made up, and so is the state.
    pub(super) fn stand_anywhere(&mut self) {
        self.stand = [Elem::F16, Elem::F32]
            .map(|elem| (elem, Stand::Anywhere))
            .into();
        self.checkpoints.clear();
    }

    /// Runs tokens from `position` on: refused where the state is not that of the tokens
    /// before. A sequence begins with any. Checkpoints behind are those of other tokens.
    fn run(&mut self, elem: Elem, position: usize, tokens: usize) -> Result<()> {
        let stand = self.stand.entry(elem).or_insert(Stand::After(0));
        if *stand == Stand::Anywhere && position > 0 {
            return Ok(());
        }
        ensure!(
            position == 0 || *stand == Stand::After(position),
            "a program at position {position} on the state of another ({stand:?}); feed the \
             tokens before it first"
        );
        *stand = Stand::After(position + tokens);
        self.checkpoints
            .retain(|c| c.elem != elem || c.tokens <= position);
        Ok(())
    }

    /// The most tokens up to `most` that a state is known after: the current one or a
    /// checkpoint, whose index it is.
    fn nearest(&self, elem: Elem, most: usize) -> (usize, Option<usize>) {
        let now = match self.stand.get(&elem) {
            Some(&Stand::After(tokens)) if tokens <= most => tokens,
            Some(Stand::After(_) | Stand::Anywhere) | None => 0,
        };
        let held = self.checkpoints.iter().enumerate();
        let held = held.filter(|(_, c)| c.elem == elem && c.tokens <= most);
        match held.max_by_key(|(_, c)| c.tokens) {
            Some((at, checkpoint)) if checkpoint.tokens > now => (checkpoint.tokens, Some(at)),
            Some(_) | None => (now, None),
        }
    }
}

impl Engine<'_> {
    /// Whether the model has states.
    fn has_states(&self) -> bool {
        self.memory.spec().delta_net.is_some()
    }

    /// Notes that the tokens of a plan from `position` on are recorded.
    pub(super) fn enter(&self, plan: &Plan, position: usize) -> Result<()> {
        if !self.has_states() {
            return Ok(());
        }
        let mut states = self.memory.states.borrow_mut();
        states.run(plan.elem, position, plan.phase.tokens())
    }

    /// Records a copy of the states as they are.
    pub(super) fn checkpoint(&self, encoder: &mut wgpu::CommandEncoder, elem: Elem) {
        let mut states = self.memory.states.borrow_mut();
        let Some(&Stand::After(tokens)) = states.stand.get(&elem) else {
            return;
        };
        if !self.has_states() || tokens == 0 {
            return;
        }
        let known = |c: &Checkpoint| (c.elem, c.tokens) == (elem, tokens);
        if states.checkpoints.iter().any(known) {
            return;
        }
        let reused = (states.checkpoints.len() == HELD).then(|| states.checkpoints.remove(0));
        let mut reused = reused
            .filter(|c| c.elem == elem)
            .map_or_else(BTreeMap::new, |c| c.copies);
        let copies = self.memory.recurrent(elem).map(|(name, buffer, bytes)| {
            let copy = reused.remove(&name);
            let copy = copy.unwrap_or_else(|| empty(self.gpu, "checkpoint", bytes));
            encoder.copy_buffer_to_buffer(buffer, 0, &copy, 0, Some(padded(bytes)));
            (name, copy)
        });
        let checkpoint = Checkpoint {
            elem,
            tokens,
            copies: copies.collect(),
        };
        states.checkpoints.push(checkpoint);
    }

    /// Brings the states to those after as many tokens as are known, up to `most`, whose
    /// keys and values are kept; how many. All of them where the model has no states.
    pub(super) fn rewind(&self, elem: Elem, most: usize) -> Result<usize> {
        if !self.has_states() {
            return Ok(most);
        }
        let mut states = self.memory.states.borrow_mut();
        let (tokens, checkpoint) = states.nearest(elem, most);
        if let Some(at) = checkpoint {
            let mut encoder = self.encoder();
            let copies = &states.checkpoints[at].copies;
            for (name, buffer, bytes) in self.memory.recurrent(elem) {
                encoder.copy_buffer_to_buffer(&copies[&name], 0, buffer, 0, Some(padded(bytes)));
            }
            self.gpu.run("rewinding the states", encoder)?;
            states.stand.insert(elem, Stand::After(tokens));
        }
        Ok(tokens)
    }

    /// Makes sure that a program may run behind `tokens`, which an arm has fed: a model
    /// with states feeds them again where its states are those of other tokens.
    ///
    /// # Errors
    /// As [`Engine::prefill`].
    pub fn reach(&self, prefill: &Prefill, tokens: &[u32]) -> Result<()> {
        let elem = prefill.settings().elem();
        let here = Some(&Stand::After(tokens.len()));
        let stands = self.memory.states.borrow().stand.get(&elem) == here;
        if self.has_states() && !tokens.is_empty() && !stands {
            self.prefill_whole(prefill, tokens)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(tokens: usize) -> Checkpoint {
        Checkpoint {
            elem: Elem::F16,
            tokens,
            copies: BTreeMap::new(),
        }
    }

    #[test]
    fn a_program_runs_on_the_state_of_the_tokens_before_it_alone() {
        let mut states = States::default();
        states.run(Elem::F16, 0, 5).expect("from the start");
        states.run(Elem::F16, 5, 1).expect("one more");
        for position in [4, 5, 7] {
            let error = states.run(Elem::F16, position, 1).expect_err("another");
            assert!(error.to_string().contains("After(6)"), "{error}");
        }
        states
            .run(Elem::F32, 3, 1)
            .expect_err("no token of that type");
        states.run(Elem::F16, 0, 2).expect("again from the start");
        states.stand_anywhere();
        states.run(Elem::F16, 90, 1).expect("made up");
        states.run(Elem::F16, 90, 1).expect("and again");
    }

    #[test]
    fn checkpoints_behind_what_is_overwritten_are_gone() {
        let mut states = States::default();
        states.run(Elem::F16, 0, 64).expect("from the start");
        states.checkpoints = vec![checkpoint(64)];
        states.run(Elem::F16, 64, 6).expect("the rest");
        states.checkpoints.push(checkpoint(70));
        states.run(Elem::F16, 70, 9).expect("a reply");
        assert_eq!(states.nearest(Elem::F16, 90), (79, None), "as it is");
        assert_eq!(
            states.nearest(Elem::F16, 78),
            (70, Some(1)),
            "the prompt's end"
        );
        assert_eq!(
            states.nearest(Elem::F16, 69),
            (64, Some(0)),
            "one token less"
        );
        assert_eq!(states.nearest(Elem::F16, 63), (0, None), "before both");
        states.stand.insert(Elem::F16, Stand::After(64));
        states.run(Elem::F16, 64, 3).expect("other tokens");
        assert_eq!(states.nearest(Elem::F16, 90), (67, None), "as it is");
        assert_eq!(states.nearest(Elem::F16, 66), (64, Some(0)), "70 is gone");
    }
}
