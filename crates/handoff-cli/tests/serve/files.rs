//! Files, ranges of them, and their states.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;
use std::time::{Duration, SystemTime};

use handoff_testbed::skip;

use crate::session::Server;
use crate::session::{content, directory};

#[test]
fn files_come_whole_and_in_ranges() {
    let lengths = [0, 1, 5_000, 65_535, 65_536, 3_000_001];
    let names: Vec<String> = lengths.iter().map(|len| format!("{len}.bin")).collect();
    let files: Vec<_> = names.iter().map(String::as_str).zip(lengths).collect();
    let place = directory(&files);
    let serving = Server::start(place.path(), &[]);
    let mut bytes = 0;
    for (name, len) in files {
        let all = content(len);
        let answer = serving.ask(&format!("GET /{name}"), "");
        assert_eq!((answer.status, answer.body == all), (200, true), "{name}");
        assert_eq!(answer.field("Content-Length"), Some(len.to_string().as_str()));
        assert_eq!(answer.field("Content-Type"), Some("application/octet-stream"));
        assert_eq!(answer.field("Accept-Ranges"), Some("bytes"));
        bytes += len;
        let head = serving.ask(&format!("HEAD /{name}"), "Range: bytes=0-0\r\n");
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.field("Content-Length"), Some(len.to_string().as_str()));
        let part = serving.ask(&format!("GET /{name}"), "Range: bytes=100-\r\n");
        if len == 0 {
            assert_eq!((part.status, part.body.len()), (200, 0));
        } else if len <= 100 {
            let told = format!("bytes */{len}");
            assert_eq!((part.status, part.field("Content-Range")), (416, Some(told.as_str())));
        } else {
            let told = format!("bytes 100-{}/{len}", len - 1);
            assert_eq!((part.status, part.field("Content-Range")), (206, Some(told.as_str())));
            assert!(part.body == all[100..], "{name}");
            bytes += len - 100;
        }
    }
    let report = serving.stop();
    assert_eq!(report["statuses"]["200"], 13, "{report}");
    let sum = |tally: &serde_json::Value| {
        ["zero_copy", "copied", "unknown"]
            .map(|it| tally[it].as_u64().expect("a number"))
            .iter()
            .sum::<u64>()
    };
    assert_eq!(sum(&report["taken"]), bytes as u64, "{report}");
    // Whichever way serves: where it is not the best, the reason is told.
    let lent = report["notes"].as_array().expect("a list").is_empty();
    assert!(lent || report["notes"].to_string().contains("get-buf can't serve"), "{report}");
    assert_eq!(report["bytes"], sum(&report["given"]), "{report}");
}

#[test]
fn a_file_is_asked_for_by_its_state() {
    let place = directory(&[("page.html", 10)]);
    let serving = Server::start(place.path(), &[]);
    let answer = serving.ask("GET /page.html", "");
    assert_eq!(answer.field("Content-Type"), Some("text/html"));
    let etag = answer.field("ETag").expect("has one").to_owned();
    let modified = answer.field("Last-Modified").expect("has one").to_owned();
    for fields in
        [format!("If-None-Match: {etag}\r\n"), format!("If-Modified-Since: {modified}\r\n")]
    {
        let unchanged = serving.ask("GET /page.html", &fields);
        assert_eq!((unchanged.status, unchanged.body.len()), (304, 0), "{fields}");
        assert_eq!(unchanged.field("ETag"), Some(etag.as_str()));
        assert_eq!(unchanged.field("Content-Length"), None);
    }
    let range = format!("Range: bytes=2-3\r\nIf-Range: {etag}\r\n");
    assert_eq!(serving.ask("GET /page.html", &range).body, content(10)[2..4]);
    fs::write(place.path().join("page.html"), b"longer than before").expect("writes");
    let changed = serving.ask("GET /page.html", &range);
    assert_eq!((changed.status, &changed.body[..]), (200, &b"longer than before"[..]));
    let failed = serving.ask("GET /page.html", &format!("If-Match: {etag}\r\n"));
    assert_eq!(failed.status, 412);
}

