//! Every relative link of a page leads to a file of the tree, and to an existing heading.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the tree").to_owned()
}

/// The files below a directory with one of these endings; built or fetched files do not belong to the tree.
pub(crate) fn files(directory: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry"))
    {
        let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
        let name = entry.file_name();
        if kind.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            files(&path, endings, found);
        } else if kind.is_file() && endings.iter().any(|it| name.to_string_lossy().ends_with(it)) {
            found.push(path);
        }
    }
}

/// The lines outside of blocks of code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The links of a line, including images: the text between `](` and `)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// The anchors of a page's headings, as code hosts make them.
fn anchors(text: &str) -> Vec<String> {
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    let anchor = |(_, line): (usize, &str)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = |sign: &char| sign.is_alphanumeric() || matches!(sign, ' ' | '-' | '_');
        let plain: String = title.chars().filter(kept).collect::<String>().replace(' ', "-");
        let before = uses.entry(plain.clone()).or_default();
        *before += 1;
        if *before == 1 { plain } else { format!("{plain}-{}", *before - 1) }
    };
    headings.map(anchor).collect()
}

/// What is wrong with the links of a page; a line for each fault.
fn faults(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let mut faults = Vec::new();
    for (number, line) in prose(&text) {
        for link in links(line).filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.to_owned(),
                file => page.parent().expect("a directory").join(file),
            };
            let has_anchor = || {
                let text = fs::read_to_string(&target).unwrap_or_default();
                anchors(&text).iter().any(|found| found == anchor)
            };
            if !target.exists() || (!anchor.is_empty() && !has_anchor()) {
                faults.push(format!("{}:{number}: {link}", page.display()));
            }
        }
    }
    faults
}

#[test]
fn every_link_leads_somewhere() {
    let mut found = Vec::new();
    files(&root(), &[".md"], &mut found);
    assert!(found.len() > 20, "{found:?}");
    let faults: Vec<String> = found.iter().flat_map(|page| faults(page)).collect();
    assert!(faults.is_empty(), "these lead nowhere:\n{}", faults.join("\n"));
}

/// Sources and the Makefile name pages by their paths.
#[test]
fn every_page_that_a_source_names_is_there() {
    let mut found = Vec::new();
    files(&root(), &[".rs", ".c", ".h", "Makefile"], &mut found);
    let mut lost = Vec::new();
    for source in &found {
        let text = fs::read_to_string(source).expect("a source");
        for rest in text.split("docs/").skip(1) {
            let in_path = |sign: char| sign.is_ascii_alphanumeric() || "-_/.".contains(sign);
            let path = rest.split(|sign| !in_path(sign)).next().unwrap_or_default();
            let page = path.trim_end_matches('.');
            if page.ends_with(".md") && !root().join("docs").join(page).exists() {
                lost.push(format!("{}: docs/{page}", source.display()));
            }
        }
    }
    assert!(lost.is_empty(), "no such pages:\n{}", lost.join("\n"));
}

/// `docs/README.md` is the index: nobody finds a page that it does not name.
#[test]
fn the_index_names_every_page() {
    let index = root().join("docs/README.md");
    let text = fs::read_to_string(&index).expect("the index");
    let named: Vec<&str> = prose(&text).flat_map(|(_, line)| links(line)).collect();
    let entries = fs::read_dir(root().join("docs")).expect("the pages");
    let names =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    let lost: Vec<String> = names
        .filter(|name| {
            name.ends_with(".md") && name != "README.md" && !named.contains(&name.as_str())
        })
        .collect();
    assert!(lost.is_empty(), "docs/README.md does not name {lost:?}");
}

#[test]
fn a_link_to_nowhere_is_found() {
    let tree = tempfile::tempdir().expect("a directory");
    let page = tree.path().join("page.md");
    fs::write(
        tree.path().join("other.md"),
        "# A `title`, here\n```\n# no title\n```\n## Twice\n## Twice\n",
    )
    .expect("writes");
    let lines = [
        "[a](other.md) [b](other.md#a-title-here) [c](https://example.org/x) ![d](other.md#twice-1)",
        "[e](lost.md) and [f](other.md#no-title), [g](#page)",
        "# Page",
        "```\n[h](lost.md)\n```",
        "[i](#pages)",
    ];
    fs::write(&page, lines.join("\n")).expect("writes");
    let faults = faults(&page);
    let of = |fault: &str| format!("{}:{fault}", page.display());
    assert_eq!(faults, ["2: lost.md", "2: other.md#no-title", "7: #pages"].map(of));
}
