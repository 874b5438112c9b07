//! What every block says of a contrast, with the estimate, its interval, the
//! margin, and the control.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use results::journal::AbRun;
use results::record::{Arm, Mode};
use results::stats::{Contrast, Kind, percent};
use results::summary::{Analysis, signed_pct};

use super::{
    FAINT, GREY, INK, Key, decimals, draw_marker, look, padded, page, shorten, text, within,
};
use crate::Result;

/// Effect and control stand side by side in their block, pixels.
const APART: i32 = 5;

/// Draws one contrast of a run in the picture `file`.
pub(crate) fn draw(
    run: &AbRun,
    analysis: &Analysis,
    contrast: &Contrast,
    file: &'static str,
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
    let last = blocks.len() as i32 + 1;
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
        Key::Dashes(GREY),
        format!("margin \u{b1}{:.2} %", 100.0 * judgement.margin),
    ));

    let digits = decimals(hi - lo);
    page(file, &title, &legend, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_right(20)
            .margin_top(8)
            .y_label_area_size(72)
            .x_label_area_size(48)
            .build_cartesian_2d(0..last, lo..hi)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_desc("block, in the order timed")
            .x_labels(12)
            .x_label_formatter(&|block| {
                if (1..last).contains(block) {
                    block.to_string()
                } else {
                    String::new()
                }
            })
            .y_desc(axis)
            .y_label_formatter(&|pct| axis_pct(*pct, digits))
            .y_labels(8)
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style(text(14, HPos::Center))
            .axis_desc_style(text(15, HPos::Center))
            .draw()?;
        if let Some((from, to)) = band {
            let whole = [(0, from), (last, to)];
            chart.draw_series([Rectangle::new(whole, effect_colour.mix(0.2).filled())])?;
        }
        chart.draw_series([PathElement::new([(0, 0.0), (last, 0.0)], INK)])?;
        for margin in margins {
            chart.draw_series(DashedLineSeries::new(
                [(0, margin), (last, margin)],
                7,
                5,
                GREY.stroke_width(2),
            ))?;
        }
        let line = [(0, centre), (last, centre)];
        chart.draw_series([PathElement::new(line, effect_colour.stroke_width(2))])?;
        for (at, (&change, &control)) in change.iter().zip(&control).enumerate() {
            let block = at as i32 + 1;
            let (x, y) = within(area, chart.backend_coord(&(block, control)));
            draw_marker(area, (x + APART, y), Arm::Control, 0.9)?;
            let (x, y) = within(area, chart.backend_coord(&(block, change)));
            draw_marker(area, (x - APART, y), Arm::B, 0.9)?;
        }
        Ok(())
    })
    .map(Some)
}

/// As [`signed_pct`] without the unit, which the axis names.
fn axis_pct(value: f64, decimals: usize) -> String {
    signed_pct(value, decimals)
        .trim_end_matches(" %")
        .to_owned()
}
