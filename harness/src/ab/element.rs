//! One timed element, by what the flag is judged on: decoded tokens, the whole prompt,
//! or the prompt of a second turn.

use super::{Compared, Request};
use crate::{
    check::{self, Fed},
    device::Gpu,
    engine::{Arm, Engine},
};
use anyhow::{Result, ensure};
use kernels::flag::Metric;
use results::record::{self, Span};

/// What an element did.
#[derive(Debug)]
pub(super) struct Element {
    /// Tokens that its time is for.
    pub(super) tokens: usize,
    pub(super) dispatches: u64,
    pub(super) wall_ns: u64,
    pub(super) spans: Vec<Span>,
    /// The tokens that it made, which must always be the same.
    pub(super) made: Vec<u32>,
}

/// Arms whose elements can be timed in any order.
pub(super) trait Timed {
    /// Every arm, the control among them.
    fn kinds(&self) -> Vec<record::Arm>;
    /// Runs an element of an arm.
    fn element(&self, kind: record::Arm) -> Result<Element>;
    /// Compares what the arm's last element wrote with what the checked dispatches write,
    /// where its tokens do not tell.
    fn require_right(&self, kind: record::Arm) -> Result<()>;
    /// The device.
    fn gpu(&self) -> &Gpu;
}

/// Arms over whole tokens.
pub(super) struct Tokens<'t> {
    pub(super) engine: &'t Engine<'t>,
    pub(super) request: &'t Request<'t>,
    pub(super) compared: &'t Compared,
    /// The token after the prompt.
    pub(super) first: u32,
}

impl Timed for Tokens<'_> {
    fn kinds(&self) -> Vec<record::Arm> {
        self.request.timed().to_vec()
    }

    fn element(&self, kind: record::Arm) -> Result<Element> {
        let arm = if kind == record::Arm::Control {
            &self.compared.control
        } else {
            &self.compared.arms[self.request.number(kind)?]
        };
        Element::run(self.engine, self.request, arm, self.first)
    }

    /// The tokens of every element are compared.
    fn require_right(&self, _: record::Arm) -> Result<()> {
        Ok(())
    }

    fn gpu(&self) -> &Gpu {
        self.engine.gpu
    }
}

impl Element {
    /// Runs one; `first` is the token after the prompt, whose snapshot a decoding
    /// element restores.
    fn run(engine: &Engine<'_>, request: &Request<'_>, arm: &Arm, first: u32) -> Result<Self> {
        match request.subject.metric {
            Metric::Decode => Self::decode(engine, request, arm, first),
            Metric::Prefill => {
                let prompt = &request.prompt.ids;
                let done = engine.prefill_whole(&arm.prefill, prompt)?;
                Ok(Self {
                    tokens: done.tokens,
                    dispatches: done.dispatches,
                    wall_ns: done.wall_ns,
                    spans: vec![],
                    made: vec![engine.token()?],
                })
            }
            Metric::SecondTurn => Turns::of(request).run(engine, request, arm),
        }
    }

    fn decode(engine: &Engine<'_>, request: &Request<'_>, arm: &Arm, first: u32) -> Result<Self> {
        engine.memory.restore(engine.gpu)?;
        engine.set_token(first);
        let (position, tokens) = (request.prompt.ids.len(), request.tokens);
        let decoded = engine.decode(&arm.decode, position, tokens)?;
        let planned = u64::from(arm.decode.plan.dispatches_per_token()) * tokens as u64;
        ensure!(
            decoded.dispatches == planned,
            "{} dispatches were recorded, the plan has {planned}",
            decoded.dispatches
        );
        Ok(Self {
            tokens,
            dispatches: decoded.dispatches,
            wall_ns: decoded.wall_ns,
            spans: decoded.spans,
            made: engine.generated(position, tokens)?,
        })
    }
}

/// Two turns of a conversation: the prompt and a reply of greedy tokens, then the same,
/// the reply's last token and the prompt's ids once more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    first: usize,
    reply: usize,
}

impl Turns {
    pub(super) fn of(request: &Request<'_>) -> Self {
        Self {
            first: request.prompt.ids.len(),
            reply: request.tokens,
        }
    }

    /// Tokens of the second prompt.
    pub(super) const fn tokens(self) -> usize {
        // A reply of n decoded tokens has one more, which nobody has fed yet.
        self.first + self.reply + 1 + self.first
    }

    /// Those that an arm need not run again.
    pub(super) fn reused(self, arm: &Arm) -> usize {
        if arm.prefill.reuses() {
            self.first + self.reply
        } else {
            0
        }
    }

    /// Runs both turns; the time is that of the second prompt up to its first token.
    fn run(self, engine: &Engine<'_>, request: &Request<'_>, arm: &Arm) -> Result<Element> {
        let prompt = self.first_turn(engine, request, arm)?;
        let done = engine.prefill(&arm.prefill, &prompt)?;
        let token = engine.token()?;
        let reused = self.reused(arm);
        ensure!(
            (done.reused, done.tokens) == (reused, prompt.len() - reused),
            "a second turn of {} tokens: expected {reused} reused, found {} reused and {} run",
            prompt.len(),
            done.reused,
            done.tokens
        );
        Ok(Element {
            tokens: prompt.len(),
            dispatches: done.dispatches,
            wall_ns: done.wall_ns,
            spans: vec![],
            made: [&prompt[self.first..], &[token]].concat(),
        })
    }

    /// Runs the first turn and gives the prompt of the second.
    fn first_turn(self, engine: &Engine<'_>, request: &Request<'_>, arm: &Arm) -> Result<Vec<u32>> {
        let first = &request.prompt.ids;
        engine.prefill_whole(&arm.prefill, first)?;
        engine.decode(&arm.decode, self.first, self.reply)?;
        let reply = engine.generated(self.first - 1, self.reply + 1)?;
        Ok([first, &reply[..], first].concat())
    }

    /// Compares the logits after an arm's second prompt with the reference, which runs
    /// all of it, with the experts of the arm.
    pub(super) fn check(
        self,
        engine: &Engine<'_>,
        request: &Request<'_>,
        arm: &Arm,
    ) -> Result<Vec<check::Check>> {
        let prompt = self.first_turn(engine, request, arm)?;
        let reused = engine.prefill(&arm.prefill, &prompt)?.reused;
        let expected = check::Expectation::new(engine.weights, &prompt, 0, arm.prefill.settings())?;
        let elem = arm.decode.plan.elem;
        let found = engine.logits(&arm.decode.plan)?;
        let first = self.first.min(reused);
        let parts = [
            Fed::Prompt(0..first),
            Fed::Steps(first..reused),
            Fed::Prompt(reused..prompt.len()),
        ];
        let (followed, choice) = match check::choices(engine, arm, &prompt, &parts)? {
            Some(choices) => expected.following(engine.weights, &choices)?,
            None => (None, None),
        };
        let expected = followed.unwrap_or(expected);
        let (logits, noise) = (&expected.logits[0], expected.noise[0]);
        let logits = check::logits("logits.second turn", &found, logits, noise, elem);
        Ok(choice.into_iter().chain([logits]).collect())
    }
}
