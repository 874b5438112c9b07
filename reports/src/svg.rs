//! Pictures as SVG: shapes with classes, whose colours follow the reader's light or
//! dark page, and titles that a page shows when a value is pointed at. Places and ticks of
//! the axes are those of plotters, whose own writer has neither classes nor titles.

use plotters::coord::combinators::{IntoLogRange, LogCoord};
use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use std::fmt::Write;

/// Width of every picture. A phone of 360 pixels shows it at two thirds, so the
/// smallest text is 14.
pub(crate) const WIDTH: f64 = 540.0;

/// Characters of a line of a title.
pub(crate) const TITLE: usize = 48;

/// Colours of Okabe and Ito, by the name of the class; the second is for dark pages.
const COLOURS: [(&str, &str, &str); 9] = [
    ("page", "#ffffff", "#0d1117"),
    ("ink", "#222222", "#e6edf3"),
    ("grey", "#5f5f5f", "#9da7b3"),
    ("faint", "#dddddd", "#30363d"),
    ("blue", "#0072b2", "#58b5ec"),
    ("red", "#d55e00", "#ff9449"),
    ("green", "#008a64", "#33c9a1"),
    ("pink", "#b5568b", "#e79ac6"),
    ("gold", "#a36a00", "#f0b93f"),
];

/// A shape that tells series apart without colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Circle,
    Triangle,
    Square,
    Diamond,
    Bar,
    Cross,
    Ring,
}

/// Colours and markers of series, in turn.
pub(crate) const SERIES: [(&str, Marker); 8] = [
    ("blue", Marker::Circle),
    ("red", Marker::Square),
    ("green", Marker::Triangle),
    ("pink", Marker::Diamond),
    ("gold", Marker::Bar),
    ("ink", Marker::Cross),
    ("blue", Marker::Ring),
    ("grey", Marker::Square),
];

/// Where a text stands against its point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture that is being drawn.
#[derive(Debug)]
pub(crate) struct Svg {
    height: f64,
    title: String,
    body: String,
}

