//! What the plots of one run share: looks of the arms, legend and axes.

pub(crate) mod context;
pub(crate) mod distribution;
pub(crate) mod ratio;

use results::record::Arm;

use crate::svg::{Anchor, Marker, Scale, Svg, TITLE, WIDTH, wrapped};

/// Height of what lies between the axes.
const HEIGHT: f64 = 290.0;
/// The axes' places from left and right.
const LEFT: f64 = 74.0;
const RIGHT: f64 = WIDTH - 18.0;
/// Height of a line of the legend, and average width of a character.
const LINE: f64 = 24.0;
const CHARACTER: f64 = 8.2;

/// Colour and shape of an arm.
const fn look(arm: Arm) -> (&'static str, Marker) {
    match arm {
        Arm::A => ("blue", Marker::Circle),
        Arm::Control => ("green", Marker::Triangle),
        Arm::B => ("red", Marker::Square),
        Arm::C => ("pink", Marker::Diamond),
        Arm::D => ("ink", Marker::Bar),
        Arm::Slowed => ("gold", Marker::Cross),
    }
}

/// An entry of the legend.
#[derive(Clone, Copy, Debug)]
enum Key {
    Marker(Arm),
    Line(&'static str),
    Dashes(&'static str),
    Band(&'static str),
}

/// A picture with axes, to draw between.
struct Frame {
    svg: Svg,
    x: Scale,
    y: Scale,
    bottom: f64,
}

/// What the axes show.
struct Axes<'a> {
    x: (f64, f64),
    /// Whether the horizontal axis has numbers.
    counted: bool,
    x_label: &'a str,
    y: (f64, f64),
    y_label: &'a str,
}

impl Frame {
    fn new(title: &str, legend: &[(Key, String)], axes: &Axes<'_>) -> Self {
        let mut top = 20.0 + 21.0 * wrapped(title, TITLE).len() as f64;
        let places = places(legend, top + 8.0);
        if let Some((_, y)) = places.last() {
            top = y + 14.0;
        }
        let bottom = top + 8.0 + HEIGHT;
        let mut svg = Svg::new(bottom + 58.0, title);
        for ((key, label), (x, y)) in legend.iter().zip(&places) {
            draw_key(&mut svg, *key, (*x, *y));
            svg.text(
                (x + 28.0, y + 5.0),
                Anchor::Start,
                "ink",
                &shorten(label, 60),
            );
        }
        let x = Scale::linear(axes.x, (LEFT, RIGHT));
        let y = Scale::linear(axes.y, (bottom, top + 8.0));
        let digits = decimals(axes.y.1 - axes.y.0);
        for tick in y.ticks(7) {
            let at = y.at(tick);
            svg.line("faint thin", (LEFT, at), (RIGHT, at));
            let label = format!("{tick:.digits$}").replace('-', "\u{2212}");
            svg.text((LEFT - 7.0, at + 5.0), Anchor::End, "ink", &label);
        }
        if axes.counted {
            for tick in x.ticks(7) {
                svg.line("ink thin", (x.at(tick), bottom), (x.at(tick), bottom + 5.0));
                svg.text(
                    (x.at(tick), bottom + 20.0),
                    Anchor::Middle,
                    "ink",
                    &format!("{tick:.0}"),
                );
            }
        }
        svg.line("ink thin", (LEFT, bottom), (RIGHT, bottom));
        svg.text(
            ((LEFT + RIGHT) / 2.0, bottom + 44.0),
            Anchor::Middle,
            "ink",
            axes.x_label,
        );
        svg.upright((18.0, bottom - HEIGHT / 2.0), "ink", axes.y_label);
        Self { svg, x, y, bottom }
    }

    /// A value as a marker of an arm, moved sideways by `aside` pixels.
    fn value(&mut self, arm: Arm, (x, y): (f64, f64), aside: f64, soft: bool, hover: &str) {
        let (colour, marker) = look(arm);
        let class = if soft {
            format!("{colour} soft")
        } else {
            colour.to_owned()
        };
        let at = (self.x.at(x) + aside, self.y.at(y));
        self.svg.marker((&class, marker), at, hover);
    }

    /// A line across at a value.
    fn across(&mut self, class: &str, value: f64) {
        let y = self.y.at(value);
        self.svg.line(class, (LEFT, y), (RIGHT, y));
    }
}

/// Where the entries of a legend stand, from left to right on as many lines as they need.
fn places(legend: &[(Key, String)], top: f64) -> Vec<(f64, f64)> {
    let (mut x, mut y) = (16.0, top);
    let mut places = Vec::new();
    for (_, label) in legend {
        let width = 44.0 + shorten(label, 60).chars().count() as f64 * CHARACTER;
        if x > 16.0 && x + width > WIDTH {
            (x, y) = (16.0, y + LINE);
        }
        places.push((x, y));
        x += width;
    }
    places
}

fn draw_key(svg: &mut Svg, key: Key, (x, y): (f64, f64)) {
    match key {
        Key::Marker(arm) => svg.marker(look(arm), (x + 10.0, y), ""),
        Key::Line(class) => svg.line(class, (x, y), (x + 20.0, y)),
        Key::Dashes(class) => svg.line(&format!("{class} dashed"), (x, y), (x + 20.0, y)),
        Key::Band(class) => svg.rect(&format!("{class} band"), (x, y - 7.0), (20.0, 14.0), ""),
    }
}

/// At most `limit` characters, with an ellipsis where some are left out.
fn shorten(label: &str, limit: usize) -> String {
    if label.chars().count() <= limit {
        return label.to_owned();
    }
    let kept: String = label.chars().take(limit - 1).collect();
    kept + "\u{2026}"
}

/// The range of some values with room around them; `None` without values.
fn padded(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let (lo, hi) = values
        .into_iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), value| {
            (lo.min(value), hi.max(value))
        });
    if lo > hi {
        return None;
    }
    let room = (0.08 * (hi - lo)).max(0.005 * hi.abs()).max(1e-6);
    Some((lo - room, hi + room))
}

/// Decimals that tell the labels of an axis of this span apart.
fn decimals(span: f64) -> usize {
    match span {
        s if s >= 7.0 => 0,
        s if s >= 0.7 => 1,
        s if s >= 0.07 => 2,
        s if s >= 0.007 => 3,
        _ => 4,
    }
}
