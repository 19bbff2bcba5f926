//! What the page must and must not contain.

use std::collections::{BTreeMap, BTreeSet};

use handoff_report::{Environment, Findings};
use regex_lite::Regex;

use crate::sample::{self, PROBLEM, STRANGE};

const EMBEDDED: &str = r#"<script type="application/json" id="findings">"#;

/// The page without its JSON, and the JSON.
fn parts(page: &str) -> (String, &str) {
    let (before, rest) = page.split_once(EMBEDDED).expect("the JSON begins");
    let (json, after) = rest.split_once("</script>").expect("the JSON ends");
    (format!("{before}{after}"), json)
}

/// What a browser shows of a text.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn all<'a>(pattern: &str, text: &'a str) -> Vec<&'a str> {
    let pattern = Regex::new(pattern).expect("a pattern");
    pattern.captures_iter(text).map(|found| found.get(1).expect("a group").as_str()).collect()
}

#[test]
fn every_row_is_there() {
    let drawn = sample::drawn();
    let (page, _) = parts(&drawn);
    let mut expected: BTreeMap<String, usize> = BTreeMap::new();
    for report in sample::findings().runs.iter().filter_map(|run| run.report.as_ref()) {
        for row in &report.rows {
            *expected.entry(row.name.clone()).or_default() += 1;
        }
    }
    assert!(expected.len() > 15);
    let (_, tables) = page.split_once(r#"<section id="rows">"#).expect("the tables");
    for (name, count) in expected {
        let cell = format!(r#"<th scope="row">{}</th>"#, escaped(&name));
        assert!(tables.matches(&cell).count() >= count, "{name}");
    }
    for figure in ["15000", "200.0", "12.00", "2.0 %", "1.83 (1.65–2.02)", "7.2.1"] {
        assert!(page.contains(figure), "{figure}");
    }
}

#[test]
fn where_report_and_witness_disagree_is_said() {
    let drawn = sample::drawn();
    let (page, _) = parts(&drawn);
    let (_, copied) = page.split_once(r#"<section id="copied">"#).expect("the shares");
    let (copied, _) = copied.split_once("</section>").expect("their end");
    assert!(copied.contains("disagree in 1 of 9 rows that have both"), "{copied}");
    let line = "depth=1 get-nop: reported 0 %; witness 25 %: 25 % by ";
    assert!(copied.contains(&format!("<li>{line}{} for a_caller</li>", escaped(STRANGE))));
    assert!(copied.contains("agree in all 4 rows that have both"), "{copied}");
}

#[test]
fn text_of_strangers_stays_text() {
    let drawn = sample::drawn();
    let (page, json) = parts(&drawn);
    assert!(page.matches(&escaped(STRANGE)).count() >= 5);
    for raw in ["<script", "<img", "alert(\""] {
        assert!(!page.contains(raw), "{raw}");
    }
    assert!(!json.contains(['<', '>', '&']));
    assert_eq!(drawn.matches("</script>").count(), 1);
}

#[test]
fn the_json_inside_draws_the_same_page() {
    let drawn = sample::drawn();
    let (_, json) = parts(&drawn);
    let findings: Findings = serde_json::from_str(json).expect("it is JSON");
    assert_eq!(findings, sample::findings());
    assert_eq!(handoff_report::page(&findings, &findings.json().unwrap()), drawn);
}

#[test]
fn nothing_is_loaded() {
    let drawn = sample::drawn();
    let (page, _) = parts(&drawn);
    let values = all(r#"(?:src|href|srcset|data|action|poster|background)="([^"]*)""#, &page);
    assert!(values.len() > 8, "{values:?}");
    for value in values {
        assert!(value.starts_with('#') || value.starts_with("data:image/svg+xml,"), "{value}");
    }
    for loading in ["url(", "@import", "<iframe", "<object", "<embed", "<link rel=\"stylesheet\""] {
        assert!(!page.contains(loading), "{loading}");
    }
    let policy = all(r#"http-equiv="Content-Security-Policy" content="([^"]*)""#, &page);
    assert!(policy[0].starts_with("default-src 'none';"), "{policy:?}");
}

#[test]
fn references_within_the_page_arrive() {
    let drawn = sample::drawn();
    let (page, _) = parts(&drawn);
    let ids = all(r#" id="([^"]*)""#, &page);
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len(), "an id stands twice: {ids:?}");
    let referred = all(r#"href="\#([^"]*)""#, &page);
    let described = all(r#"aria-labelledby="([^"]*)""#, &page);
    assert!(referred.len() > 10 && described.len() > 4);
    for id in referred.into_iter().chain(described.iter().flat_map(|ids| ids.split(' '))) {
        assert!(unique.contains(id), "{id}");
    }
}

#[test]
fn elements_end() {
    let drawn = sample::drawn();
    let mut open = Vec::new();
    let tags = Regex::new(r"<(/?)([a-z][a-z0-9]*)[^>]*>").unwrap();
    for tag in tags.captures_iter(&drawn) {
        let name = tag.get(2).unwrap().as_str();
        if ["meta", "link", "br"].contains(&name) {
            continue;
        }
        if tag[1].is_empty() {
            open.push(name);
        } else {
            assert_eq!(open.pop(), Some(name));
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn a_bench_without_rows_stands_with_its_reason() {
    let drawn = sample::drawn();
    let (page, _) = parts(&drawn);
    let (_, missing) = page.split_once(r#"<section id="missing">"#).expect("the section");
    assert!(missing.contains("handoff bench block --lab") && missing.contains(PROBLEM));
    let (missing, _) = missing.split_once("</section>").unwrap();
    assert!(missing.contains("</code> on ublk: ") && missing.contains(" → modprobe ublk_drv"));
    // And where its figures would be.
    let (_, article) = page.split_once(r#"<article id="seed-block">"#).expect("the article");
    let (article, _) = article.split_once("</article>").unwrap();
    assert!(article.contains(&format!("emulated: not measured. {PROBLEM}")), "{article}");
    assert!(article.contains("5.00"), "the shares' ratio: {article}");
}

#[test]
fn native_and_emulated_stand_apart() {
    let drawn = sample::drawn();
    let (page, _) = parts(&drawn);
    let figures = all(r"(?s)<figure(.*?)</figure>", &page);
    assert_eq!(figures.len(), 5, "send twice, splice, the published, recv");
    let captions = all("<figcaption>([^<]*)</figcaption>", &page);
    let of = |word: &str| captions.iter().filter(|caption| caption.starts_with(word)).count();
    assert_eq!((of("Native"), of("Emulated"), of("As published")), (1, 3, 1), "{captions:?}");
    for run in sample::findings().runs.iter().filter(|run| run.report.is_some()) {
        let place = if run.environment == Environment::Native { "native" } else { "emulated" };
        let title = format!(r#"<h3>{} <span class="place {place}">{place}</span></h3>"#, run.bench);
        assert!(page.contains(&title), "{title}");
    }
}

#[test]
fn a_curve_is_against_its_reference_and_says_where_it_pays() {
    let drawn = sample::drawn();
    // 0.75, 1.75 and 2.75 times MSG_ZEROCOPY, which copying is 1.5 of.
    assert!(drawn.contains("uring-zc-fixed flush=no batch=8, 65435: 1.83 (1.65–2.02)"));
    assert!(drawn.contains("uring-zc-fixed flush=no batch=8 pays from 8k bytes"));
    assert!(drawn.contains("msg-zerocopy-seed does not pay at the largest"));
}

#[test]
fn no_findings_are_a_page_too() {
    let empty = Findings { availability: Vec::new(), runs: Vec::new(), ..sample::findings() };
    let page = handoff_report::page(&empty, &empty.json().unwrap());
    assert!(page.contains("116,079"), "published figures stand without ours");
    assert!(page.matches("not measured. It was not run.").count() >= 8);
    assert_eq!(page.matches("not drawn. It was not run.").count(), 8);
}
