//! Plots lines over a quantity that doubles, as SVG in the colours of the page.
//!
//! Contracts:
//!
//! 1. Lines differ in colour, in dashes and in the shape of their points, so you can tell them apart in
//!    grey and on paper.
//! 2. A plot has a title and a description for readers who cannot see it, and its figures as a table.

use std::collections::BTreeSet;

use handoff_bench::statistics::Spread;
use maud::{Markup, html};

use crate::seed_table::{NONE, show};

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 38.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 42.0;
/// About how many grid lines cross the plot.
const TICKS: f64 = 5.0;
/// Half of a point's width.
const POINT: f64 = 4.0;
/// The least distance between labels of the quantity.
const LABEL: f64 = 34.0;
/// The number of lines with different looks; further lines repeat them.
const STYLES: usize = 8;

/// One plot.
pub(crate) struct Plot {
    /// The plot's name, which is unique on the page.
    pub(crate) id: String,
    /// A title for readers who cannot see the plot's place on the page.
    pub(crate) title: String,
    /// Whose figures these are.
    pub(crate) caption: String,
    /// What the plot shows, and which direction is better.
    pub(crate) about: String,
    pub(crate) x_label: &'static str,
    pub(crate) y_label: String,
    /// Writes a value of the quantity.
    pub(crate) label: fn(u64) -> String,
    pub(crate) series: Vec<Series>,
}

/// One line.
pub(crate) struct Series {
    pub(crate) name: String,
    /// The line's look, which is the same in all plots for the same thing.
    pub(crate) style: usize,
    /// The points, in the order of the quantity.
    pub(crate) points: Vec<Point>,
}

/// A ratio at one place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) x: u64,
    pub(crate) y: Spread,
}

/// Where values stand in a plot.
struct Scale {
    xs: BTreeSet<u64>,
    top: f64,
    step: f64,
}

impl Scale {
    fn of(series: &[Series]) -> Self {
        let points = || series.iter().flat_map(|line| &line.points);
        // The ratio 1 is always in the range.
        let most = points().map(|point| point.y.max).fold(1.0, f64::max);
        let step = nice(most / TICKS);
        let top = (most / step).ceil() * step;
        Self { xs: points().map(|point| point.x).collect(), top, step }
    }

    fn x(&self, x: u64) -> f64 {
        let log = |x: u64| (x.max(1) as f64).log2();
        let (least, most) = (self.xs.first(), self.xs.last());
        let (least, most) = (least.map_or(0.0, |&x| log(x)), most.map_or(1.0, |&x| log(x)));
        let (from, to) = (LEFT + 2.0 * POINT, WIDTH - RIGHT - 2.0 * POINT);
        from + (log(x) - least) / (most - least).max(f64::MIN_POSITIVE) * (to - from)
    }

    fn y(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - y / self.top * (HEIGHT - TOP - BOTTOM)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        (0..=(self.top / self.step).round() as u32).map(|tick| f64::from(tick) * self.step)
    }

    /// The labels that have room, the largest first.
    fn labelled(&self) -> Vec<u64> {
        let mut labelled: Vec<u64> = Vec::new();
        for &x in self.xs.iter().rev() {
            if labelled.last().is_none_or(|&next| self.x(next) - self.x(x) >= LABEL) {
                labelled.push(x);
            }
        }
        labelled
    }
}

/// The smallest of 1, 2, 5 times a power of ten that is at least this.
fn nice(step: f64) -> f64 {
    let power = 10.0_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|times| times * power)
        .into_iter()
        .find(|&it| it >= step)
        .unwrap_or(step)
}

/// A coordinate as text: less than a tenth of a unit does not show.
fn at(coordinate: f64) -> String {
    format!("{coordinate:.1}")
}

impl Plot {
    /// Draws the plot, with the verdict below it.
    pub(crate) fn draw(&self, verdict: Option<&str>) -> Markup {
        let Self { id, title, caption, about, series, .. } = self;
        let (of_title, of_about) = (format!("{id}-title"), format!("{id}-about"));
        html! {
            figure.plot {
                figcaption { (caption) }
                svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                    aria-labelledby=(format!("{of_title} {of_about}"))
                {
                    title id=(of_title) { (title) }
                    desc id=(of_about) { (about) }
                    (self.axes())
                    @for line in series { (self.line(line)) }
                }
                ul.legend {
                    @for line in series { li { (swatch(line.style)) (line.name) } }
                }
                @if let Some(verdict) = verdict { p { (verdict) } }
                (self.table())
            }
        }
    }

