//! Time per token against the tokens already in the context.

use std::collections::{BTreeMap, BTreeSet};

use results::journal::AbRun;
use results::record::{Arm, Metric};
use results::stats::median;
use results::summary::Analysis;

use super::{Axes, Frame, Key, look, padded};
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
    let axes = Axes {
        x: (from, to),
        counted: true,
        x_label: "tokens already in the context",
        y: (lo, hi),
        y_label: "time per token (ms)",
    };
    let mut frame = Frame::new(&title, &legend, &axes);
    for (arm, series) in &series {
        for (&context, times) in series {
            for &ms in times {
                let hover = format!("{arm} after {context} tokens: {ms:.4} ms");
                let at = (f64::from(context), ms);
                frame.value(*arm, at, aside(*arm), true, &hover);
            }
        }
    }
    for (arm, line) in &lines {
        let points: Vec<(f64, f64)> = (line.iter())
            .map(|&(context, ms)| (frame.x.at(context), frame.y.at(ms)))
            .collect();
        frame.svg.path(look(*arm).0, &points);
    }
    Ok(Some(frame.svg.file()))
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
const fn aside(arm: Arm) -> f64 {
    match arm {
        Arm::A => -4.0,
        Arm::Control | Arm::Slowed => 0.0,
        Arm::B => 4.0,
        Arm::C => -12.0,
        Arm::D => 12.0,
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
