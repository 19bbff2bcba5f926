//! Draws the pictures of the pages: `docs/lending.svg` (who lends what, who holds it, and which signal gives it
//! back) and `docs/life.svg` (the states of a buffer).

use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

/// Draws a picture as SVG.
type Draw = fn() -> String;

/// The pictures: each file, and what draws it.
const PICTURES: [(&str, Draw); 2] = [("docs/lending.svg", lending), ("docs/life.svg", life)];

/// A row of the picture of lending.
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
    for (file, draw) in PICTURES {
        fs::write(file, draw()).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn lending() -> String {
    let right = WIDTH - MARGIN - BOX.0;
    let label = "Who lends what to whom, and which signal gives it back";
    let mut svg = begin(TOP + ROW * LENDS.len(), label);
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
        arrow(&mut svg, &format!("M{from} {}H{to}", y + 18), "line");
        text(&mut svg, WIDTH / 2, y + 12, "", lend.by);
        arrow(&mut svg, &format!("M{to} {}H{from}", y + 36), "line back");
        text(&mut svg, WIDTH / 2, y + 50, "small", lend.back);
    }
    end(svg)
}

/// Where the columns and rows of boxes of a buffer's life begin.
const COLUMNS: [usize; 3] = [MARGIN, (WIDTH - BOX.0) / 2, WIDTH - MARGIN - BOX.0];
const ROWS: [usize; 3] = [14, 148, 270];

fn life() -> String {
    let ([left, middle, right], [frozen, owned, gone]) = (COLUMNS, ROWS);
    let mut svg = begin(gone + BOX.1 + 14, "The states of a buffer, from its send to its return");

    boxed(&mut svg, left, owned, "yours", ["owned", "you read and write it"]);
    boxed(&mut svg, middle, owned, "holder", ["on loan", "request in flight"]);
    boxed(&mut svg, right, owned, "holder", ["on loan", "notification pending"]);
    let [first, second] = [(left, middle), (middle, right)]
        .map(|(from, to)| (from + BOX.0 + 6, to - 6, (from + BOX.0 + to) / 2));
    arrow(&mut svg, &format!("M{} {}H{}", first.0, owned + 18, first.1), "line");
    text(&mut svg, first.2, owned + 12, "", "send");
    arrow(&mut svg, &format!("M{} {}H{}", first.1, owned + 36, first.0), "line back");
    text(&mut svg, first.2, owned + 50, "small", "refused");
    arrow(&mut svg, &format!("M{} {}H{}", second.0, owned + 26, second.1), "line");
    text(&mut svg, second.2, owned + 20, "", "Sent");
    text(&mut svg, second.2, owned + 42, "small", "completion");
    let (from, to, above) = (right + BOX.0 / 2, left + BOX.0 - 20, owned - 22);
    arrow(&mut svg, &format!("M{from} {}V{above}H{to}V{}", owned - 4, owned - 4), "line back");
    text(
        &mut svg,
        (from + to) / 2,
        above - 6,
        "",
        "notification: OnLoan gives the buffer back, with its receipt",
    );

    boxed(&mut svg, left, frozen, "yours", ["frozen", "read only, many holders"]);
    boxed(&mut svg, middle, frozen, "holder", ["clones and parts", "each a loan of its own"]);
    let (up, down) = (left + 40, left + 80);
    arrow(&mut svg, &format!("M{up} {}V{}", owned - 4, frozen + BOX.1 + 4), "line");
    text(&mut svg, up - 24, owned - 36, "", "freeze");
    arrow(&mut svg, &format!("M{down} {}V{}", frozen + BOX.1 + 4, owned - 4), "line back");
    text(&mut svg, down + 98, owned - 52, "small", "try_unfreeze, by the last holder");
    arrow(&mut svg, &format!("M{} {}H{}", first.0, frozen + 18, first.1), "line");
    text(&mut svg, first.2, frozen + 12, "", "send");
    arrow(&mut svg, &format!("M{} {}H{}", first.1, frozen + 36, first.0), "line back");
    text(&mut svg, first.2, frozen + 50, "small", "each returns");

    boxed(&mut svg, left, gone, "yours", ["freed", "or back in its pool"]);
    boxed(&mut svg, middle, gone, "holder", ["handles dropped", "the record owns the buffer"]);
    boxed(&mut svg, right, gone, "holder", ["a handle forgotten", "kept until the driver goes"]);
    let bar = owned + BOX.1 + 24;
    for (x, action, beside) in [(middle, "drop", -24), (right, "forget", 30)] {
        let x = x + BOX.0 / 2;
        line(&mut svg, &format!("<path d=\"M{x} {}V{bar}\" class=\"line\"/>", owned + BOX.1 + 4));
        arrow(&mut svg, &format!("M{x} {bar}V{}", gone - 4), "line");
        text(&mut svg, x.saturating_add_signed(beside), gone - 18, "", action);
    }
    let (from, to) = (middle + BOX.0 / 2, right + BOX.0 / 2);
    line(&mut svg, &format!("<path d=\"M{from} {bar}H{to}\" class=\"line\"/>"));
    arrow(&mut svg, &format!("M{} {}H{}", first.1, gone + 26, first.0), "line back");
    text(&mut svg, first.2, gone + 20, "small", "notification");
    end(svg)
}

/// The beginning of a picture that is `height` high.
fn begin(height: usize, label: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\" role=\"img\" aria-label=\"{label}\">\n\
         <style>\
         .yours{{fill:#dbeafe;stroke:#1d4ed8}}.theirs{{fill:#fef3c7;stroke:#b45309}}\
         .holder{{fill:#f3f4f6;stroke:#4b5563}}text{{fill:#111827}}.small{{font-size:11px;fill:#4b5563}}\
         .line{{stroke:#4b5563;stroke-width:1.5;fill:none}}.back{{stroke-dasharray:5 4}}\
         </style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto-start-reverse\"><path d=\"M0 0 8 4 0 8z\" fill=\"#4b5563\"/></marker>\n",
    )
}

fn end(mut svg: String) -> String {
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

fn arrow(svg: &mut String, path: &str, class: &str) {
    line(svg, &format!("<path d=\"{path}\" class=\"{class}\" marker-end=\"url(#tip)\"/>"));
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
    fn the_pictures_in_the_tree_are_those_that_are_drawn() {
        for (file, draw) in PICTURES {
            let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
            let there = fs::read_to_string(path).expect("the picture is in the tree");
            assert_eq!(there, draw(), "draw {file} anew with: cargo xtask picture");
        }
    }
}
