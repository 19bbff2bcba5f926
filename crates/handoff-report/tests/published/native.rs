//! Each bench lists its rows, including those that cannot run here.

use clap::Parser;
use handoff_bench::{
    command::{BenchArgs, measure},
    report::Row,
};
use handoff_command::{Context, Failure, Stop};
use handoff_testbed::skip;
use serde_json::Value;

const PUBLISHED: &str = include_str!("../../src/seeds.json");

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: BenchArgs,
}

/// The names of our rows beside the figures of one proposal.
fn named(bench: &str) -> Vec<String> {
    let seeds: Vec<Value> = serde_json::from_str(PUBLISHED).expect("JSON");
    let seed = seeds.iter().find(|seed| seed["bench"] == bench).expect("a proposal");
    let rows = seed["rows"].as_array().expect("rows");
    let names = rows.iter().flat_map(|row| [&row["ours"], &row["against"]]);
    let mut names: Vec<String> = names.filter_map(Value::as_str).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// The names of the bench's rows; or why it cannot run here.
fn rows(bench: &str, wanted: &[String]) -> Result<Vec<String>, String> {
    let wanted: Vec<String> = wanted.iter().map(|name| regex_lite::escape(name)).collect();
    // Over veth, a row's name says behind a comma what happens there to lent bytes.
    let only = format!("--only=^({})(, (copied|shares pages))?$", wanted.join("|"));
    let words = ["bench", bench, "--time=0.01", "--rounds=1", &only];
    let line = Line::try_parse_from(words).expect("a command line");
    let context = Context { json: true, stop: Stop::new().expect("a socket pair") };
    let report = match measure(&line.args, &context) {
        Ok(found) => found.report,
        Err(Failure::NotPossible(reason)) => return Err(reason),
        Err(failure) => panic!("{failure:?}"),
    };
    let name = |row: &Row| {
        let name = row.name.as_str();
        let plain =
            [", copied", ", shares pages"].into_iter().find_map(|what| name.strip_suffix(what));
        plain.unwrap_or(name).to_owned()
    };
    Ok(report.rows.iter().map(name).collect())
}

macro_rules! every_row_is_of_the_bench {
    ($($bench:ident)*) => {$(
        #[test]
        fn $bench() {
            let named = named(stringify!($bench));
            assert!(named.len() > 3, "{named:?}");
            let rows = match rows(stringify!($bench), &named) {
                Ok(rows) => rows,
                Err(reason) => skip!("{reason}"),
            };
            let missing: Vec<&String> = named.iter().filter(|name| !rows.contains(name)).collect();
            assert!(missing.is_empty(), "{missing:?} among {rows:?}");
        }
    )*};
}

every_row_is_of_the_bench!(send recv splice rds block);
