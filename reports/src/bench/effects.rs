//! Effects with their intervals, one below the other.

use results::record::Metric;
use results::summary::signed_pct;

use super::Summarised;
use crate::doc::Picture;
use crate::svg::{Anchor, Marker, SERIES, Scale, Svg, WIDTH, tick_label};

/// Height of one effect: its name, and below it the interval.
const ROW: f64 = 44.0;

/// The effects of runs; none without a value.
pub(super) fn picture<'s>(
    file: &str,
    title: &str,
    runs: impl Iterator<Item = &'s Summarised<'s>>,
) -> Option<Picture> {
    let effects: Vec<_> = runs
        .filter(|run| !run.summary.is_invalid())
        .flat_map(|run| run.effects())
        .filter_map(|effect| Some((effect.effect?, effect)))
        .collect();
    let ends = |f: fn(f64, f64) -> f64, start: f64| {
        effects.iter().fold(start, |end, (effect, e)| {
            let [low, high] = e.interval.unwrap_or([*effect, *effect]);
            let margin = e.of.summary.margin_pct;
            [low, high, -margin, margin].into_iter().fold(end, f)
        })
    };
    if effects.is_empty() {
        return None;
    }
    let (low, high) = (ends(f64::min, 0.0), ends(f64::max, 0.0));
    let room = 0.06 * (high - low);
    let top = 58.0;
    let bottom = top + ROW * effects.len() as f64;
    let x = Scale::linear((low - room, high + room), (20.0, WIDTH - 20.0));
    let mut svg = Svg::new(bottom + 56.0, title);
    for tick in x.ticks(6) {
        let at = x.at(tick);
        svg.line("faint thin", (at, top - 6.0), (at, bottom));
        svg.text(
            (at, bottom + 18.0),
            Anchor::Middle,
            "ink",
            &tick_label(tick),
        );
    }
    svg.line("grey", (x.at(0.0), top - 6.0), (x.at(0.0), bottom));
    svg.text(
        (WIDTH / 2.0, bottom + 42.0),
        Anchor::Middle,
        "ink",
        "change of time (%): left of 0 is faster",
    );
    for (at, (effect, e)) in effects.iter().enumerate() {
        let y = top + ROW * at as f64;
        let run = &e.of.run.run;
        let metric = match run.metric {
            Metric::Decode => format!(", {} tokens", run.prompt.tokens),
            Metric::Prefill | Metric::SecondTurn => {
                format!(", {} tokens, {}", run.prompt.tokens, run.metric)
            }
            Metric::Dispatch => format!(", {}", run.prompt.name),
        };
        let name = format!(
            "{}, {}{metric}, {}",
            e.name,
            run.model.name,
            short(&run.adapter.name)
        );
        svg.text((20.0, y + 12.0), Anchor::Start, "ink halo", &name);
        let value = signed_pct(*effect, 1);
        svg.text((WIDTH - 16.0, y + 12.0), Anchor::End, "ink halo", &value);
        let line = y + 28.0;
        let margin = e.of.summary.margin_pct;
        let band = (x.at(-margin), x.at(margin));
        svg.rect(
            "grey band",
            (band.0, line - 8.0),
            (band.1 - band.0, 16.0),
            &format!("margin \u{b1}{margin:.2} %"),
        );
        let (class, marker) = match e.verdict.as_str() {
            "FASTER" | "REINFORCING" => SERIES[0],
            "SLOWER" | "INTERFERING" => SERIES[1],
            "EQUIVALENT" | "INDEPENDENT" => ("green", Marker::Diamond),
            _ => ("grey", Marker::Ring),
        };
        let interval = e.interval.map_or_else(String::new, |[low, high]| {
            svg.line(class, (x.at(low), line), (x.at(high), line));
            format!(", {} to {}", signed_pct(low, 2), signed_pct(high, 2))
        });
        let hover = format!(
            "{}: {} on {}: {}{interval}, {} ({} of {})",
            run.id,
            e.name,
            run.adapter.name,
            signed_pct(*effect, 2),
            e.verdict,
            run.metric,
            e.of.day(),
        );
        svg.marker((class, marker), (x.at(*effect), line), &hover);
    }
    Some(Picture {
        file: file.to_owned(),
        alt: title.to_owned(),
        caption: "Each line is an interval, each marker its estimate: a circle where time is \
                  saved, a square where it is lost, a diamond where both arms are equivalent, a \
                  ring where nothing was decided. The grey band is the margin."
            .to_owned(),
        svg,
    })
}

/// An adapter's name without what stands in brackets.
fn short(adapter: &str) -> &str {
    adapter.split(" (").next().unwrap_or(adapter)
}
