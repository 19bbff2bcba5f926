//! The curves: a sweep of one quantity for each engine, and the published ones.

use std::collections::{BTreeMap, BTreeSet};

use handoff_bench::{
    report::{Report, Row},
    statistics::Spread,
};
use handoff_command::quantity::format_size;
use maud::{Markup, html};

use crate::{
    findings::{Environment, Findings},
    plot::{Plot, Point, Series},
    seeds,
};

/// The fewest points that make a curve.
const POINTS: usize = 2;

/// A curve that a bench draws.
struct Curve {
    bench: &'static str,
    title: &'static str,
    about: &'static str,
    quantity: &'static str,
    /// What the ratio 1 stands for.
    against: &'static str,
    /// Whether the numbers of the quantity are bytes.
    sized: bool,
    /// The row's place on the curve; `None` if the row does not belong to it.
    at: fn(&Row) -> Option<u64>,
    /// The engine whose ratio is 1; `None` if that is the baseline's engine.
    reference: Option<&'static str>,
}

const CURVES: [Curve; 4] = [
    Curve {
        bench: "send",
        title: "Where zero copy starts to pay: payload size",
        about: "Speed against plain copying of the same payload. Where a line crosses 1, lending the \
                buffer costs what copying it costs; right of it zero copy pays.",
        quantity: "payload bytes of a message",
        against: "copying send",
        sized: true,
        at: |row| row.config.bytes.filter(|_| row.config.op.as_deref() == Some("send")),
        reference: Some("copy"),
    },
    Curve {
        bench: "splice",
        title: "Requests together: depth",
        about: "Speed against two calls of splice(2) for each page. Requests that are submitted \
                together share the cost of entering the kernel, which splice(2) pays for each.",
        quantity: "requests in one submission",
        against: "two splices",
        sized: false,
        at: |row| {
            row.config.depth.filter(|_| row.config.op.as_deref() == Some("pass")).map(u64::from)
        },
        reference: None,
    },
    Curve {
        bench: "recv",
        title: "Room for whole frames: chunk size",
        about: "Speed of zero-copy receive against epoll. In larger chunks a frame that the NIC has \
                joined lies in one piece, and each piece has its cost.",
        quantity: "bytes of a chunk",
        against: "epoll",
        sized: true,
        at: |row| row.config.chunk.filter(|_| row.config.gro == Some(true)),
        reference: None,
    },
    Curve {
        bench: "rds",
        title: "Messages there and back: size",
        about: "Speed of asking and being answered, against a length and the message over plain TCP.",
        quantity: "payload bytes of a message",
        against: "framing over TCP",
        sized: true,
        at: |row| row.config.bytes.filter(|_| row.config.op.as_deref() == Some("ask")),
        reference: None,
    },
];

/// The section with all curves that the findings draw, by environment, and the published ones.
pub(crate) fn section(findings: &Findings) -> Markup {
    html! {
        section id="curves" {
            h2 { "Curves" }
            p {
                "Points are medians over the rounds of a run, the bars behind them reach from the worst "
                "round to the best. Larger is better everywhere; 1 is what each curve is compared with."
            }
            @for curve in &CURVES {
                article id=(format!("curve-{}", curve.bench)) {
                    h3 { (curve.title) }
                    p { (curve.about) }
                    (plots(curve, findings))
                }
            }
        }
    }
}

fn plots(curve: &Curve, findings: &Findings) -> Markup {
    let mut drawn =
        Environment::ALL.map(|environment| (environment, curve.longest(findings, environment)));
    let names: BTreeSet<String> =
        drawn.iter().flat_map(|(_, it)| it).map(|it| it.name.clone()).collect();
    for line in drawn.iter_mut().flat_map(|(_, series)| series) {
        line.style = names.iter().take_while(|name| **name != line.name).count();
    }
    html! {
        div.plots {
            @for (environment, series) in drawn { (of_environment(curve, findings, environment, series)) }
            (published(curve))
        }
    }
}

fn of_environment(
    curve: &Curve,
    findings: &Findings,
    environment: Environment,
    series: Vec<Series>,
) -> Markup {
    if series.is_empty() {
        let lacking = match findings.reports(curve.bench, environment).next() {
            None => "It was not run.",
            Some(_) => {
                "No run has rows for more than one point of it; what keeps rows from running stands \
                 with the tables."
            }
        };
        let why = findings.problem(curve.bench, environment).unwrap_or(lacking);
        return html! { p.missing { (environment.word()) ": not drawn. " (why) } };
    }
    let pays = curve.reference.map(|_| crossings(curve, &series));
    let counted = findings.reports(curve.bench, environment).any(Report::counts_instructions);
    let whose = match (environment, counted) {
        (Environment::Native, _) => "Native, in time",
        (Environment::Emulated, true) => "Emulated, in instructions",
        (Environment::Emulated, false) => "Emulated",
    };
    let plot = curve.plot(&format!("{}-{}", curve.bench, environment.word()), whose, series);
    html! { (plot.draw(pays.as_deref())) }
}

