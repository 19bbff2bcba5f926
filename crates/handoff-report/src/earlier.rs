//! `--from`: results of earlier runs, from files.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use handoff_bench::report::Report;
use handoff_command::Failure;

use crate::{
    findings::{Environment, Findings, Run},
    page::EMBEDDED,
};

/// The extensions that are read from a directory.
const EXTENSIONS: [&str; 2] = ["json", "html"];

/// Reads the files, and the files in the directories.
///
/// A file is the JSON of a bench or of a page, or a page. Other files in directories are skipped.
///
/// # Errors
///
/// [`Failure::Usage`] names the file that cannot be read or is of another kind.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Findings, Failure> {
    let mut findings = Findings {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        availability: Vec::new(),
        runs: Vec::new(),
    };
    for path in paths {
        let usage = |reason: String| Failure::Usage(format!("{}: {reason}", path.display()));
        if !path.is_dir() {
            let text = fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
            add(&mut findings, path, &text).map_err(usage)?;
            continue;
        }
        let list = || -> std::io::Result<Vec<PathBuf>> {
            fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect()
        };
        let mut files = list().map_err(|error| usage(error.to_string()))?;
        files.retain(|file| file.extension().is_some_and(|it| EXTENSIONS.iter().any(|e| it == *e)));
        files.sort();
        let before = findings.runs.len();
        for file in files {
            if let Ok(text) = fs::read_to_string(&file) {
                let _of_others = add(&mut findings, &file, &text);
            }
        }
        if findings.runs.len() == before {
            return Err(usage("no results of benches in this directory".to_owned()));
        }
    }
    Ok(findings)
}

/// Adds the content of one file.
fn add(findings: &mut Findings, path: &Path, text: &str) -> Result<(), String> {
    let json = embedded(text).unwrap_or(text);
    if let Ok(report) = serde_json::from_str::<Report>(json) {
        findings.runs.push(Run {
            environment: if report.emulated { Environment::Emulated } else { Environment::Native },
            bench: report.bench.clone(),
            origin: path.display().to_string(),
            report: Some(report),
            problem: None,
            failed: false,
        });
        return Ok(());
    }
    let earlier: Findings = serde_json::from_str(json).map_err(|error| {
        format!("neither the JSON of `handoff bench` nor that of a page of this version: {error}")
    })?;
    for found in earlier.availability {
        // The page has one column for each environment, so the first answers of an environment stand.
        if findings.availability.iter().all(|other| other.environment != found.environment) {
            findings.availability.push(found);
        }
    }
    findings.runs.extend(earlier.runs);
    Ok(())
}

/// The JSON in a page; `None` if the text is no page.
fn embedded(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once(EMBEDDED)?;
    Some(rest.split_once("</script>")?.0)
}
