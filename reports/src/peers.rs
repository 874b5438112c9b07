//! `PEERS.md`: other engines. What their authors published stands here as their dated
//! claim; what was imported stands with its file; and a ratio stands only where both
//! sides are alike, or with what sets them apart.

use std::collections::BTreeMap;

use results::external::{Comparison, External, Figure, Kind, Side, compare};
use results::history::Standing;
use results::record::{Arm, Mode};
use results::store::Store;
use results::summary::signed_pct;

use crate::doc::{Doc, Picture};
use crate::svg::{Anchor, Scale, Svg, WIDTH, tick_label};
use crate::text::{NONE, or_none};

/// The page.
pub(crate) fn page(store: &Store) -> Doc {
    let mut doc = Doc::new("PEERS.md", "Other engines");
    doc.text(
        "Made by `cargo xtask report` from the records in `results/data`; do not edit. Nothing in \
         the tables of claims was measured by this workbench: each figure is its authors' own, on \
         the day and the machine named. A ratio is given only for one model on one device; where \
         the two sides differ in weights, prompts or counts of tokens, or do not say, the \
         difference stands beside it.",
    );
    let of = |kind: Kind| {
        store
            .external
            .iter()
            .filter(move |record| record.kind == kind)
    };
    let claims: Vec<&External> = of(Kind::Published).collect();
    let current = |record: &&&External| record.standing == Standing::Current;
    let pairs = pairs(claims.iter().filter(current).copied());

    doc.heading("Pairs that were published");
    if pairs.is_empty() {
        doc.text("None is recorded.");
    } else {
        doc.picture(picture(&pairs));
        doc.table(
            &[
                "model",
                "device, date",
                "engines",
                "figure",
                "first",
                "second",
                "claimed change",
                "like for like?",
            ],
            4,
            pairs.iter().flat_map(compared).collect(),
        );
    }
    let fallen: Vec<&&External> = claims
        .iter()
        .filter(|r| r.standing != Standing::Current)
        .collect();
    if !fallen.is_empty() {
        doc.heading("Claims that were withdrawn or superseded");
        doc.text(
            "Their authors no longer stand by these, or replaced them. They are not compared.",
        );
        doc.table(
            &[
                "date", "engine", "model", "device", "standing", "why", "source", "figures",
            ],
            8,
            fallen.iter().map(|record| row(record, true)).collect(),
        );
    }
    let alone: Vec<&External> = (claims.iter().filter(current).copied())
        .filter(|record| record.pair.is_none())
        .collect();
    for (title, records) in [
        ("Single figures that were published", alone),
        ("Imported from other tools", of(Kind::Imported).collect()),
    ] {
        doc.heading(title);
        if records.is_empty() {
            doc.text(
                "None is recorded; `cargo xtask import` reads the result files of other tools.",
            );
            continue;
        }
        doc.table(
            &[
                "date", "engine", "model", "device", "weights", "tokens", "source", "figures",
            ],
            8,
            records.iter().map(|record| row(record, false)).collect(),
        );
    }
    ours(&mut doc, store);
    doc
}

/// Both halves of each pair, by the order of the records.
fn pairs<'s>(records: impl Iterator<Item = &'s External>) -> Vec<[&'s External; 2]> {
    let mut found: Vec<(&str, Vec<&External>)> = Vec::new();
    for record in records {
        let Some(pair) = record.pair.as_deref() else {
            continue;
        };
        match found.iter_mut().find(|(name, _)| *name == pair) {
            Some((_, halves)) => halves.push(record),
            None => found.push((pair, vec![record])),
        }
    }
    (found.into_iter())
        .filter_map(|(_, halves)| halves.try_into().ok())
        .collect()
}

/// A row for each figure that both halves have.
fn compared(pair: &[&External; 2]) -> Vec<Vec<String>> {
    let [a, b] = pair.map(Side::external);
    Figure::ALL
        .into_iter()
        .filter(|figure| a.figure(*figure).and(b.figure(*figure)).is_some())
        .map(|figure| {
            let found = compare(&a, &b, figure);
            let value = |side: &Side| or_none(side.figure(figure), |value| shown(figure, value));
            vec![
                a.model.clone(),
                format!("{}, {}", a.hardware, a.date),
                format!("{}, {}", a.engine, b.engine),
                figure.to_string(),
                value(&a),
                value(&b),
                or_none(found.ratio, |ratio| {
                    signed_pct(100.0 * (1.0 / ratio - 1.0), 1)
                }),
                verdict(&found),
            ]
        })
        .collect()
}

fn verdict(found: &Comparison) -> String {
    let reasons = [found.refused.as_slice(), &found.labels].concat();
    match reasons.is_empty() {
        true => found.word().to_owned(),
        false => format!("{}: {}", found.word(), reasons.join("; ")),
    }
}

fn shown(figure: Figure, value: f64) -> String {
    let digits = if value < 100.0 { 2 } else { 1 };
    let text = format!("{value:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {}", figure.unit())
}