/// Draws the published curves in a plot of their own, since they are from another machine.
fn published(curve: &Curve) -> Markup {
    let mut series: BTreeMap<String, Vec<Point>> = BTreeMap::new();
    for row in seeds::all().iter().filter(|it| it.bench == curve.bench).flat_map(|it| &it.rows) {
        if let (Some(name), Some(x), Some(ratio)) = (&row.series, row.x, row.ratio) {
            let y = Spread { median: ratio, min: ratio, max: ratio };
            series.entry(name.clone()).or_default().push(Point { x, y });
        }
    }
    if series.is_empty() {
        return html! {};
    }
    let numbered = series.into_iter().enumerate();
    let series = numbered.map(|(style, (name, points))| Series { name, style, points }).collect();
    let whose = "As published, another machine";
    curve.plot(&format!("{}-published", curve.bench), whose, series).draw(None)
}

impl Curve {
    fn plot(&self, id: &str, whose: &str, series: Vec<Series>) -> Plot {
        Plot {
            id: id.to_owned(),
            title: format!("{} ({whose})", self.title),
            caption: whose.to_owned(),
            about: format!(
                "{} Ratio to {} over {}; larger is better.",
                self.about, self.against, self.quantity
            ),
            x_label: self.quantity,
            y_label: format!("times {}", self.against),
            label: if self.sized { format_size } else { |x| x.to_string() },
            series,
        }
    }

    /// The lines of the report with the most points; empty if they are too short.
    fn longest(&self, findings: &Findings, environment: Environment) -> Vec<Series> {
        let longest = |series: &Vec<Series>| series.iter().map(|it| it.points.len()).max();
        let drawn = findings.reports(self.bench, environment).map(|report| self.series(report));
        let drawn = drawn.max_by_key(longest).filter(|series| longest(series) >= Some(POINTS));
        drawn.unwrap_or_default()
    }

    /// One line for each engine: of the engine's lines, the one that ends best.
    fn series(&self, report: &Report) -> Vec<Series> {
        let mut rows: BTreeMap<&str, BTreeMap<String, Vec<Point>>> = BTreeMap::new();
        let references: BTreeMap<u64, f64> = report
            .rows
            .iter()
            .filter(|row| self.reference == Some(row.engine.as_str()))
            .filter_map(|row| Some(((self.at)(row)?, row.ratio?)))
            .collect();
        for row in &report.rows {
            let Some((x, point)) = (self.at)(row).zip(self.point(row, &references)) else {
                continue;
            };
            let lines = rows.entry(&row.engine).or_default();
            lines.entry(self.line(row, x)).or_default().push(Point { x, y: point });
        }
        let end = |points: &Vec<Point>| points.last().map_or(0.0, |point| point.y.median);
        let best = |lines: BTreeMap<String, Vec<Point>>| {
            lines.into_iter().max_by(|(_, one), (_, other)| end(one).total_cmp(&end(other)))
        };
        rows.into_values()
            .filter_map(best)
            .map(|(name, mut points)| {
                points.sort_by_key(|point| point.x);
                Series { name, style: 0, points }
            })
            .collect()
    }

    fn point(&self, row: &Row, references: &BTreeMap<u64, f64>) -> Option<Spread> {
        let unit = match self.reference {
            Some(engine) if row.engine == engine => return None,
            Some(_) => *references.get(&(self.at)(row)?)?,
            None if row.baseline => return None,
            None => 1.0,
        };
        let median = row.ratio? / unit;
        let part = |ratio: Option<f64>| ratio.map_or(median, |ratio| ratio / unit);
        Some(Spread { median, min: part(row.ratio_min), max: part(row.ratio_max) })
    }

    /// A row's name without its place on the curve.
    fn line(&self, row: &Row, x: u64) -> String {
        let size = format_size(x);
        let of_point = [format!("depth={x}"), format!("chunk={size}"), size];
        let words = row.name.split(' ').filter(|word| !of_point.iter().any(|it| it == word));
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Says from which value on each line stays above 1.
fn crossings(curve: &Curve, series: &[Series]) -> String {
    let crossing = |line: &Series| {
        let above = line.points.iter().rev().take_while(|point| point.y.median > 1.0).last();
        let all: BTreeSet<u64> = line.points.iter().map(|point| point.x).collect();
        match above {
            Some(point) if Some(&point.x) == all.first() => {
                format!("{} pays at all sizes", line.name)
            }
            Some(point) => format!("{} pays from {} bytes", line.name, format_size(point.x)),
            None => format!("{} does not pay at the largest", line.name),
        }
    };
    let all: Vec<String> = series.iter().map(crossing).collect();
    format!("Against {}: {}.", curve.against, all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, medians: [f64; 3]) -> Series {
        let spread = |median| Spread { median, min: median, max: median };
        let point = |(at, median)| Point { x: 1_024_u64 << at, y: spread(median) };
        Series {
            name: name.into(),
            style: 0,
            points: medians.into_iter().enumerate().map(point).collect(),
        }
    }

    #[test]
    fn a_line_pays_from_where_it_stays_above_1() {
        let series = [
            line("a", [0.5, 1.2, 3.0]),
            line("b", [1.1, 0.9, 1.3]),
            line("c", [1.1, 1.2, 1.3]),
            line("d", [1.1, 1.2, 0.9]),
        ];
        assert_eq!(
            crossings(&CURVES[0], &series),
            "Against copying send: a pays from 2k bytes; b pays from 4k bytes; c pays at all sizes; d \
             does not pay at the largest."
        );
    }
}
