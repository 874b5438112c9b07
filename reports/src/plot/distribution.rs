//! Time per token of every element, by arm: each element a point, and beside
//! them the quartiles.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use results::journal::AbRun;
use results::record::Arm;
use results::stats::quartiles;
use results::summary::Analysis;

use super::{FAINT, INK, decimals, draw_marker, look, padded, page, shorten, text, within};
use crate::Result;

/// Sideways places of the points of an arm, pixels, used in turn.
const SPREAD: [i32; 7] = [0, 18, -12, 6, -18, 12, -6];

pub(crate) fn draw(run: &AbRun, analysis: &Analysis) -> Result<Option<String>> {
    let mut arms = Vec::new();
    for &arm in run.run.timed() {
        let values = analysis.ms_per_token(arm);
        if values.is_empty() {
            return Ok(None);
        }
        let box_ = quartiles(&values)?;
        arms.push((arm, values, box_));
    }
    let Some((lo, hi)) = padded(
        arms.iter()
            .flat_map(|(_, values, _)| values.iter().copied()),
    ) else {
        return Ok(None);
    };
    let title = format!(
        "{}: time per token of every element, by arm",
        run.run.model.honest_title()
    );
    let unit = format!("{} time per token (ms)", run.run.metric);
    let digits = decimals(hi - lo);
    // What fits below an arm, characters.
    let room = 72 / arms.len();
    let caption = |arm: Arm| {
        let name = &run.run.plan(arm).name;
        match arm {
            Arm::Control => format!("A': {} (control)", shorten(name, room.saturating_sub(10))),
            Arm::A | Arm::B | Arm::C | Arm::D | Arm::Slowed => {
                format!("{arm}: {}", shorten(name, room))
            }
        }
    };
    page("distribution.svg", &title, &[], |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_right(20)
            .y_label_area_size(72)
            .x_label_area_size(56)
            .build_cartesian_2d(0.0..arms.len() as f64, lo..hi)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc(unit.as_str())
            .y_label_formatter(&|ms| format!("{ms:.digits$}"))
            .y_labels(8)
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style(text(14, HPos::Left))
            .axis_desc_style(text(15, HPos::Center))
            .draw()?;
        for (at, (arm, values, [q1, q2, q3])) in arms.iter().enumerate() {
            let x = at as f64 + 0.4;
            for (index, &value) in values.iter().enumerate() {
                let (px, py) = within(area, chart.backend_coord(&(x, value)));
                let px = px + SPREAD[index % SPREAD.len()];
                draw_marker(area, (px, py), *arm, 0.6)?;
            }
            let (colour, _) = look(*arm);
            let (left, right) = (at as f64 + 0.62, at as f64 + 0.78);
            chart.draw_series([
                Rectangle::new([(left, *q1), (right, *q3)], colour.mix(0.2).filled()),
                Rectangle::new([(left, *q1), (right, *q3)], colour.stroke_width(1)),
            ])?;
            let middle = [(left, *q2), (right, *q2)];
            chart.draw_series([PathElement::new(middle, colour.stroke_width(3))])?;

            let (px, py) = within(area, chart.backend_coord(&(at as f64 + 0.5, lo)));
            let below = |down: i32| (px, py + down);
            area.draw_text(&caption(*arm), &text(15, HPos::Center), below(18))?;
            let numbers = format!(
                "median {q2:.digits$} ms, {} elements",
                values.len(),
                digits = digits.max(2)
            );
            area.draw_text(&numbers, &text(13, HPos::Center), below(38))?;
        }
        Ok(())
    })
    .map(Some)
}
