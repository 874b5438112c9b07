//! The part of a plan that makes the next token of the logits.

use super::{Activation, Builder, Dispatch, PlanError, Row, State, Work, act, state};
use crate::{
    quant::Elem,
    role::Role,
    sampling::{Draw, SAMPLE_PARTS, Sampling},
};

impl Builder<'_> {
    /// The greatest logit or a draw, as the settings say.
    pub(super) fn next_token(&mut self) -> Result<(), PlanError> {
        match self.settings.sampling() {
            Sampling::Greedy => self.argmax(),
            Sampling::Drawn(draw) => self.draw(draw),
        }
    }

    fn argmax(&mut self) -> Result<(), PlanError> {
        let label = "argmax";
        let logits = self.logits();
        let variant = self.choose_for(
            Role::Argmax,
            Row::none(self.spec.vocab_size),
            logits.elem(Elem::F16),
            label,
        )?;
        self.dispatches.push(Dispatch {
            label: label.into(),
            variant,
            buffers: vec![act(logits), state(State::Token)],
            uniform: vec![],
            grid: [1, 1, 1],
            work: Work::NONE,
        });
        Ok(())
    }

    fn draw(&mut self, draw: Draw) -> Result<(), PlanError> {
        let logits = self.logits();
        let out = logits.elem(Elem::F16);
        let label = "sample_reduce";
        let variant = self.choose_for(Role::SampleReduce, Row::none(0), out, label)?;
        self.dispatches.push(Dispatch {
            label: label.into(),
            variant,
            buffers: vec![act(logits), act(Activation::SampleParts)],
            uniform: vec![draw.temperature.to_bits()],
            grid: [SAMPLE_PARTS as u32, 1, 1],
            work: Work::NONE,
        });
        let label = "sample_select";
        let variant = self.choose_for(Role::SampleSelect, Row::none(0), out, label)?;
        self.dispatches.push(Dispatch {
            label: label.into(),
            variant,
            buffers: vec![
                act(logits),
                act(Activation::SampleParts),
                state(State::Token),
                state(State::PositionMap),
            ],
            uniform: vec![
                draw.temperature.to_bits(),
                draw.top_p.to_bits(),
                draw.min_p.to_bits(),
                draw.top_k,
                draw.seed,
            ],
            grid: [1, 1, 1],
            work: Work::NONE,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        features::Features,
        flag::{Choices, Settings},
        models,
        plan::{Buffer, Phase, Plan},
    };

    /// A draw takes the place of argmax, in decoded tokens and at a prompt's end, and
    /// writes the token where the embedding reads it.
    #[test]
    fn a_draw_takes_the_place_of_argmax() {
        let spec = models::find("smollm2-135m").expect("registered");
        let greedy = Settings::resolve(&Features::PUBLISHED, &Choices::new()).expect("defaults");
        let draw = Draw {
            temperature: 0.5,
            seed: 9,
            ..Draw::PLAIN
        };
        let drawn = greedy.clone().with_sampling(Sampling::Drawn(draw));
        let prompt = Phase::Prefill {
            tokens: 5,
            head: true,
        };
        for phase in [Phase::Decode, prompt] {
            let plan = |s| Plan::build(&spec, s, &Features::PUBLISHED, phase).expect("a plan");
            let (greedy, drawn) = (plan(&greedy), plan(&drawn));
            let common = greedy.dispatches.len() - 1;
            assert_eq!(
                greedy.dispatches[common].variant.role,
                Role::Argmax,
                "greedy"
            );
            assert_eq!(
                greedy.dispatches[..common],
                drawn.dispatches[..common],
                "the rest"
            );
            let last = &drawn.dispatches[common..];
            let roles: Vec<Role> = last.iter().map(|d| d.variant.role).collect();
            assert_eq!(roles, [Role::SampleReduce, Role::SampleSelect], "{phase:?}");
            assert_eq!(greedy.logits(), drawn.logits(), "the logits");
            let token = Buffer::State(State::Token);
            assert!(last[1].buffers.contains(&token), "the token");
            let words = [0.5_f32.to_bits(), 1.0_f32.to_bits(), 0, 0, 9];
            assert_eq!(last[1].uniform, words, "the uniform");
        }
    }
}
