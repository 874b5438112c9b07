//! Properties of attention, whole, in parts and combined.

use super::*;
use crate::check::store;
use kernels::variants::Form;
use reference::{Expected, bounds::DIVISION};

// ---- attention ----

/// What the scores of a query over the cached positions are like.
#[derive(Clone, Copy, Debug)]
enum Scores {
    Ordinary,
    /// All equal.
    Equal,
    /// One above all others, which then weigh nothing in f32.
    Dominant,
    /// Each above the one before: the running maximum never rests.
    Rising,
    /// Each below the one before.
    Falling,
    /// All far below zero, so that only differences may be exponentiated.
    VeryNegative,
    OutlierChannels,
    /// Queries, keys and values are subnormal.
    Subnormal,
    /// Values of 20,000 to 30,000.
    LargeValues,
}

const SCORES: [Scores; 9] = [
    Scores::Ordinary,
    Scores::Equal,
    Scores::Dominant,
    Scores::Rising,
    Scores::Falling,
    Scores::VeryNegative,
    Scores::OutlierChannels,
    Scores::Subnormal,
    Scores::LargeValues,
];

/// A query over `len` positions in shuffled pages.
#[derive(Clone, Debug)]
struct Query {
    spec: ModelSpec,
    scores: Scores,
    first_page: usize,
    offset: usize,
    seed: u64,
}

fn queries() -> impl Strategy<Value = Query> {
    let scores = select(&SCORES[..]);
    let first_page = select(&[0_usize, 2][..]);
    let offset = select(&[0_usize, 3][..]);
    (heads(), scores, first_page, offset, any::<u64>()).prop_map(
        |(spec, scores, first_page, offset, seed)| Query {
            spec,
            scores,
            first_page,
            offset,
            seed,
        },
    )
}

/// 1 or -1 by dimension: the direction of every query whose scores are laid out.
fn sign(spec: &ModelSpec, i: usize) -> f64 {
    if (i % spec.head_dim).is_multiple_of(3) {
        -1.0
    } else {
        1.0
    }
}

impl Query {
    /// What queries and keys are like, and what values are.
    fn kinds(&self) -> [Kind; 2] {
        match self.scores {
            Scores::OutlierChannels => [Kind::OutlierChannels; 2],
            Scores::Subnormal => [Kind::Subnormal; 2],
            Scores::LargeValues => [Kind::Ordinary, Kind::Large],
            Scores::Ordinary
            | Scores::Equal
            | Scores::Dominant
            | Scores::Rising
            | Scores::Falling
            | Scores::VeryNegative => [Kind::Ordinary; 2],
        }
    }

    /// The factor of a key that points where every query does.
    fn along(&self, position: usize, dominant: usize) -> Option<f64> {
        match self.scores {
            Scores::Ordinary
            | Scores::OutlierChannels
            | Scores::Subnormal
            | Scores::LargeValues => None,
            Scores::Equal => Some(0.5),
            Scores::Dominant if position == dominant => Some(8.0),
            Scores::Dominant => Some(-0.01 * (position % 5) as f64),
            Scores::Rising => Some(0.05 * position as f64),
            Scores::Falling => Some(-0.05 * position as f64),
            Scores::VeryNegative => Some(-40.0 - 0.05 * (position % 7) as f64),
        }
    }

    fn query(&self, values: &mut Values) -> Vec<f32> {
        let spec = &self.spec;
        if self.along(0, 0).is_some() {
            return (0..spec.q_dim()).map(|i| sign(spec, i) as f32).collect();
        }
        values.activations(spec.q_dim(), self.kinds()[0], 0.7)
    }

    fn attended(&self, len: usize) -> Attended {
        let spec = &self.spec;
        let mut values = Values(self.seed ^ len as u64);
        let [key_kind, value_kind] = self.kinds();
        let dominant = values.below(len);
        let q = self.query(&mut values);
        let row = spec.kv_dim();
        let key = |position| match self.along(position, dominant) {
            Some(factor) => (0..row).map(|i| (sign(spec, i) * factor) as f32).collect(),
            None => values.activations(row, key_kind, 0.7),
        };
        let k = (0..len).flat_map(key).collect();
        let v = (0..len).flat_map(|_| values.activations(row, value_kind, 0.7));
        let v = v.collect();
        Attended {
            q,
            k,
            v,
            table: values.permutation(spec.max_pages),
            first_page: self.first_page,
            offset: self.offset,
        }
    }

