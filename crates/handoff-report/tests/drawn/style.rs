//! Readable by day, by night and on paper.

use std::collections::BTreeMap;

use regex_lite::Regex;

use crate::sample;

/// What WCAG asks of text, and of what is drawn.
const TEXT: f64 = 4.5;
const DRAWN: f64 = 3.0;

type Palette = BTreeMap<String, String>;

/// The colours of the rules that begin with this.
fn palette(page: &str, begin: &str) -> Palette {
    let (_, rest) = page.split_once(begin).unwrap_or_else(|| panic!("no {begin}"));
    let (_, rest) = rest.split_once(":root {").expect("colours");
    let (rules, _) = rest.split_once('}').expect("their end");
    let rule = Regex::new(r"--([a-z0-9]+): #([0-9a-f]{3,6});").unwrap();
    rule.captures_iter(rules).map(|it| (it[1].to_owned(), it[2].to_owned())).collect()
}

fn luminance(colour: &str) -> f64 {
    let width = colour.len() / 3;
    let part = |at: usize| {
        let digits = &colour[at * width..(at + 1) * width];
        let value = u8::from_str_radix(digits, 16).expect("digits");
        let value = f64::from(if width == 1 { value * 17 } else { value }) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * part(0) + 0.7152 * part(1) + 0.0722 * part(2)
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn colours_stand_out_in_light_dark_and_print() {
    assert!((contrast("000", "ffffff") - 21.0).abs() < 1e-9);
    let page = sample::drawn();
    let schemes = ["<style>", "@media (prefers-color-scheme: dark)", "@media print"];
    let palettes = schemes.map(|begin| palette(&page, begin));
    assert!(luminance(&palettes[1]["paper"]) < 0.05 && palettes[2]["paper"] == "fff");
    for (palette, scheme) in palettes.iter().zip(schemes) {
        assert_eq!(palette.keys().collect::<Vec<_>>(), palettes[0].keys().collect::<Vec<_>>());
        for (name, colour) in
            palette.iter().filter(|(name, _)| !["paper", "panel", "rule"].contains(&name.as_str()))
        {
            let enough = if name.starts_with('s') { DRAWN } else { TEXT };
            for ground in ["paper", "panel"] {
                let found = contrast(colour, &palette[ground]);
                assert!(found >= enough, "{scheme}: {name} on {ground} is {found:.2}");
            }
        }
    }
}

#[test]
fn lines_can_be_told_apart_without_colours() {
    let page = sample::drawn();
    let (_, figure) = page.split_once("<figure").unwrap();
    let (figure, _) = figure.split_once("</figure>").unwrap();
    let styles = Regex::new(r#"class="line (s\d)""#).unwrap();
    let used: Vec<&str> =
        styles.captures_iter(figure).map(|it| it.get(1).unwrap().as_str()).collect();
    // Each line, and its swatch.
    assert_eq!(used, ["s0", "s1", "s0", "s1"]);
    assert!(page.contains(".s1 polyline { stroke-dasharray:") && !page.contains(".s0 polyline"));
}
