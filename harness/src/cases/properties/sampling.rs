//! Properties of what chooses the next token.

use super::{Draw, require};
use crate::cases::{
    bench::Bench,
    data::{LOGITS, Logits, Values},
    roles as cases,
};
use anyhow::{Context as _, Result};
use kernels::{Variant, sampling};
use proptest::{prelude::*, sample::select};

/// Positions that a token is drawn at from the same logits.
const POSITIONS: usize = 4;

/// Logits of each kind of one vocabulary.
pub(super) fn argmax_of(
    bench: &mut Bench<'_>,
    variant: Variant,
    draw: Draw,
    vocab: usize,
) -> Result<()> {
    of_every_kind(bench, variant, draw.seed, vocab)
}

fn of_every_kind(bench: &mut Bench<'_>, variant: Variant, seed: u64, vocab: usize) -> Result<()> {
    let vocab = vocab.next_multiple_of(variant.k_step());
    let mut values = Values(seed);
    LOGITS.iter().try_for_each(|kind| {
        let logits = kind.of(&mut values, vocab);
        require(cases::argmax(bench, variant, &logits)).with_context(|| format!("{kind:?}"))
    })
}

pub(super) fn argmax(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let vocabularies = || select(&[1_usize, 2, 255, 256, 257, 1003, 40_001][..]);
    draw.judge(
        bench,
        variant,
        (vocabularies(), any::<u64>()),
        |bench, variant, &(vocab, seed)| of_every_kind(bench, variant, seed, vocab),
    )
}

/// Logits whose greatest is finite and not alone.
const DRAWN_LOGITS: [Logits; 4] = [
    Logits::Ordinary,
    Logits::Equal,
    Logits::Negative,
    Logits::Close,
];

const TEMPERATURES: [f32; 4] = [1.0, 0.25, 0.7, 6.0];

/// Parts of a vocabulary, whose last are short or empty.
pub(super) fn sample_reduce_of(
    bench: &mut Bench<'_>,
    variant: Variant,
    draw: Draw,
    vocab: usize,
) -> Result<()> {
    let mut values = Values(draw.seed);
    LOGITS
        .iter()
        .zip(TEMPERATURES.iter().cycle())
        .try_for_each(|(kind, &temperature)| {
            let logits = kind.of(&mut values, vocab);
            require(cases::sample_reduce(bench, variant, &logits, temperature))
                .with_context(|| format!("{kind:?}"))
        })
}

pub(super) fn sample_reduce(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let vocabularies = select(&[1_usize, 63, 65, 257, 1003, 40_001][..]);
    draw.judge(
        bench,
        variant,
        (vocabularies, any::<u64>()),
        |bench, variant, &(vocab, seed)| {
            let draw = Draw { seed, shrinks: 0 };
            sample_reduce_of(bench, variant, draw, vocab)
        },
    )
}

/// What is kept in a draw: all, or what one rule or all three keep.
const KEPT: [(u32, f32, f32); 6] = [
    (0, 1.0, 0.0),
    (7, 1.0, 0.0),
    (0, 0.6, 0.0),
    (0, 1.0, 0.2),
    (40, 0.9, 0.05),
    (1, 0.5, 0.0),
];

/// Tokens of each kind of logits and each rule, at several positions.
pub(super) fn sample_select_of(
    bench: &mut Bench<'_>,
    variant: Variant,
    draw: Draw,
    vocab: usize,
) -> Result<()> {
    let mut values = Values(draw.seed);
    // Many logits cost a case much, and their kind matters little.
    let kinds = if vocab > 10_000 {
        1
    } else {
        DRAWN_LOGITS.len()
    };
    for kind in DRAWN_LOGITS.into_iter().take(kinds) {
        let logits = kind.of(&mut values, vocab);
        for (at, (top_k, top_p, min_p)) in KEPT.into_iter().enumerate() {
            let drawn = sampling::Draw {
                temperature: TEMPERATURES[at % TEMPERATURES.len()],
                top_p,
                min_p,
                top_k,
                seed: values.below(1 << 32) as u32,
            };
            for _ in 0..POSITIONS {
                let position = values.below(8192) as u32;
                let judged = cases::sample_select(bench, variant, &logits, &drawn, position);
                require(judged).with_context(|| format!("{kind:?}, {drawn:?}, at {position}"))?;
            }
        }
    }
    Ok(())
}

pub(super) fn sample_select(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let vocabularies = select(&[1_usize, 2, 255, 257, 1003][..]);
    draw.judge(
        bench,
        variant,
        (vocabularies, any::<u64>()),
        |bench, variant, &(vocab, seed)| {
            let draw = Draw { seed, shrinks: 0 };
            sample_select_of(bench, variant, draw, vocab)
        },
    )
}
