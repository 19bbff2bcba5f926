//! A server in a process of its own, which can be killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use handoff_block::{Server, Spec, Start};

const SPEC: &str = "FIXTURE_SPEC";
const SERVES: &str = "fixture serves ";

/// Starts one, and returns the device's number.
pub(super) fn server(spec: &Spec) -> (Child, u32) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "--ignored", "guest::fixture::serve", "--nocapture"]);
    command.env(SPEC, serde_json::to_string(spec).expect("JSON"));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let id = lines.find_map(|line| {
        let line = line.expect("text");
        line.split_once(SERVES).map(|(_, id)| id.parse().expect("a number"))
    });
    (child, id.expect("a device"))
}

#[test]
#[ignore = "fixture: serves until it is killed"]
fn serve() {
    let spec = std::env::var(SPEC).expect("the subject of another test");
    let spec: Spec = serde_json::from_str(&spec).expect("a specification");
    let server = Server::start(&spec, Start::New).unwrap_or_else(|error| panic!("{error}"));
    println!("{SERVES}{}", server.id());
    server.wait().expect("served");
}
