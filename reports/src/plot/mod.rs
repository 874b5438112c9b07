//! What all plots share: size, colours, markers, text and axes.

pub(crate) mod context;
pub(crate) mod distribution;
pub(crate) mod ratio;

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use results::record::Arm;

use crate::ReportError;

/// Width and height, pixels.
const SIZE: (u32, u32) = (840, 460);
/// Height of the title, and of each line of the legend, pixels.
const TITLE: i32 = 34;
const LEGEND_LINE: i32 = 20;
/// Left edge of the head's text, pixels.
const LEFT: i32 = 20;
/// Average width of a character of the legend, pixels.
const CHARACTER: f64 = 7.0;
/// Half the width of a marker, pixels.
const MARKER: i32 = 4;

/// The page is white whatever surrounds the picture.
const PAGE: RGBColor = WHITE;
/// Text and axes.
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Grid, and lines that are not data.
const FAINT: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// The margin.
const GREY: RGBColor = RGBColor(0x66, 0x66, 0x66);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<T> = std::result::Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// A shape that tells series apart without colour.
#[derive(Clone, Copy, Debug)]
enum Marker {
    Circle,
    Triangle,
    Square,
    Diamond,
    Bar,
}

/// Colour (Okabe and Ito's palette) and shape of an arm.
fn look(arm: Arm) -> (RGBColor, Marker) {
    match arm {
        Arm::A => (RGBColor(0x00, 0x72, 0xb2), Marker::Circle),
        Arm::Control => (RGBColor(0x00, 0x9e, 0x73), Marker::Triangle),
        Arm::B => (RGBColor(0xd5, 0x5e, 0x00), Marker::Square),
        Arm::C | Arm::Slowed => (RGBColor(0xcc, 0x79, 0xa7), Marker::Diamond),
        Arm::D => (RGBColor(0x22, 0x22, 0x22), Marker::Bar),
    }
}

/// Draws the marker of an arm at a pixel of the area.
fn draw_marker(area: &Area<'_>, (x, y): (i32, i32), arm: Arm, opacity: f64) -> Drawn<()> {
    let (colour, shape) = look(arm);
    let style = colour.mix(opacity).filled();
    let r = MARKER;
    match shape {
        Marker::Circle => area.draw(&Circle::new((x, y), r, style)),
        Marker::Triangle => {
            let corners = vec![(x, y - r - 1), (x + r + 1, y + r), (x - r - 1, y + r)];
            area.draw(&Polygon::new(corners, style))
        }
        Marker::Diamond => {
            let corners = vec![
                (x, y - r - 1),
                (x + r + 1, y),
                (x, y + r + 1),
                (x - r - 1, y),
            ];
            area.draw(&Polygon::new(corners, style))
        }
        Marker::Bar => area.draw(&Rectangle::new(
            [(x - r - 1, y - 2), (x + r + 1, y + 2)],
            style,
        )),
        Marker::Square => area.draw(&Rectangle::new([(x - r, y - r), (x + r, y + r)], style)),
    }
}

/// The pixel of the area that is `pixel` of the page.
fn within(area: &Area<'_>, pixel: (i32, i32)) -> (i32, i32) {
    let (left, top) = area.get_base_pixel();
    (pixel.0 - left, pixel.1 - top)
}

/// An entry of the legend.
#[derive(Clone, Debug)]
enum Key {
    Marker(Arm),
    Line(RGBColor),
    Dashes(RGBColor),
    Band(RGBColor),
}

/// Draws on a fresh page with `title` and legend; `body` gets what is below.
/// `None` where there is nothing to show.
fn page(
    file: &'static str,
    title: &str,
    legend: &[(Key, String)],
    body: impl FnOnce(&Area<'_>) -> Drawn<()>,
) -> std::result::Result<String, ReportError> {
    let mut svg = String::new();
    let drawn = (|| {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&PAGE)?;
        root.draw_text(title, &text(17, HPos::Left), (LEFT, 20))?;
        let head = draw_legend(&root, legend)?;
        let (_, below) = root.split_vertically(head);
        body(&below.margin(8, 0, 12, 0))?;
        root.present()
    })();
    drawn.map_err(|error| ReportError::Plot {
        plot: file,
        problem: error.to_string(),
    })?;
    Ok(svg)
}

/// Draws the entries from left to right, on as many lines as they need, and
/// returns the pixels taken from the top.
fn draw_legend(root: &Area<'_>, legend: &[(Key, String)]) -> Drawn<i32> {
    if legend.is_empty() {
        return Ok(TITLE);
    }
    let (mut x, mut y) = (LEFT, TITLE + LEGEND_LINE / 2);
    for (key, label) in legend {
        let label = shorten(label, 48);
        let width = 46 + (label.chars().count() as f64 * CHARACTER) as i32;
        if x > LEFT && x + width > SIZE.0 as i32 {
            (x, y) = (LEFT, y + LEGEND_LINE);
        }
        let middle = (x + 10, y);
        match key {
            Key::Marker(arm) => draw_marker(root, middle, *arm, 1.0)?,
            Key::Line(colour) => root.draw(&PathElement::new(
                [(x, y), (x + 20, y)],
                colour.stroke_width(2),
            ))?,
            Key::Dashes(colour) => {
                for start in [x, x + 8, x + 16] {
                    let dash = [(start, y), (start + 5, y)];
                    root.draw(&PathElement::new(dash, colour.stroke_width(2)))?;
                }
            }
            Key::Band(colour) => root.draw(&Rectangle::new(
                [(x, y - 6), (x + 20, y + 6)],
                colour.mix(0.2).filled(),
            ))?,
        }
        root.draw_text(&label, &text(14, HPos::Left), (x + 28, y))?;
        x += width;
    }
    Ok(y + LEGEND_LINE / 2)
}

/// Text of a size in pixels, anchored at its vertical middle.
fn text(size: i32, side: HPos) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font())
        .color(&INK)
        .pos(Pos::new(side, VPos::Center))
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
        s if s >= 50.0 => 0,
        s if s >= 5.0 => 1,
        s if s >= 0.5 => 2,
        s if s >= 0.05 => 3,
        _ => 4,
    }
}