fn row(record: &External, fallen: bool) -> Vec<String> {
    let figures: Vec<String> = Figure::ALL
        .into_iter()
        .filter_map(|figure| {
            let value = figure.of(record)?;
            Some(format!("{figure} {}", shown(figure, value)))
        })
        .collect();
    let version = record.engine_version.as_deref().unwrap_or_default();
    let backend = record
        .backend
        .as_ref()
        .map(|backend| format!(", {backend}"));
    let mut cells = vec![
        record.date.clone(),
        format!("{} {version}", record.engine).trim_end().to_owned() + &backend.unwrap_or_default(),
        record.model.clone(),
        record.hardware.clone(),
    ];
    if fallen {
        let standing = match record.standing {
            Standing::Withdrawn => "**WITHDRAWN**".to_owned(),
            Standing::Current | Standing::Superseded => record.standing.to_string(),
        };
        cells.push(standing);
        cells.push(or_none(record.why.as_ref(), Clone::clone));
    } else {
        let bytes = record.bytes_per_weight;
        let bytes = bytes.map(|bytes| format!("{bytes:.3} bytes per weight"));
        let weights = [record.quantisation.clone(), bytes];
        let weights: Vec<String> = weights.into_iter().flatten().collect();
        cells.push(if weights.is_empty() {
            NONE.into()
        } else {
            weights.join(", ")
        });
        let count = |what: &str, tokens: Option<u32>| tokens.map(|n| format!("{what} {n}"));
        let tokens = [
            count("prompt", record.prompt_tokens),
            count("decoded", record.decode_tokens),
        ];
        let tokens: Vec<String> = tokens.into_iter().flatten().collect();
        cells.push(if tokens.is_empty() {
            "not known".into()
        } else {
            tokens.join(", ")
        });
    }
    let notes: String = record
        .notes
        .iter()
        .map(|note| format!("; {note}"))
        .collect();
    cells.push(format!("{}{notes}", record.source));
    cells.push(figures.join(", "));
    cells
}

/// Published runs of this workbench beside the figures of the same model and device.
fn ours(doc: &mut Doc, store: &Store) {
    doc.heading("This workbench beside them");
    let published = store
        .runs
        .iter()
        .filter(|run| run.run.mode == Mode::Published);
    let mut rows = Vec::new();
    for run in published {
        let standing = store.standing(&run.run.id);
        // The arm of the defaults is not known; every arm but the slowed one is shown.
        let arms = run.run.plans().filter(|(arm, _)| *arm != Arm::Slowed);
        for (arm, _) in arms {
            let Ok(Some(ours)) = Side::arm(run, arm, standing) else {
                continue;
            };
            for record in &store.external {
                let theirs = Side::external(record);
                for figure in [Figure::Decode, Figure::Prefill, Figure::Ttft] {
                    let found = compare(&theirs, &ours, figure);
                    let Some(ratio) = found.ratio else {
                        continue;
                    };
                    rows.push(vec![
                        format!(
                            "[{}]({}/README.md), {}",
                            run.run.id, run.run.id, ours.engine
                        ),
                        format!("{} ({})", theirs.engine, theirs.record),
                        figure.to_string(),
                        or_none(ours.figure(figure), |value| shown(figure, value)),
                        or_none(theirs.figure(figure), |value| shown(figure, value)),
                        format!("{ratio:.2}"),
                        verdict(&found),
                    ]);
                }
            }
        }
    }
    if rows.is_empty() {
        doc.text(
            "No published run is recorded of a model and device of which another engine's figure \
             is, so nothing is compared.",
        );
        return;
    }
    doc.table(
        &[
            "run",
            "other engine",
            "figure",
            "ours",
            "theirs",
            "ours / theirs",
            "like for like?",
        ],
        3,
        rows,
    );
}

/// Decode rates of the pairs.
fn picture(pairs: &[[&External; 2]]) -> Option<Picture> {
    let bars: Vec<_> = (pairs.iter())
        .filter_map(|pair| Some((pair, pair[0].decode_tok_s?, pair[1].decode_tok_s?)))
        .collect();
    let most = bars
        .iter()
        .fold(0.0_f64, |most, (_, a, b)| most.max(*a).max(*b));
    if bars.is_empty() {
        return None;
    }
    let mut devices: BTreeMap<&str, ()> = BTreeMap::new();
    devices.extend(
        bars.iter()
            .map(|(pair, ..)| (pair[0].hardware.as_str(), ())),
    );
    let title = format!(
        "Published claims: tokens per second while decoding, {}",
        devices.into_keys().collect::<Vec<_>>().join(", ")
    );
    let (top, group) = (70.0, 82.0);
    let bottom = top + group * bars.len() as f64;
    let x = Scale::linear((0.0, 1.4 * most), (20.0, WIDTH - 20.0));
    let mut svg = Svg::new(bottom + 52.0, &title);
    for tick in x.ticks(5) {
        svg.line("faint thin", (x.at(tick), top - 8.0), (x.at(tick), bottom));
        svg.text(
            (x.at(tick), bottom + 18.0),
            Anchor::Middle,
            "ink",
            &tick_label(tick),
        );
    }
    svg.text(
        (WIDTH / 2.0, bottom + 42.0),
        Anchor::Middle,
        "ink",
        "tokens per second",
    );
    for (at, (pair, first, second)) in bars.iter().enumerate() {
        let y = top + group * at as f64;
        let name = format!("{}, {}", pair[0].model, pair[0].date);
        svg.text((20.0, y + 10.0), Anchor::Start, "ink", &name);
        for (line, (record, value, class)) in
            [(pair[0], *first, "blue"), (pair[1], *second, "gold")]
                .into_iter()
                .enumerate()
        {
            let above = y + 18.0 + 26.0 * line as f64;
            let hover = format!(
                "{}: {value} tok/s, {}, {} ({})",
                record.engine, record.hardware, record.date, record.source
            );
            svg.rect(class, (20.0, above), (x.at(value) - 20.0, 20.0), &hover);
            svg.text(
                (x.at(value) + 6.0, above + 15.0),
                Anchor::Start,
                "ink",
                &format!("{} {}", record.engine, tick_label(value)),
            );
        }
    }
    Some(Picture {
        file: "claims.svg".to_owned(),
        alt: title,
        caption: "Figures of the engines' authors, not of this workbench; what sets the two of a \
                  pair apart stands in the table."
            .to_owned(),
        svg,
    })
}
