//! What every block says of a contrast, with the estimate, its interval, the
//! margin, and the control.

use results::journal::AbRun;
use results::record::{Arm, Mode};
use results::stats::{Contrast, Kind, percent};
use results::summary::{Analysis, signed_pct};

use super::{Axes, Frame, Key, LEFT, RIGHT, look, padded, shorten};
use crate::Result;

/// Effect and control stand side by side in their block, pixels.
const APART: f64 = 3.5;

/// Draws one contrast of a run.
pub(crate) fn draw(
    run: &AbRun,
    analysis: &Analysis,
    contrast: &Contrast,
) -> Result<Option<String>> {
    let Some(effect) = contrast.effect() else {
        return Ok(None);
    };
    let judgement = &contrast.judgement;
    let blocks = &analysis.blocks.complete;
    let change: Vec<f64> = contrast.values.iter().copied().map(percent).collect();
    let control: Vec<f64> = blocks
        .iter()
        .map(|b| percent(b.control_log_ratio()))
        .collect();
    let centre = percent(effect.centre);
    let band = effect.ci.map(|ci| (percent(ci.lo), percent(ci.hi)));
    let level = effect.ci.map_or_else(String::new, |ci| ci.named_level());
    let estimator = match run.run.mode {
        Mode::Screening => "Hodges\u{2013}Lehmann",
        Mode::Published => "mean of replicates",
    };
    let margins = [percent(-judgement.margin), percent(judgement.margin)];

    let shown = change
        .iter()
        .chain(&control)
        .copied()
        .chain(margins)
        .chain([0.0]);
    let Some((lo, hi)) = padded(shown.chain(band.into_iter().flat_map(|(lo, hi)| [lo, hi]))) else {
        return Ok(None);
    };
    let last = blocks.len() as f64 + 1.0;
    let name = |arm| shorten(&run.run.plan(arm).name, 14);
    let (effect_colour, _) = look(Arm::B);
    let of = shorten(&contrast.of, 28);
    let (what, label, axis) = match contrast.kind {
        Kind::Change => (
            format!("change of {} time", run.run.metric),
            format!("B / A ({} against {})", name(Arm::B), name(Arm::A)),
            "change of time, B / A \u{2212} 1 (%)",
        ),
        Kind::MainEffect => (
            format!("change of {} time by {of}", run.run.metric),
            format!("{of}, averaged over the other flag"),
            "change of time (%)",
        ),
        Kind::Interaction => (
            format!("interaction of {of}"),
            "(D / B) / (C / A)".to_owned(),
            "interaction, (D / B) / (C / A) \u{2212} 1 (%)",
        ),
    };

    let title = format!("{}: {what} in each block", run.run.model.honest_title());
    let mut legend = vec![
        (Key::Marker(Arm::B), label),
        (
            Key::Marker(Arm::Control),
            "A' / A (control: same code)".to_owned(),
        ),
        (
            Key::Line(effect_colour),
            format!("{estimator} {}", signed_pct(centre, 2)),
        ),
    ];
    if let Some((lo, hi)) = band {
        legend.push((
            Key::Band(effect_colour),
            format!(
                "{level} % interval {} to {}",
                signed_pct(lo, 2),
                signed_pct(hi, 2)
            ),
        ));
    }
    legend.push((
        Key::Dashes("grey"),
        format!("margin \u{b1}{:.2} %", 100.0 * judgement.margin),
    ));

    let axes = Axes {
        x: (0.0, last),
        counted: true,
        x_label: "block, in the order timed",
        y: (lo, hi),
        y_label: axis,
    };
    let mut frame = Frame::new(&title, &legend, &axes);
    if let Some((from, to)) = band {
        let (top, bottom) = (frame.y.at(to), frame.y.at(from));
        let class = format!("{effect_colour} band");
        (frame.svg).rect(&class, (LEFT, top), (RIGHT - LEFT, bottom - top), "");
    }
    frame.across("ink thin", 0.0);
    for margin in margins {
        frame.across("grey dashed", margin);
    }
    frame.across(effect_colour, centre);
    for (at, (&change, &control)) in change.iter().zip(&control).enumerate() {
        let block = at as f64 + 1.0;
        let hover =
            |what: &str, value: f64| format!("block {block}, {what}: {}", signed_pct(value, 2));
        let of_control = hover("control", control);
        frame.value(Arm::Control, (block, control), APART, false, &of_control);
        let of_change = hover("change", change);
        frame.value(Arm::B, (block, change), -APART, false, &of_change);
    }
    Ok(Some(frame.svg.file()))
}