    /// A chunk of `tokens` from position `first` on, one of them padding where
    /// there are enough.
    fn chunk(&self, first: usize, tokens: usize) -> Chunk {
        let mut values = Values(self.seed ^ ((first as u64) << 32));
        let queries = (0..tokens).flat_map(|_| self.query(&mut values));
        Chunk {
            q: queries.collect(),
            positions: padded_positions(first, tokens, &mut values),
            cached: self.attended(first + tokens),
        }
    }

    /// Numbers of positions: page edges and the whole cache.
    fn lengths(&self) -> impl Iterator<Item = usize> {
        edges(&self.spec).into_iter().map(|position| position + 1)
    }
}

fn parts() -> impl Strategy<Value = u32> {
    select(&[2, 3, 8, 16][..])
}

pub(super) fn attention(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    draw.judge(bench, variant, queries(), |bench, variant, case| {
        case.lengths().try_for_each(|len| {
            let attended = case.attended(len);
            require(cases::attention(bench, variant, &case.spec, &attended))
                .with_context(|| format!("{len} positions"))
        })
    })
}

pub(super) fn attention_splitk(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    draw.judge(
        bench,
        variant,
        (queries(), parts()),
        |bench, variant, (case, parts)| {
            case.lengths().try_for_each(|len| {
                let attended = case.attended(len);
                let judged = cases::attention_splitk(bench, variant, &case.spec, &attended, *parts);
                require(judged).with_context(|| format!("{len} positions"))
            })
        },
    )
}

pub(super) fn attention_combine(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    draw.judge(
        bench,
        variant,
        (queries(), parts()),
        |bench, variant, (case, parts)| {
            case.lengths().try_for_each(|len| {
                let Attended { q, k, v, .. } = case.attended(len);
                let shape = AttentionShape::of(&case.spec);
                let [q, k, v] = [q, k, v].map(|x| widen(&x));
                let partials = attention_splitk::compute(&q, &k, &v, shape, *parts as usize);
                let mut partials: Vec<f32> = partials.into_iter().map(|x| x as f32).collect();
                // Nothing but its denominator may be read of an empty part.
                let parts_of_heads = partials.chunks_exact_mut(partial_len(case.spec.head_dim));
                for part in parts_of_heads.filter(|part| part[1] == 0.0) {
                    part[0] = f32::MAX;
                    part[2..].fill(f32::NAN);
                }
                let judged =
                    cases::attention_combine(bench, variant, &case.spec, &partials, *parts);
                require(judged).with_context(|| format!("{len} positions"))
            })
        },
    )
}

/// Parts of which the last one's maximum is so far above the others' that the exponential
/// of the difference is past every f32.
pub(super) fn last_part_dominates(
    bench: &mut Bench<'_>,
    variant: Variant,
    draw: Draw,
) -> Result<()> {
    let spec = ModelSpec {
        head_dim: 256,
        num_attention_heads: 1,
        num_key_value_heads: 1,
        rotary_dim: 256,
        ..model()
    };
    let (parts, len) = (4, 64);
    let case = Query {
        spec,
        scores: Scores::Equal,
        first_page: 0,
        offset: 0,
        seed: draw.seed,
    };
    let Attended { q, mut k, v, .. } = case.attended(len);
    let last = k.len() - case.spec.kv_dim();
    for k in &mut k[last..] {
        *k *= 16.0;
    }
    let shape = AttentionShape::of(&case.spec);
    let [q, k, v] = [q, k, v].map(|x| widen(&x));
    let partials = attention_splitk::compute(&q, &k, &v, shape, parts as usize);
    let partials: Vec<f32> = partials.into_iter().map(|x| x as f32).collect();
    require(cases::attention_combine(
        bench, variant, &case.spec, &partials, parts,
    ))
}

