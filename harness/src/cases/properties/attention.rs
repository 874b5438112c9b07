//! Properties of attention, whole, in parts and combined.

use super::*;

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

impl Query {
    fn attended(&self, len: usize) -> Attended {
        let spec = &self.spec;
        let mut values = Values(self.seed ^ len as u64);
        let (q_len, kv_len) = (spec.q_dim(), len * spec.kv_dim());
        let kind = match self.scores {
            Scores::OutlierChannels => Kind::OutlierChannels,
            Scores::Subnormal => Kind::Subnormal,
            Scores::Ordinary
            | Scores::Equal
            | Scores::Dominant
            | Scores::Rising
            | Scores::Falling
            | Scores::VeryNegative
            | Scores::LargeValues => Kind::Ordinary,
        };
        let value_kind = match self.scores {
            Scores::LargeValues => Kind::Large,
            Scores::Ordinary
            | Scores::Equal
            | Scores::Dominant
            | Scores::Rising
            | Scores::Falling
            | Scores::VeryNegative
            | Scores::OutlierChannels
            | Scores::Subnormal => kind,
        };
        let dominant = values.below(len);
        // The factor of a key that points where every query does.
        let along = |position: usize| match self.scores {
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
        };
        let (q, k) = if along(0).is_some() {
            let sign = |i: usize| {
                if (i % spec.head_dim).is_multiple_of(3) {
                    -1.0
                } else {
                    1.0
                }
            };
            let q = (0..q_len).map(|i| sign(i) as f32).collect();
            let k = (0..kv_len).map(|i| {
                let factor = along(i / spec.kv_dim()).unwrap_or(0.0);
                (sign(i) * factor) as f32
            });
            (q, k.collect())
        } else {
            let q = values.activations(q_len, kind, 0.7);
            let row = spec.kv_dim();
            let k = (0..len).flat_map(|_| values.activations(row, kind, 0.7));
            (q, k.collect())
        };
        let row = spec.kv_dim();
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

/// Pages in any order give the same bits, and the right ones.
pub(super) fn page_order(bench: &mut Bench<'_>, variant: Variant, draw: Draw) -> Result<()> {
    let case = Query {
        spec: ModelSpec {
            num_attention_heads: 6,
            num_key_value_heads: 2,
            max_pages: 5,
            ..model()
        },
        scores: Scores::Ordinary,
        first_page: 2,
        offset: 3,
        seed: draw.seed,
    };
    let len = 67;
    assert_eq!(pages_for(len), case.spec.max_pages, "every page is in use");
    let mut found = |table| {
        let attended = Attended {
            table,
            ..case.attended(len)
        };
        let judged = if variant.role == Role::AttentionSplitk {
            cases::attention_splitk(bench, variant, &case.spec, &attended, 3)
        } else {
            cases::attention(bench, variant, &case.spec, &attended)
        };
        let judged = judged?.swap_remove(0);
        judged.require()?;
        anyhow::Ok(judged.found)
    };
    let identity = found(vec![0, 1, 2, 3, 4])?;
    let shuffled = found(vec![3, 0, 4, 2, 1])?;
    let same = |a: &f64, b: &f64| a.to_bits() == b.to_bits();
    ensure!(
        identity.iter().zip(&shuffled).all(|(a, b)| same(a, b)),
        "another order of pages gives other bits"
    );
    Ok(())
}