#[test]
fn copies_of_a_file_are_the_same_to_clients() {
    let [one, other] = [(); 2].map(|()| directory(&[("file", 10)]));
    let [here, there] = [&one, &other].map(|place| Server::start(place.path(), &[]));
    let etag = here.ask("GET /file", "").field("ETag").expect("has one").to_owned();
    assert!(!etag.starts_with("W/"), "{etag}");
    let path = other.path().join("file");
    // Of which the state is none.
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("sets");
    let part = format!("Range: bytes=5-\r\nIf-Range: {etag}\r\n");
    for (fields, status) in [(format!("If-None-Match: {etag}\r\n"), 304), (part.clone(), 206)] {
        assert_eq!(there.ask("GET /file", &fields).status, status, "{fields}");
    }
    // One that was just written may change again without another time.
    fs::write(&path, b"0123456789").expect("writes");
    let answer = there.ask("GET /file", &part);
    assert_eq!((answer.status, &answer.body[..]), (200, &b"0123456789"[..]));
}

#[test]
fn a_directory_that_is_exchanged_is_served_anew() {
    let place = directory(&[("one/file", 1), ("two/file", 2)]);
    let current = place.path().join("current");
    symlink("one", &current).expect("links");
    let serving = Server::start(&current, &["--threads", "2"]);
    let lens = || [(); 8].map(|()| serving.ask("GET /file", "").body.len());
    assert_eq!(lens(), [1; 8]);
    let next = place.path().join("next");
    symlink("two", &next).expect("links");
    fs::rename(&next, &current).expect("switches");
    assert_eq!(lens(), [2; 8]);
    fs::remove_dir_all(place.path().join("two")).expect("removes");
    assert_eq!(serving.ask("GET /file", "").status, 404);
    fs::create_dir(place.path().join("two")).expect("makes");
    fs::write(place.path().join("two/file"), b"new").expect("writes");
    assert_eq!(lens(), [3; 8]);
}

#[test]
fn files_of_other_times_are_served() {
    // Not every file system has such times.
    let Ok(place) = tempfile::tempdir_in("/dev/shm") else { skip!("there is no /dev/shm here") };
    let path = place.path().join("file");
    fs::write(&path, content(10)).expect("writes");
    let serving = Server::start(place.path(), &[]);
    let file = File::options().write(true).open(&path).expect("opens");
    for (seconds, dated) in [(253_402_300_800, false), (253_402_300_799, true)] {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let kept = file.set_modified(time).and_then(|()| file.metadata()?.modified());
        if kept.ok() != Some(time) {
            skip!("the file system keeps no such times");
        }
        let answer = serving.ask("GET /file", "");
        assert_eq!((answer.status, answer.body.len()), (200, 10), "{answer:?}");
        let modified = answer.field("Last-Modified").map(str::to_owned);
        assert_eq!(modified.is_some(), dated, "{answer:?}");
        // None is in the future, nor does such a one make parts of a file.
        assert!(modified.is_none_or(|it| !it.contains("9999")), "{answer:?}");
        let date = "Range: bytes=0-1\r\nIf-Range: Fri, 31 Dec 9999 23:59:59 GMT\r\n";
        assert_eq!(serving.ask("GET /file", date).status, 200);
    }
}

#[test]
fn directories_and_what_is_not_there() {
    let place = directory(&[("index.html", 3), ("a b/index.html", 4), ("bare/file", 5)]);
    symlink("/etc", place.path().join("etc")).expect("links");
    let serving = Server::start(place.path(), &[]);
    assert_eq!(serving.ask("GET /", "").body.len(), 3);
    let moved = serving.ask("GET //a%20b?c=d", "");
    assert_eq!((moved.status, moved.field("Location")), (301, Some("/a%20b/?c=d")));
    assert_eq!(serving.ask("GET /a%20b/", "").body.len(), 4);
    for (request, status) in [
        ("GET /bare/", 404),
        ("GET /none", 404),
        ("GET /etc/passwd", 404),
        ("GET /%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET /a%00b", 400),
        ("DELETE /bare/file", 405),
        ("POST /", 405),
    ] {
        assert_eq!(serving.ask(request, "").status, status, "{request}");
    }
    let refused = serving.ask("PUT /bare/file", "Content-Length: 0\r\n");
    assert_eq!(refused.field("Allow"), Some("GET, HEAD"));
}

#[test]
fn curl_resumes_a_file() {
    let place = directory(&[("file", 1_000_000)]);
    let serving = Server::start(place.path(), &[]);
    let half = place.path().join("half");
    fs::write(&half, &content(1_000_000)[..400_000]).expect("writes");
    let url = format!("http://{}/file", serving.address);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--continue-at", "-"]);
    let Ok(output) = curl.arg("--output").arg(&half).arg(&url).output() else {
        skip!("there is no curl here");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(&half).expect("is there") == content(1_000_000));
    assert_eq!(serving.stop()["statuses"]["206"], 1);
}