/// What a role gives for a query; one of a chunk for the last `tokens` positions.
fn judged(
    bench: &mut Bench<'_>,
    variant: Variant,
    case: &Query,
    attended: Attended,
    tokens: usize,
) -> Result<Vec<Judged>> {
    let spec = &case.spec;
    if [Role::AttentionPrefill, Role::AttentionPrefillInt8].contains(&variant.role) {
        let len = attended.k.len() / spec.kv_dim();
        let chunk = Chunk {
            cached: attended,
            ..case.chunk(len - tokens, tokens)
        };
        return cases::attention_prefill(bench, variant, spec, &chunk);
    }
    if variant.role == Role::AttentionSplitk {
        return cases::attention_splitk(bench, variant, spec, &attended, 3);
    }
    cases::attention(bench, variant, spec, &attended)
}

/// Every kind of score, over one position and one page, both sides of the edges of
/// pages, and up to the last slot, with heads that share keys.
pub(super) fn every_score(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    for scores in SCORES {
        let mut case = shared_pages(draw.seed);
        case.scores = scores;
        case.lengths()
            .try_for_each(|len| {
                // The last token of a chunk sees `len` positions, those before it fewer.
                let tokens = len.min(2);
                let attended = case.attended(len);
                let judged = judged(bench, variant, &case, attended, tokens);
                require(judged).with_context(|| format!("{len} positions"))
            })
            .with_context(|| format!("{scores:?}"))?;
    }
    Ok(())
}

/// A chunk of few or many tokens from the start, and one up to the last slot.
pub(super) fn attention_prefill(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let tokens = select(&[1_usize, 2, 17, 33][..]);
    draw.judge(
        bench,
        variant,
        (queries(), tokens),
        |bench, variant, (case, tokens)| {
            let held = last_slot(&case.spec) + 1;
            let tokens = *tokens.min(&held);
            [0, held - tokens].into_iter().try_for_each(|first| {
                let chunk = case.chunk(first, tokens);
                require(cases::attention_prefill(bench, variant, &case.spec, &chunk))
                    .with_context(|| format!("{tokens} tokens from position {first}"))
            })
        },
    )
}

/// The form of a role that reduces and loads as `variant` does.
fn same_form(variant: Variant, role: Role) -> Variant {
    let form = Form {
        role,
        ..variant.form
    };
    Variant { form, ..variant }
}

fn same_bits(found: &[f64], expected: &[f64]) -> bool {
    let bits = |x: &f64| x.to_bits();
    found.iter().map(bits).eq(expected.iter().map(bits))
}

/// A chunk of tokens gives the bits that decoding them one by one gives.
pub(super) fn chunk_as_steps(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let case = shared_pages(draw.seed);
    let spec = &case.spec;
    // Across the edge of a page, in the middle of the cache and at its end.
    for (first, tokens) in [(0, 19), (14, 3), (75, 5)] {
        let chunk = case.chunk(first, tokens);
        let judged = cases::attention_prefill(bench, variant, spec, &chunk)?.swap_remove(0);
        judged.require()?;
        let mut rows = judged.found.chunks_exact(spec.q_dim());
        let decode = if variant.role == Role::AttentionPrefillInt8 {
            Role::AttentionInt8
        } else {
            Role::Attention
        };
        let decode = same_form(variant, decode);
        for attended in (0..tokens).filter_map(|token| chunk.token(spec, token)) {
            let step = cases::attention(bench, decode, spec, &attended)?.swap_remove(0);
            let row = rows.next().context("a row per token")?;
            ensure!(
                same_bits(row, &step.found),
                "{} positions: a chunk gives other bits than a decoded token",
                attended.k.len() / spec.kv_dim()
            );
        }
    }
    Ok(())
}

/// Six heads that share two heads of keys, over five pages.
fn shared_pages(seed: u64) -> Query {
    Query {
        spec: ModelSpec {
            num_attention_heads: 6,
            num_key_value_heads: 2,
            max_pages: 5,
            ..model()
        },
        scores: Scores::Ordinary,
        first_page: 2,
        offset: 3,
        seed,
    }
}

