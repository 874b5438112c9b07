//! Time per token against the tokens already in the context.

use std::collections::{BTreeMap, BTreeSet};

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;
use results::journal::AbRun;
use results::record::{Arm, Metric};
use results::stats::median;
use results::summary::Analysis;

use super::{FAINT, INK, Key, decimals, draw_marker, look, padded, page, text, within};
use crate::Result;

/// Largest ratio of two times of one arm at one length of a sweep. Beyond it the clock
/// was still rising, and a median says nothing.
const UNSETTLED: f64 = 1.25;

/// Times per token (ms) by context length (tokens).
type Series = BTreeMap<u32, Vec<f64>>;

pub(crate) fn draw(run: &AbRun, analysis: &Analysis) -> Result<Option<String>> {
    if analysis.withheld.is_some() {
        return Ok(None);
    }
    let series: Vec<(Arm, Series)> = (run.run.plans())
        .map(|(arm, _)| (arm, series(run, arm)))
        .collect();
    let series = if run.context.is_empty() {
        series
    } else {
        settled(series)
    };
    let times = || series.iter().flat_map(|(_, s)| s.values().flatten());
    let contexts = || series.iter().flat_map(|(_, s)| s.keys());
    let Some((lo, hi)) = padded(times().copied()) else {
        return Ok(None);
    };
    let Some((from, to)) = padded(contexts().map(|&context| f64::from(context))) else {
        return Ok(None);
    };
    // Fewer than two lengths are no curve.
    if contexts().min() == contexts().max() {
        return Ok(None);
    }
    let mut lines = Vec::new();
    for (arm, series) in &series {
        let mut line = Vec::with_capacity(series.len());
        for (&context, times) in series {
            line.push((f64::from(context), median(times)?));
        }
        lines.push((*arm, line));
    }

    let title = format!(
        "{}: time per token against context length",
        run.run.model.honest_title()
    );
    let legend: Vec<(Key, String)> = (run.run.plans())
        .flat_map(|(arm, plan)| {
            let (colour, _) = look(arm);
            [
                (Key::Marker(arm), format!("{arm}: {}", plan.name)),
                (Key::Line(colour), format!("median of {arm}")),
            ]
        })
        .collect();
    let digits = decimals(hi - lo);
    page("context.svg", &title, &legend, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin_right(20)
            .margin_top(8)
            .y_label_area_size(72)
            .x_label_area_size(48)
            .build_cartesian_2d(from..to, lo..hi)?;
        chart
            .configure_mesh()
            .x_desc("tokens already in the context")
            .x_labels(9)
            .x_label_formatter(&|context| format!("{context:.0}"))
            .y_desc("time per token (ms)")
            .y_label_formatter(&|ms| format!("{ms:.digits$}"))
            .y_labels(8)
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style(text(14, HPos::Center))
            .axis_desc_style(text(15, HPos::Center))
            .draw()?;
        for (arm, series) in &series {
            for (&context, times) in series {
                for &ms in times {
                    let at = chart.backend_coord(&(f64::from(context), ms));
                    let (x, y) = within(area, at);
                    draw_marker(area, (x + aside(*arm), y), *arm, 0.45)?;
                }
            }
        }
        for (arm, line) in &lines {
            let (colour, _) = look(*arm);
            chart.draw_series(LineSeries::new(
                line.iter().copied(),
                colour.stroke_width(2),
            ))?;
        }
        Ok(())
    })
    .map(Some)
}

/// The same without the lengths at which an arm's times are too far apart.
fn settled(mut series: Vec<(Arm, Series)>) -> Vec<(Arm, Series)> {
    let apart = |times: &[f64]| {
        let most = times.iter().copied().fold(f64::MIN, f64::max);
        let least = times.iter().copied().fold(f64::MAX, f64::min);
        most > UNSETTLED * least
    };
    let unsettled: BTreeSet<u32> = series
        .iter()
        .flat_map(|(_, series)| series)
        .filter(|(_, times)| apart(times))
        .map(|(&context, _)| context)
        .collect();
    for (_, series) in &mut series {
        series.retain(|context, _| !unsettled.contains(context));
    }
    series
}

/// Points of the arms at one length stand beside each other, pixels.
fn aside(arm: Arm) -> i32 {
    match arm {
        Arm::A => -4,
        Arm::Control | Arm::Slowed => 0,
        Arm::B => 4,
        Arm::C => -12,
        Arm::D => 12,
    }
}

/// The sweep, or the parts of the timed elements where there was no sweep.
fn series(run: &AbRun, arm: Arm) -> Series {
    let mut series = Series::new();
    let mut add = |context: u32, tokens: u32, wall_ns: u64| {
        let ms = wall_ns as f64 * 1e-6 / f64::from(tokens);
        series.entry(context).or_default().push(ms);
    };
    if !run.context.is_empty() {
        for point in run.context.iter().filter(|point| point.arm == arm) {
            add(point.context, point.tokens, point.wall_ns);
        }
    } else if run.run.metric == Metric::Decode {
        for sample in run.samples.iter().filter(|sample| sample.arm == arm) {
            for span in &sample.spans {
                add(span.context, span.tokens, span.wall_ns);
            }
        }
    }
    series
}
