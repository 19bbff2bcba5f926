//! `cargo xtask published`: what others build on: licences, known faults and sources of the dependencies, the
//! oldest compiler, and the API beside that of an earlier revision. Other people's programs do it; one that is not
//! there is named with how to get it, and nothing is message to have passed that did not run.

use std::collections::BTreeSet;
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

/// The packages whose API is promised.
const PROMISED: [&str; 4] = ["handoff-io", "handoff-http", "handoff-rds", "handoff-block"];

/// Arguments of `cargo xtask published`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compare the public API with that of this revision
    #[arg(long, value_name = "REV")]
    since: Option<String>,

    /// Take the database of known faults as it is, without the network
    #[arg(long)]
    offline: bool,
}

/// How a check ended.
enum End {
    Passed(String),
    Failed(String),
    NotRun(String),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let metadata = metadata()?;
    let oldest = oldest(&metadata)?;
    let checks = [
        ("licences, sources", deny(&["bans", "licenses", "sources"], true)),
        ("known faults", deny(&["advisories"], args.offline)),
        ("dependencies' Rust", needs_no_newer(&metadata, &oldest)),
        ("builds by the oldest Rust", builds_by(&oldest)),
        ("public API", semver(args.since.as_deref())),
    ];
    let mut code = ExitCode::SUCCESS;
    for (what, end) in checks {
        let (word, why) = match end {
            End::Passed(how) => ("passed", how),
            End::NotRun(why) => ("not run", why),
            End::Failed(why) => {
                code = ExitCode::FAILURE;
                ("failed", why)
            }
        };
        println!("{what:26} {word:8} {why}");
    }
    Ok(code)
}

/// Runs a command, whose output is for people.
fn passes(command: &mut Command, how: String) -> End {
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => End::Passed(how),
        Ok(status) => End::Failed(format!("{status}; its output is above")),
        Err(error) => End::Failed(format!("{}: {error}", command.get_program().display())),
    }
}

/// A part of Cargo that is installed by itself.
fn installed(part: &str) -> Result<(), End> {
    let asked = Command::new("cargo").args([part, "--version"]).output();
    match asked {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(End::NotRun(format!("cargo install --locked cargo-{part}"))),
    }
}

fn deny(what: &[&str], offline: bool) -> End {
    if let Err(end) = installed("deny") {
        return end;
    }
    let mut command = Command::new("cargo");
    command.args(["deny", "--log-level=error"]).args(offline.then_some("--offline"));
    passes(command.arg("check").args(what), "deny.toml".to_owned())
}

fn semver(since: Option<&str>) -> End {
    if let Err(end) = installed("semver-checks") {
        return end;
    }
    let Some(since) = since else {
        return End::NotRun("there is no release to compare with: --since REV".to_owned());
    };
    let mut command = Command::new("cargo");
    command.args(["semver-checks", "check-release", "--all-features", "--baseline-rev", since]);
    for package in PROMISED {
        command.args(["--package", package]);
    }
    passes(&mut command, format!("since {since}"))
}

fn builds_by(oldest: &str) -> End {
    let asked = Command::new("rustup").args(["run", oldest, "rustc", "--version"]).output();
    if !asked.is_ok_and(|output| output.status.success()) {
        return End::NotRun(format!("rustup toolchain install {oldest} --profile minimal"));
    }
    let mut command = Command::new("rustup");
    command.args(["run", oldest, "cargo", "check", "--workspace", "--all-features"]);
    // Another compiler's files beside ours would be built in turns.
    command.args(["--target-dir", "target/oldest"]);
    for package in super::test::NOT_PUBLISHED {
        command.args(["--exclude", package]);
    }
    passes(&mut command, oldest.to_owned())
}

fn metadata() -> Result<Value, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version=1", "--all-features", "--locked"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// The packages of `metadata`, in two heaps: ours, others.
fn packages(metadata: &Value) -> (Vec<&Value>, Vec<&Value>) {
    let list = |name: &str| metadata[name].as_array().into_iter().flatten();
    let ours: BTreeSet<_> = list("workspace_members").filter_map(Value::as_str).collect();
    list("packages").partition(|package| ours.contains(package["id"].as_str().unwrap_or_default()))
}

/// The one `rust-version` of our packages.
fn oldest(metadata: &Value) -> Result<String, String> {
    let ours = packages(metadata).0;
    let versions: BTreeSet<_> = ours.iter().filter_map(|it| it["rust_version"].as_str()).collect();
    match Vec::from_iter(versions).as_slice() {
        [one] => Ok((*one).to_owned()),
        several => Err(format!("our packages have several rust-versions: {several:?}")),
    }
}

fn needs_no_newer(metadata: &Value, oldest: &str) -> End {
    let key = |version: &str| -> Vec<u32> {
        let mut parts: Vec<_> = version.split('.').map(|part| part.parse().unwrap_or(0)).collect();
        parts.resize(3, 0);
        parts
    };
    let others = packages(metadata).1;
    let needs = others.iter().filter_map(|it| Some((it["rust_version"].as_str()?, *it)));
    let Some((version, package)) = needs.max_by_key(|(version, _)| key(version)) else {
        return End::Failed("no package says what it needs".to_owned());
    };
    let message =
        format!("{} needs {version}, we say {oldest}", package["name"].as_str().unwrap_or("?"));
    if key(version) > key(oldest) { End::Failed(message) } else { End::Passed(message) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metadata(ours: &str, others: &str) -> Value {
        json!({
            "workspace_members": ["a"],
            "packages": [
                { "id": "a", "name": "a", "rust_version": ours },
                { "id": "b", "name": "b", "rust_version": others },
                { "id": "c", "name": "c", "rust_version": null },
            ],
        })
    }

    #[test]
    fn a_dependency_that_needs_more_is_found() {
        for (others, fails) in [("1.91.1", true), ("1.100", true), ("1.91", false), ("1.9", false)]
        {
            let metadata = metadata("1.91", others);
            let oldest = oldest(&metadata).expect("one");
            assert_eq!(
                matches!(needs_no_newer(&metadata, &oldest), End::Failed(_)),
                fails,
                "{others}"
            );
        }
    }
}
