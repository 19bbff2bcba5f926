//! `docs/commands.md` names every key of the JSON that commands print.

use std::fs;
use std::path::Path;

use syn::{Expr, Field, Fields, Item, LitStr};

/// Where a command's JSON comes from: the page's section, the source, and the structures in it.
const PRINTED: [(&str, &str, &[&str]); 15] = [
    ("doctor", "crates/handoff-probe/src/mechanism.rs", &["Mechanism"]),
    ("cp", "crates/handoff-cp/src/report.rs", &["Report", "Ciphered", "Hop"]),
    ("cp", "crates/handoff-net/src/arrived.rs", &["Arrived"]),
    ("cp", "crates/handoff-command/src/growth.rs", &["Growth"]),
    ("relay", "crates/handoff-cli/src/relay/report.rs", &["Report"]),
    ("serve", "crates/handoff-cli/src/serve/report.rs", &["Report", "OverTls", "Ciphers"]),
    ("rds", "crates/handoff-cli/src/rds/ping.rs", &["Report"]),
    ("rds", "crates/handoff-cli/src/rds/report.rs", &["Report", "Percentiles"]),
    ("rds", "crates/handoff-cli/src/rds/info.rs", &["Info", "Socket", "Way", "Amount"]),
    ("rds", "crates/handoff-rds/src/kernel/information.rs", &["Counter", "Connection", "Bound"]),
    ("nic", "crates/handoff-nic/src/nic.rs", &["Nic"]),
    ("meter", "crates/handoff-meter/src/report.rs", &["Report", "Totals", "Place"]),
    ("tour", "crates/handoff-workshop/src/tour/report.rs", &["Report", "Chain", "Hop"]),
    ("bench", "bench/src/report.rs", &["Report"]),
    ("report", "crates/handoff-report/src/findings.rs", &["Findings", "Availability", "Run"]),
];
/// Those of a bench's rows.
const ROWS: [(&str, &str, &[&str]); 3] = [
    ("bench", "bench/src/report/row.rs", &["Row"]),
    ("bench", "bench/src/report/config.rs", &["Config"]),
    ("bench", "bench/src/report/latency.rs", &["Latency"]),
];

/// Whether a field is not a key itself: it is flattened, skipped, or removed before anything is printed.
fn is_taken_apart(field: &Field) -> bool {
    let serde = field.attrs.iter().filter(|attribute| attribute.path().is_ident("serde"));
    let said = serde.filter_map(|attribute| attribute.meta.require_list().ok());
    let mut said = said.map(|list| list.tokens.to_string());
    said.any(|text| text.contains("flatten") || text == "skip")
        || field.ident.as_ref().is_some_and(|name| name == "disagreement")
}

/// The key of a field: its name, unless serde is to print another one.
fn key(field: &Field) -> Option<String> {
    let mut key = field.ident.as_ref()?.to_string();
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        let read = attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("rename") {
                key = meta.value()?.parse::<LitStr>()?.value();
            } else if let Ok(value) = meta.value() {
                value.parse::<Expr>()?;
            }
            Ok(())
        });
        read.expect("an attribute of serde");
    }
    Some(key)
}

/// The keys of a structure.
fn keys(source: &str, structure: &str) -> Vec<String> {
    let file = syn::parse_file(source).expect("a source");
    let fields = file.items.into_iter().find_map(|item| match item {
        Item::Struct(found) if found.ident == structure => Some(found.fields),
        _ => None,
    });
    let Some(Fields::Named(fields)) = fields else { panic!("no structure {structure}") };
    let printed = fields.named.iter().filter(|field| !is_taken_apart(field));
    printed.filter_map(key).collect()
}

#[test]
fn the_page_of_commands_names_every_key() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the tree");
    let page = fs::read_to_string(root.join("docs/commands.md")).expect("the page");
    let mut lost = Vec::new();
    for (section, source, structures) in PRINTED.iter().chain(&ROWS) {
        let (_, text) = page.split_once(&format!("\n## {section}\n")).expect("a section");
        let text = text.split("\n## ").next().unwrap_or_default();
        let source_text = fs::read_to_string(root.join(source)).expect("a source");
        for structure in *structures {
            let unnamed = keys(&source_text, structure).into_iter();
            let unnamed = unnamed.filter(|key| !text.contains(&format!("`{key}`")));
            lost.extend(
                unnamed.map(|key| format!("{section}: `{key}` of {structure} in {source}")),
            );
        }
    }
    assert!(lost.is_empty(), "docs/commands.md does not name:\n{}", lost.join("\n"));
}
