//! Time per token of every element, by arm: each element a point, and beside
//! them the quartiles.

use results::journal::AbRun;
use results::record::{Arm, Metric};
use results::stats::quartiles;
use results::summary::Analysis;

use super::{Axes, Frame, Key, decimals, look, padded};
use crate::Result;
use crate::svg::Anchor;

/// Sideways places of the points of an arm, pixels, used in turn.
const SPREAD: [f64; 7] = [0.0, 13.0, -9.0, 5.0, -13.0, 9.0, -5.0];

pub(crate) fn draw(run: &AbRun, analysis: &Analysis) -> Result<Option<String>> {
    let mut arms = Vec::new();
    for &arm in run.run.timed() {
        let scale = match run.run.metric {
            Metric::Dispatch => 1e3,
            Metric::Decode | Metric::Prefill | Metric::SecondTurn => 1.0,
        };
        let values: Vec<f64> = (analysis.ms_per_token(arm).into_iter())
            .map(|ms| scale * ms)
            .collect();
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
        "{}: time per {} of every element, by arm",
        run.run.model.honest_title(),
        run.run.metric.unit()
    );
    let time = match run.run.metric {
        Metric::Dispatch => "us",
        Metric::Decode | Metric::Prefill | Metric::SecondTurn => "ms",
    };
    let unit = match run.run.metric {
        Metric::Dispatch => "time per dispatch (us)".to_owned(),
        metric @ (Metric::Decode | Metric::Prefill | Metric::SecondTurn) => {
            format!("{metric} time per token (ms)")
        }
    };
    let digits = decimals(hi - lo);
    let legend: Vec<(Key, String)> = (run.run.timed().iter())
        .map(|&arm| {
            let name = &run.run.plan(arm).name;
            let label = match arm {
                Arm::Control => format!("A': {name} again (control)"),
                Arm::A | Arm::B | Arm::C | Arm::D | Arm::Slowed => format!("{arm}: {name}"),
            };
            (Key::Marker(arm), label)
        })
        .collect();
    let axes = Axes {
        x: (0.0, arms.len() as f64),
        counted: false,
        x_label: "",
        y: (lo, hi),
        y_label: &unit,
    };
    let mut frame = Frame::new(&title, &legend, &axes);
    for (at, (arm, values, [q1, q2, q3])) in arms.iter().enumerate() {
        let at = at as f64;
        for (index, &value) in values.iter().enumerate() {
            let hover = format!("{arm}, element {index}: {value:.4} {time}");
            let aside = SPREAD[index % SPREAD.len()];
            frame.value(*arm, (at + 0.35, value), aside, true, &hover);
        }
        let (colour, _) = look(*arm);
        let (left, right) = (frame.x.at(at + 0.62), frame.x.at(at + 0.8));
        let (low, middle, high) = (frame.y.at(*q1), frame.y.at(*q2), frame.y.at(*q3));
        let quartiles = format!("{arm}: quartiles {q1:.4}, {q2:.4} and {q3:.4} {time}");
        let svg = &mut frame.svg;
        svg.rect(
            &format!("{colour} band"),
            (left, high),
            (right - left, low - high),
            &quartiles,
        );
        for (class, y) in [("thin", low), ("", middle), ("thin", high)] {
            svg.line(&format!("{colour} {class}"), (left, y), (right, y));
        }
        let middle = frame.x.at(at + 0.5);
        let below = |down: f64| (middle, frame.bottom + down);
        // Six medians stand beside each other without their unit, which the axis has.
        let unit = if arms.len() < 6 { time } else { "" };
        let median = format!("{q2:.digits$} {unit}", digits = digits.max(2));
        let median = median.trim_end();
        frame
            .svg
            .text(below(19.0), Anchor::Middle, "ink", &arm.to_string());
        frame.svg.text(below(38.0), Anchor::Middle, "grey", median);
    }
    Ok(Some(frame.svg.file()))
}
