//! Mistakes on the command line, and clients who are not let in.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use handoff_testbed::running::Running;

use crate::session::Server;
use crate::session::{command, directory};

fn outcome(place: &Path, options: &[&str]) -> (Option<i32>, String) {
    let output = command(place, options).output().expect("starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_makes_no_sense_is_said() {
    let place = directory(&[("file", 1)]);
    let busy = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = busy.local_addr().expect("bound").to_string();
    for (path, options, code, words) in [
        ("file", &[][..], 2, "is no directory"),
        ("none", &[], 2, "there is no directory"),
        ("", &["--listen", "127.0.0.1"], 2, "port is missing"),
        ("", &["--listen", "::1:80"], 2, "brackets"),
        ("", &["--listen", "192.0.2.1:0"], 1, "can't listen on 192.0.2.1:0"),
        ("", &["--listen", &address], 1, "in use"),
        ("", &["--threads", "0"], 2, "threads"),
        ("", &["--threads", "3", "--max-connections", "2"], 2, "below --threads"),
        ("", &["--idle", "0"], 2, "above 0"),
    ] {
        let (ended, errors) = outcome(&place.path().join(path), options);
        assert_eq!(ended, Some(code), "{errors}");
        assert!(errors.contains(words), "{errors}");
    }
}

#[test]
fn a_port_in_use_is_one_also_for_several_threads() {
    let place = directory(&[("file", 1)]);
    for threads in ["1", "2"] {
        let serving = Server::start(place.path(), &["--threads", threads]);
        let address = serving.address.to_string();
        for other in ["1", "2"] {
            let (code, errors) = outcome(place.path(), &["--listen", &address, "--threads", other]);
            assert_eq!(code, Some(1), "{errors}");
            assert!(errors.contains("in use"), "{errors}");
        }
    }
}

#[test]
fn a_client_has_no_more_than_its_share() {
    let place = directory(&[("file", 1)]);
    let serving = Server::start(place.path(), &["--max-per-client", "1"]);
    let mut first = serving.connect();
    first.write_all(b"HEAD /file HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
    let mut status = [0; 12];
    first.read_exact(&mut status).expect("is answered");
    assert_eq!(&status, b"HTTP/1.1 200");
    assert_eq!(serving.connect().read(&mut [0]).expect("is closed"), 0);
    assert_eq!(serving.stop()["turned_away"], 1);
}

#[test]
fn a_client_leaves_others_a_quarter_of_all_places() {
    let place = directory(&[("file", 1)]);
    let serving = Server::start(place.path(), &["--max-connections", "4", "--idle", "600"]);
    let own = [(); 4].map(|()| serving.connect_from([127, 0, 0, 2]));
    assert_eq!(serving.ask("GET /file", "").status, 200);
    let [.., mut fourth] = own;
    assert_eq!(fourth.read(&mut [0]).expect("is closed"), 0);
    serving.signal(rustix::process::Signal::TERM);
    let ended = serving.end();
    assert!(ended.stderr.contains("as many connections as it may: 127.0.0.2"), "{ended:?}");
    assert_eq!(ended.json()["turned_away"], 1, "{ended:?}");
}

#[test]
fn that_anyone_may_read_is_said() {
    let place = directory(&[("file", 1)]);
    let serving = Running::start(&mut command(place.path(), &["--listen", "0.0.0.0:0"]));
    serving.line("anyone who reaches 0.0.0.0:");
}

#[test]
fn only_those_who_are_named_are_served() {
    let place = directory(&[("file", 1)]);
    let options = ["--from", "127.0.0.1", "--max-connections", "2", "--idle", "600"];
    let serving = Server::start(place.path(), &options);
    // Silent, they have no place among the connections.
    let strangers = [(); 2].map(|()| serving.connect_from([127, 0, 0, 2]));
    assert_eq!(serving.ask("GET /file", "").status, 200);
    for mut stranger in strangers {
        assert_eq!(stranger.read(&mut [0]).expect("is closed"), 0);
    }
    serving.signal(rustix::process::Signal::TERM);
    let ended = serving.end();
    assert!(ended.stderr.contains("turned a connection from 127.0.0.2"), "{ended:?}");
    assert_eq!(ended.json()["turned_away"], 2, "{ended:?}");
    assert_eq!(ended.json()["connections"], 1, "{ended:?}");
}