impl Svg {
    pub(crate) fn new(height: f64, title: &str) -> Self {
        let mut svg = Self {
            height,
            title: title.to_owned(),
            body: String::new(),
        };
        let mut y = 24.0;
        for line in wrapped(title, TITLE) {
            svg.text((16.0, y), Anchor::Start, "ink title", &line);
            y += 21.0;
        }
        svg
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{}" y1="{}" x2="{}" y2="{}"/>"#,
            n(from.0),
            n(from.1),
            n(to.0),
            n(to.1)
        );
    }

    pub(crate) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points
            .iter()
            .map(|p| format!("{},{}", n(p.0), n(p.1)))
            .collect();
        let _ = writeln!(
            self.body,
            r#"<polyline class="{class}" points="{}"/>"#,
            points.join(" ")
        );
    }

    pub(crate) fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64), hover: &str) {
        let shape = format!(
            r#"<rect class="{class}" x="{}" y="{}" width="{}" height="{}""#,
            n(at.0),
            n(at.1),
            n(size.0.max(0.0)),
            n(size.1.max(0.0))
        );
        self.titled(&shape, "rect", hover);
    }

    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{}" y="{}" text-anchor="{anchor}">{}</text>"#,
            n(at.0),
            n(at.1),
            escaped(text)
        );
    }

    /// Text that stands on its side, read upwards.
    pub(crate) fn upright(&mut self, at: (f64, f64), class: &str, text: &str) {
        let (x, y) = (n(at.0), n(at.1));
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x}" y="{y}" text-anchor="middle" transform="rotate(-90 {x} {y})">{}</text>"#,
            escaped(text)
        );
    }

    pub(crate) fn marker(&mut self, (class, marker): (&str, Marker), at: (f64, f64), hover: &str) {
        let (x, y) = at;
        let polygon = |points: &[(f64, f64)]| {
            let points: Vec<String> = points
                .iter()
                .map(|(dx, dy)| format!("{},{}", n(x + dx), n(y + dy)))
                .collect();
            format!(r#"<polygon class="{class}" points="{}""#, points.join(" "))
        };
        let (shape, name) = match marker {
            Marker::Circle => (circle(class, at), "circle"),
            Marker::Ring => (circle(&format!("{class} hollow"), at), "circle"),
            Marker::Triangle => (polygon(&[(0.0, -5.5), (5.5, 4.5), (-5.5, 4.5)]), "polygon"),
            Marker::Square => (
                polygon(&[(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)]),
                "polygon",
            ),
            Marker::Diamond => (
                polygon(&[(0.0, -6.0), (6.0, 0.0), (0.0, 6.0), (-6.0, 0.0)]),
                "polygon",
            ),
            Marker::Bar => (
                polygon(&[(-6.0, -2.5), (6.0, -2.5), (6.0, 2.5), (-6.0, 2.5)]),
                "polygon",
            ),
            Marker::Cross => (
                polygon(&[
                    (-1.5, -5.5),
                    (1.5, -5.5),
                    (1.5, -1.5),
                    (5.5, -1.5),
                    (5.5, 1.5),
                    (1.5, 1.5),
                    (1.5, 5.5),
                    (-1.5, 5.5),
                    (-1.5, 1.5),
                    (-5.5, 1.5),
                    (-5.5, -1.5),
                    (-1.5, -1.5),
                ]),
                "polygon",
            ),
        };
        self.titled(&shape, name, hover);
    }

    /// A shape, with a title where there is something to say.
    fn titled(&mut self, shape: &str, name: &str, hover: &str) {
        let _ = if hover.is_empty() {
            writeln!(self.body, "{shape}/>")
        } else {
            writeln!(
                self.body,
                "{shape}><title>{}</title></{name}>",
                escaped(hover)
            )
        };
    }

    /// The picture as a file of its own.
    pub(crate) fn file(&self) -> String {
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{title}">
<style>
{style}</style>
<rect class="page" width="100%" height="100%"/>
{body}</svg>
"#,
            w = n(WIDTH),
            h = n(self.height),
            title = escaped(&self.title),
            style = style(),
            body = self.body,
        )
    }

    /// The picture as a part of a page, whose style it takes.
    pub(crate) fn inline(&self) -> String {
        format!(
            r#"<svg viewBox="0 0 {} {}" role="img" aria-label="{}">
{}</svg>
"#,
            n(WIDTH),
            n(self.height),
            escaped(&self.title),
            self.body
        )
    }
}

fn circle(class: &str, (x, y): (f64, f64)) -> String {
    format!(
        r#"<circle class="{class}" cx="{}" cy="{}" r="4.6""#,
        n(x),
        n(y)
    )
}

/// The rules of every class, light and dark.
pub(crate) fn style() -> String {
    let rules = |of: fn(&(&str, &'static str, &'static str)) -> &'static str| {
        let mut rules = String::new();
        for colour in &COLOURS {
            let (name, value) = (colour.0, of(colour));
            let _ = writeln!(rules, ".{name}{{fill:{value};stroke:none}}");
            if name == "page" {
                // Text over lines stays readable.
                let _ = writeln!(
                    rules,
                    "text.halo{{paint-order:stroke;stroke:{value};stroke-width:4px}}"
                );
            }
            let _ = writeln!(
                rules,
                "line.{name},polyline.{name},.{name}.hollow{{fill:none;stroke:{value};stroke-width:2}}"
            );
        }
        rules
    };
    format!(
        "text{{font-family:system-ui,sans-serif;font-size:14px}}\ntext.title{{font-size:16px;font-weight:600}}\n\
         {}line.thin{{stroke-width:1}}\n.dashed{{stroke-dasharray:7 5}}\n.band{{fill-opacity:.18}}\n.soft{{fill-opacity:.55}}\n\
         @media (prefers-color-scheme:dark){{\n{}line.thin{{stroke-width:1}}\n}}\n",
        rules(|colour| colour.1),
        rules(|colour| colour.2),
    )
}