    fn axes(&self) -> Markup {
        let scale = Scale::of(&self.series);
        let digits = if scale.step < 1.0 { 1 } else { 0 };
        let (left, right, floor) = (at(LEFT), at(WIDTH - RIGHT), at(HEIGHT - BOTTOM));
        html! {
            text.label x=(at(4.0)) y=(at(12.0)) { (self.y_label) " ↑ larger is better" }
            @for tick in scale.ticks() {
                line.grid x1=(left) x2=(right) y1=(at(scale.y(tick))) y2=(at(scale.y(tick))) {}
                text.tick x=(at(LEFT - 6.0)) y=(at(scale.y(tick) + 4.0)) text-anchor="end" {
                    (format!("{tick:.digits$}"))
                }
            }
            line.one x1=(left) x2=(right) y1=(at(scale.y(1.0))) y2=(at(scale.y(1.0))) {}
            line.axis x1=(left) x2=(right) y1=(floor) y2=(floor) {}
            @for x in scale.labelled() {
                text.tick x=(at(scale.x(x))) y=(at(HEIGHT - BOTTOM + 16.0)) text-anchor="middle" {
                    ((self.label)(x))
                }
            }
            text.label x=(at((LEFT + WIDTH - RIGHT) / 2.0)) y=(at(HEIGHT - 6.0)) text-anchor="middle" {
                (self.x_label)
            }
        }
    }

    fn line(&self, line: &Series) -> Markup {
        let scale = Scale::of(&self.series);
        let corner =
            |point: &Point| format!("{},{}", at(scale.x(point.x)), at(scale.y(point.y.median)));
        let corners: Vec<String> = line.points.iter().map(corner).collect();
        html! {
            g class=(style(line.style)) {
                @for point in &line.points {
                    @let x = at(scale.x(point.x));
                    line.spread x1=(x) x2=(x) y1=(at(scale.y(point.y.min)))
                        y2=(at(scale.y(point.y.max))) {}
                }
                polyline points=(corners.join(" ")) {}
                @for point in &line.points {
                    path.point d=(shape(line.style, scale.x(point.x), scale.y(point.y.median))) {
                        title { (line.name) ", " ((self.label)(point.x)) ": " (show(point.y)) }
                    }
                }
            }
        }
    }

    fn table(&self) -> Markup {
        let scale = Scale::of(&self.series);
        html! {
            details {
                summary { "The figures of this plot" }
                div.scroll tabindex="0" role="region" aria-label=(self.title) {
                    table {
                        thead {
                            tr {
                                th scope="col" { (self.y_label) }
                                @for &x in &scale.xs { th.number scope="col" { ((self.label)(x)) } }
                            }
                        }
                        tbody {
                            @for line in &self.series {
                                tr {
                                    th scope="row" { (line.name) }
                                    @for &x in &scale.xs {
                                        @let found = line.points.iter().find(|point| point.x == x);
                                        td.number { (found.map_or(NONE.to_owned(), |it| show(it.y))) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The CSS classes of a line: the style sheet has colour and dashes.
fn style(number: usize) -> String {
    format!("line s{}", number % STYLES)
}

fn swatch(number: usize) -> Markup {
    html! {
        svg.swatch viewBox="0 0 28 12" aria-hidden="true" {
            g class=(style(number)) {
                polyline points="1,6 27,6" {}
                path.point d=(shape(number, 14.0, 6.0)) {}
            }
        }
    }
}

/// The shape of a point: circle, square, triangle, diamond, and again.
fn shape(number: usize, x: f64, y: f64) -> String {
    let polygon = |corners: &[(f64, f64)]| {
        let corner =
            |(dx, dy): &(f64, f64)| format!("{},{}", at(x + dx * POINT), at(y + dy * POINT));
        format!("M{}Z", corners.iter().map(corner).collect::<Vec<_>>().join("L"))
    };
    match number % 4 {
        0 => format!(
            "M{},{}a{POINT},{POINT} 0 1 0 {},0a{POINT},{POINT} 0 1 0 {},0Z",
            at(x - POINT),
            at(y),
            2.0 * POINT,
            -2.0 * POINT
        ),
        1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => polygon(&[(0.0, -1.2), (1.1, 0.9), (-1.1, 0.9)]),
        _ => polygon(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (step, rounded) in
            [(0.13, 0.2), (0.5, 0.5), (0.51, 1.0), (1.7, 2.0), (2.1, 5.0), (60.0, 100.0)]
        {
            assert!((nice(step) - rounded).abs() < 1e-9, "{step}: {}", nice(step));
        }
    }

    #[test]
    fn everything_stands_inside() {
        let spread = |median: f64| Spread { median, min: median / 2.0, max: median * 1.5 };
        for most in [0.01, 1.0, 3.7, 250.0] {
            let points = [1, 2, 10_000].map(|x| Point { x, y: spread(most / x as f64) }).to_vec();
            let scale = Scale::of(&[Series { name: "a".into(), style: 0, points: points.clone() }]);
            for Point { x, y } in points {
                assert!((LEFT..=WIDTH - RIGHT).contains(&scale.x(x)), "{x}");
                assert!((TOP..=HEIGHT - BOTTOM).contains(&scale.y(y.max)), "{y:?}");
                assert!((TOP..=HEIGHT - BOTTOM).contains(&scale.y(y.min)), "{y:?}");
            }
            assert!(scale.ticks().count() <= 12);
            assert!(scale.y(1.0) >= TOP - 0.001);
            assert_eq!(scale.labelled(), [10_000, 2]);
        }
    }
}
