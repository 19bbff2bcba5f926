//! Draws `docs/lending.svg`, the picture of the README: who lends what, who holds it, and which signal gives
//! it back.

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

const FILE: &str = "docs/lending.svg";

/// A row of the picture.
struct Lend {
    owner: [&'static str; 2],
    /// What is lent, by which mechanism.
    by: &'static str,
    holder: [&'static str; 2],
    /// The return signal.
    back: &'static str,
    side: Side,
}

/// Whose memory is lent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Your program lends its own.
    Yours,
    /// Your program holds what others lend.
    Theirs,
}

const LENDS: [Lend; 5] = [
    Lend {
        owner: ["your memory", "registered buffers"],
        by: "SEND_ZC, MSG_ZEROCOPY",
        holder: ["kernel, card", "TCP, UDP, files"],
        back: "notification",
        side: Side::Yours,
    },
    Lend {
        owner: ["your memory", "reliable datagrams"],
        by: "RDS message with a cookie",
        holder: ["kernel", "until the peer has it"],
        back: "the cookie",
        side: Side::Yours,
    },
    Lend {
        owner: ["network card", "rx queue"],
        by: "zcrx: a chunk of your area",
        holder: ["your program", "reads the payload"],
        back: "entry in the refill queue",
        side: Side::Theirs,
    },
    Lend {
        owner: ["page cache, socket", "pages of the kernel"],
        by: "get-buf: a slot of the ring",
        holder: ["your ring", "any request uses it"],
        back: "release callback",
        side: Side::Theirs,
    },
    Lend {
        owner: ["block device", "memory of a request"],
        by: "ublk: a slot of the ring",
        holder: ["BPF loop or program", "reads, writes, sends"],
        back: "commit",
        side: Side::Theirs,
    },
];

const WIDTH: usize = 760;
const TOP: usize = 34;
const ROW: usize = 74;
const BOX: (usize, usize) = (190, 52);
const MARGIN: usize = 12;

pub(crate) fn run() -> Result<ExitCode, String> {
    fs::write(FILE, draw()).map_err(|error| format!("{FILE}: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

fn draw() -> String {
    let height = TOP + ROW * LENDS.len();
    let right = WIDTH - MARGIN - BOX.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\" aria-label=\"Who lends what to whom, and \
         which signal gives it back\">\n\
         <style>\
         .yours{{fill:#dbeafe;stroke:#1d4ed8}}.theirs{{fill:#fef3c7;stroke:#b45309}}\
         .holder{{fill:#f3f4f6;stroke:#4b5563}}text{{fill:#111827}}.small{{font-size:11px;fill:#4b5563}}\
         .line{{stroke:#4b5563;stroke-width:1.5;fill:none}}.back{{stroke-dasharray:5 4}}\
         </style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto-start-reverse\"><path d=\"M0 0 8 4 0 8z\" fill=\"#4b5563\"/></marker>\n",
    );
    for (x, title) in [(MARGIN, "whose memory"), (right, "who holds it meanwhile")] {
        text(&mut svg, x + BOX.0 / 2, 20, "small", title);
    }
    text(&mut svg, WIDTH / 2, 20, "small", "lent by, and given back by");
    for (number, lend) in LENDS.iter().enumerate() {
        let y = TOP + number * ROW;
        let owner = if lend.side == Side::Yours { "yours" } else { "theirs" };
        boxed(&mut svg, MARGIN, y, owner, lend.owner);
        boxed(&mut svg, right, y, "holder", lend.holder);
        let (from, to) = (MARGIN + BOX.0 + 6, right - 6);
        arrow(&mut svg, from, to, y + 18, "line");
        text(&mut svg, WIDTH / 2, y + 12, "", lend.by);
        arrow(&mut svg, to, from, y + 36, "line back");
        text(&mut svg, WIDTH / 2, y + 50, "small", lend.back);
    }
    svg.push_str("</svg>\n");
    svg
}

fn boxed(svg: &mut String, x: usize, y: usize, class: &str, [title, detail]: [&str; 2]) {
    let (width, height) = BOX;
    line(
        svg,
        &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\" class=\"{class}\"/>"
        ),
    );
    text(svg, x + width / 2, y + 22, "", title);
    text(svg, x + width / 2, y + 40, "small", detail);
}

fn arrow(svg: &mut String, from: usize, to: usize, y: usize, class: &str) {
    line(
        svg,
        &format!("<path d=\"M{from} {y}H{to}\" class=\"{class}\" marker-end=\"url(#tip)\"/>"),
    );
}

fn text(svg: &mut String, x: usize, y: usize, class: &str, text: &str) {
    line(
        svg,
        &format!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" class=\"{class}\">{text}</text>"
        ),
    );
}

fn line(svg: &mut String, element: &str) {
    writeln!(svg, "{element}").expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_in_the_tree_is_the_one_that_is_drawn() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/lending.svg");
        let there = fs::read_to_string(file).expect("the picture is in the tree");
        assert_eq!(there, draw(), "draw it anew with: cargo xtask picture");
    }
}