/// A length with at most one decimal.
fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    let short = text.strip_suffix(".0").unwrap_or(&text);
    if short == "-0" {
        "0".to_owned()
    } else {
        short.to_owned()
    }
}

/// Text inside XML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Lines of at most `room` characters, broken between words.
pub(crate) fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) | None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A scale from values to pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    values: (f64, f64),
    pixels: (f64, f64),
    log: bool,
}

impl Scale {
    pub(crate) const fn linear(values: (f64, f64), pixels: (f64, f64)) -> Self {
        Self {
            values,
            pixels,
            log: false,
        }
    }

    /// By powers of ten; every value is above 0.
    pub(crate) const fn log(values: (f64, f64), pixels: (f64, f64)) -> Self {
        Self {
            values,
            pixels,
            log: true,
        }
    }

    /// The pixel of a value, to a hundredth.
    pub(crate) fn at(self, value: f64) -> f64 {
        let hundredths = |pixel: f64| (100.0 * pixel).round() as i32;
        let limits = (hundredths(self.pixels.0), hundredths(self.pixels.1));
        let (lo, hi) = self.values;
        let at = if self.log {
            LogCoord::from((lo..hi).log_scale()).map(&value, limits)
        } else {
            RangedCoordf64::from(lo..hi).map(&value, limits)
        };
        f64::from(at) / 100.0
    }

    /// Round values for the axis: at most `count` of them; by powers of ten 1, 2 and 5 of
    /// each power, where they are so few.
    pub(crate) fn ticks(self, count: usize) -> Vec<f64> {
        let (lo, hi) = self.values;
        if !self.log {
            return RangedCoordf64::from(lo..hi).key_points(count);
        }
        let powers = (lo.log10().floor() as i32)..=(hi.log10().ceil() as i32);
        let of_power = |power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power));
        let mut ticks: Vec<f64> = powers.flat_map(of_power).collect();
        ticks.retain(|tick| (lo..=hi).contains(tick));
        if ticks.len() > count {
            ticks.retain(|tick| (tick.log10().fract()).abs() < 1e-9);
        }
        ticks
    }
}

/// A number with the digits that an axis needs.
pub(crate) fn tick_label(value: f64) -> String {
    let size = value.abs();
    let sign = if value < 0.0 { "\u{2212}" } else { "" };
    match size {
        0.0 => "0".to_owned(),
        s if s >= 1e9 => format!("{sign}{}G", short(s / 1e9)),
        s if s >= 1e6 => format!("{sign}{}M", short(s / 1e6)),
        s if s >= 1e4 => format!("{sign}{}k", short(s / 1e3)),
        s => format!("{sign}{}", short(s)),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let linear = Scale::linear((-78.3, 14.0), (0.0, 100.0));
        assert_eq!(linear.ticks(6), [-60.0, -40.0, -20.0, 0.0], "linear");
        let log = Scale::log((1.5, 900.0), (0.0, 100.0));
        assert_eq!(
            log.ticks(12),
            [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0],
            "log"
        );
        assert_eq!(log.ticks(4), [10.0, 100.0], "fewer");
        assert!((log.at(900.0) - 100.0).abs() < 1e-9, "the end");
    }

    #[test]
    fn labels_are_short() {
        let labels = [0.0, -0.5, 20.0, 12_000.0, 5.5e7, 2e9].map(tick_label);
        assert_eq!(labels, ["0", "\u{2212}0.5", "20", "12k", "55M", "2G"]);
    }

    #[test]
    fn text_is_escaped_and_broken_between_words() {
        let mut svg = Svg::new(40.0, "a < b & \"c\"");
        svg.rect("blue", (0.0, 0.0), (-1.0, 2.5), "1 < 2");
        let file = svg.file();
        assert!(file.contains("a &lt; b &amp; &quot;c&quot;"), "{file}");
        assert!(file.contains("<title>1 &lt; 2</title></rect>"), "{file}");
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
    }
}
