//! Charts of lines and points as SVG, for light and dark pages.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// On a light and on a dark page, in turn for the lines. Told apart by everyone, and seen on both.
const COLORS: [(u32, u32); 8] = [
    (0x000000, 0xffffff),
    (0x0777ff, 0x52a2f3),
    (0xff431a, 0xfd7c00),
    (0xda32b7, 0xf57faf),
    (0x6b8d6f, 0x73a762),
    (0x754015, 0xf6ff32),
    (0x072869, 0x10ff76),
    (0x2217da, 0x635bff),
];
const TEXT: (u32, u32) = (0x33383d, 0xc9d1d9);
const AXES: (u32, u32) = (0x8c959f, 0x6e7681);
const GRID: (u32, u32) = (0xe1e4e8, 0x2b3138);

/// In units of the picture, which a page scales.
const SIZE: (u32, u32) = (420, 260);
const TEXT_SIZE: i32 = 13;
/// About the width of a letter.
const LETTER: i32 = 7;

/// The colours are attributes, those of a light page; this exchanges them on a dark one.
pub fn dark_css() -> String {
    let exchange = |(light, dark): (u32, u32)| {
        format!(
            "svg [fill=\"#{light:06X}\"]{{fill:#{dark:06x}}}\
             svg [stroke=\"#{light:06X}\"]{{stroke:#{dark:06x}}}"
        )
    };
    [TEXT, AXES, GRID].into_iter().chain(COLORS).map(exchange).collect()
}

/// For a legend.
pub fn swatch(color: usize) -> String {
    let fill = COLORS[color % COLORS.len()].0;
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 14 6\" aria-hidden=\"true\">\
         <rect width=\"14\" height=\"6\" fill=\"#{fill:06X}\"/></svg>"
    )
}

fn color((light, _): (u32, u32)) -> RGBColor {
    let [_, red, green, blue] = light.to_be_bytes();
    RGBColor(red, green, blue)
}

#[derive(Clone)]
pub struct Axis {
    title: String,
    /// Of the logarithms, if it is logarithmic.
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Ranged for Axis {
    type ValueType = f64;
    type FormatOption = NoDefaultFormatting;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let value = if self.logarithmic { value.log10() } else { *value };
        let share = (value - self.from) / (self.to - self.from);
        start + (share * f64::from(end - start)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks() }
    }

    fn range(&self) -> Range<f64> {
        self.value(self.from)..self.value(self.to)
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, tick: &f64) -> String {
        self.label(*tick)
    }
}

impl Axis {
    /// What can't be drawn, as a range of nothing, gets room.
    pub fn linear(title: impl Into<String>, from: f64, to: f64) -> Self {
        let (from, to) = if from.is_finite() && to.is_finite() { (from, to) } else { (0.0, 1.0) };
        let to = if to > from { to } else { from + 1.0 };
        Self { title: title.into(), from, to, logarithmic: false }
    }

    pub fn logarithmic(title: impl Into<String>, from: f64, to: f64) -> Self {
        let axis = Self::linear(title, from.log10(), to.log10());
        Self { logarithmic: true, ..axis }
    }

    fn value(&self, place: f64) -> f64 {
        if self.logarithmic { 10f64.powf(place) } else { place }
    }

    /// Between ticks, so that there are at most seven.
    fn step(&self) -> f64 {
        let least = (self.to - self.from) / 6.0;
        let power = 10f64.powf(least.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
        let step = step.into_iter().find(|&step| step >= least).unwrap_or(10.0 * power);
        if self.logarithmic { step.max(1.0) } else { step }
    }

    fn ticks(&self) -> Vec<f64> {
        let step = self.step();
        let numbers =
            (self.from / step - 1e-9).ceil() as i64..=(self.to / step + 1e-9).floor() as i64;
        numbers.map(|number| self.value(number as f64 * step)).collect()
    }

    fn label(&self, tick: f64) -> String {
        if self.logarithmic {
            let (unit, size) = [("G", 1e9), ("M", 1e6), ("k", 1e3)]
                .into_iter()
                .find(|&(_, size)| tick.round() >= size)
                .unwrap_or(("", 1.0));
            return format!("{}{unit}", (tick / size).round());
        }
        let decimals = (-self.step().log10() - 1e-9).ceil().max(0.0) as usize;
        format!("{:.decimals$}", tick + 0.0) // No "-0".
    }
}

pub struct Line {
    /// Beside its last point.
    pub label: Option<String>,
    /// A number in the colours.
    pub color: usize,
    /// With a dot for each.
    pub dots: bool,
    pub points: Vec<(f64, f64)>,
}

pub struct Chart {
    /// For those who can't see it.
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
    /// A line across at a value of x, and what it says.
    pub mark: Option<(f64, String)>,
}

impl Chart {
    pub fn svg(&self) -> Result<String> {
        let mut svg = String::new();
        self.draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area())?;
        Ok(svg)
    }