/// A part of the pages gives the bits that attention over these pages alone gives,
/// and they are the pages' attention before its division.
pub(super) fn parts_alone(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let case = shared_pages(draw.seed);
    let spec = &case.spec;
    let (len, parts) = (67, 3);
    let attended = case.attended(len);
    let all = cases::partials(bench, variant, spec, &attended, parts)?;
    let stride = partial_len(spec.head_dim);
    for part in 0..parts as usize {
        let range = attention_splitk::part_positions(len, parts as usize, part);
        let rows = range.start * spec.kv_dim()..range.end * spec.kv_dim();
        let pages = range.start / PAGE_SIZE..pages_for(range.end);
        // The other pages go behind, so that the table still names each once.
        let mut table = attended.table.clone();
        table.rotate_left(pages.start);
        let alone = Attended {
            k: attended.k[rows.clone()].to_vec(),
            v: attended.v[rows].to_vec(),
            table,
            ..attended.clone()
        };
        let one = cases::partials(bench, variant, spec, &alone, 1)?;
        let of_part = |head: usize| &all[(head * parts as usize + part) * stride..][..stride];
        let expected: Vec<f64> = (0..spec.num_attention_heads)
            .flat_map(of_part)
            .copied()
            .collect();
        ensure!(
            same_bits(&one, &expected),
            "part {part} has other bits than its pages alone"
        );
        let whole = same_form(variant, Role::Attention);
        let whole = cases::attention(bench, whole, spec, &alone)?.swap_remove(0);
        let quotients = one.chunks_exact(stride).flat_map(|partial| {
            let denominator = partial[1];
            partial[2..].iter().map(move |o| o / denominator)
        });
        let quotient = |y: f64| (y, store(variant).limit(y, DIVISION * y.abs()));
        let expected = Expected::from_pairs(quotients.map(quotient));
        Judged::new("out", whole.found, expected).require()?;
    }
    Ok(())
}

/// Pages in any order give the same bits, and the right ones.
pub(super) fn page_order(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let case = shared_pages(draw.seed);
    let spec = &case.spec;
    let len = 67;
    assert_eq!(pages_for(len), spec.max_pages, "every page is in use");
    let mut found = |table| {
        let attended = Attended {
            table,
            ..case.attended(len)
        };
        let judged = judged(bench, variant, &case, attended, 5);
        let judged = judged?.swap_remove(0);
        judged.require()?;
        anyhow::Ok(judged.found)
    };
    let identity = found(vec![0, 1, 2, 3, 4])?;
    let shuffled = found(vec![3, 0, 4, 2, 1])?;
    ensure!(
        same_bits(&identity, &shuffled),
        "another order of pages gives other bits"
    );
    Ok(())
}

/// A context of many pages, of which the last position alone has weight: a loop that
/// ends early is far off. For every 32 positions an invocation of the tree form makes
/// some 600 rounds of its loops, one of the row form some 260.
pub(super) fn long_context(
    bench: &mut Bench<'_>,
    variant: Variant,
    draw: Draw,
    pages: usize,
) -> Result<()> {
    let case = Query {
        spec: ModelSpec {
            head_dim: 256,
            num_attention_heads: 1,
            num_key_value_heads: 1,
            rotary_dim: 256,
            max_pages: pages,
            ..model()
        },
        scores: Scores::Equal,
        first_page: 0,
        offset: 0,
        seed: draw.seed,
    };
    let mut attended = case.attended(case.spec.max_context());
    let last = attended.k.len() - case.spec.kv_dim();
    for k in &mut attended.k[last..] {
        // Sixteen times the others' score of 8: the exponential of the difference is past
        // every f32, so that it may not be formed from any maximum but the true one.
        *k *= 16.0;
    }
    if variant.role == Role::AttentionSplitk {
        let judged = cases::attention_splitk(bench, variant, &case.spec, &attended, 2);
        return require(judged);
    }
    require(cases::attention(bench, variant, &case.spec, &attended))
}