    fn draw(&self, area: &DrawingArea<SVGBackend, Shift>) -> Result<()> {
        let text = ("sans-serif", f64::from(TEXT_SIZE) * 1.24).into_font().color(&color(TEXT));
        let labels = self.lines.iter().filter_map(|line| line.label.as_ref());
        let longest = labels.clone().map(|label| label.chars().count()).max();
        let margin = longest.map_or(16, |letters| 24 + LETTER * letters as i32);
        let mut chart = ChartBuilder::on(area)
            .margin_top(10)
            .margin_right(margin)
            .margin_left(4)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .axis_style(color(AXES))
            .bold_line_style(color(GRID))
            .label_style(text.clone())
            .axis_desc_style(text.clone())
            .x_desc(&self.x.title)
            .y_desc(&self.y.title)
            .draw()?;

        let mut ends = Vec::new();
        for line in &self.lines {
            let color = color(COLORS[line.color % COLORS.len()]);
            let points = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
            let points: Vec<_> = points.copied().collect();
            let width = if line.dots || line.label.is_some() { 2 } else { 1 };
            chart
                .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(width)))?;
            if line.dots {
                let dots = points.iter().map(|&point| Circle::new(point, 4, color.filled()));
                chart.draw_series(dots)?;
            }
            if let (Some(label), Some(last)) = (&line.label, points.last()) {
                ends.push((chart.backend_coord(last), label, color));
            }
        }
        let (right, bottom) = chart.plotting_area().get_pixel_range();
        let (right, top, bottom) = (right.end, bottom.start, bottom.end);

        let middle = |h_pos| Pos::new(h_pos, VPos::Center);
        ends.sort_by_key(|((_, y), ..)| *y);
        let wanted: Vec<_> = ends.iter().map(|((_, y), ..)| *y).collect();
        let heights = spread(&wanted, TEXT_SIZE + 3, top + 4, bottom);
        for ((end, label, color), y) in ends.into_iter().zip(heights) {
            let way = vec![end, (right + 4, y), (right + 12, y)];
            area.draw(&PathElement::new(way, color.stroke_width(1)))?;
            area.draw_text(label, &text.pos(middle(HPos::Left)), (right + 16, y))?;
        }
        if let Some((value, says)) = &self.mark {
            let (x, _) = chart.backend_coord(&(*value, self.y.from));
            let line = vec![(x, top), (x, bottom)];
            area.draw(&PathElement::new(line, color(TEXT).stroke_width(1)))?;
            let room = LETTER * says.chars().count() as i32;
            let (side, x) =
                if x + room < right { (HPos::Left, x + 6) } else { (HPos::Right, x - 6) };
            area.draw_text(says, &text.pos(middle(side)), (x, top + 8))?;
        }
        area.present()?;
        Ok(())
    }
}

/// As near to the wanted places, which ascend, as a gap between them and the bounds allow.
fn spread(wanted: &[i32], gap: i32, from: i32, to: i32) -> Vec<i32> {
    let mut places = Vec::with_capacity(wanted.len());
    let mut next = from;
    for &place in wanted {
        places.push(place.max(next));
        next = place.max(next) + gap;
    }
    let mut next = to;
    for place in places.iter_mut().rev() {
        *place = next.min(*place);
        next = *place - gap;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_distance_within_the_bounds() {
        assert_eq!(spread(&[10, 50, 90], 10, 0, 100), [10, 50, 90]);
        assert_eq!(spread(&[50, 51, 52], 10, 0, 100), [50, 60, 70]);
        assert_eq!(spread(&[95, 96, 97], 10, 0, 100), [80, 90, 100]);
        assert_eq!(spread(&[-9], 10, 0, 100), [0]);
    }

    #[test]
    fn ticks_are_round_numbers() {
        let labels = |axis: Axis| -> Vec<_> {
            axis.ticks().into_iter().map(|tick| axis.label(tick)).collect()
        };
        assert_eq!(labels(Axis::linear("", 0.0, 0.22)), ["0.00", "0.05", "0.10", "0.15", "0.20"]);
        assert_eq!(labels(Axis::linear("", 0.0, 60.0)), ["0", "10", "20", "30", "40", "50", "60"]);
        assert_eq!(labels(Axis::logarithmic("", 70.0, 5e6)), ["100", "1k", "10k", "100k", "1M"]);
        assert_eq!(labels(Axis::logarithmic("", 2048.0, 4.3e9)).last().unwrap(), "100M");
        assert_eq!(labels(Axis::linear("", f64::NAN, f64::NAN)).len(), 6);
    }

    #[test]
    fn each_line_is_seen_on_its_page() {
        let luminance = |color: u32| {
            let [_, rgb @ ..] = color.to_be_bytes();
            let linear = rgb.map(|part| match f64::from(part) / 255.0 {
                part if part <= 0.04045 => part / 12.92,
                part => ((part + 0.055) / 1.055).powf(2.4),
            });
            0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        };
        for (light, dark) in COLORS {
            assert!(1.05 / (luminance(light) + 0.05) >= 3.0, "{light:06x} on white");
            assert!((luminance(dark) + 0.05) / 0.05 >= 3.0, "{dark:06x} on black");
        }
    }
}
