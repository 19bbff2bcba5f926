//! Other people's clients: libnbd and QEMU.

use std::fs;
use std::process::Command;

use handoff_testbed::running::Running;
use handoff_testbed::skip;
use rustix::process::Signal;

use crate::server::{
    SIZE, Server, command, directory, empty, image, is_missing, run, ways, write_image,
};

#[test]
fn libnbd_copies_both_ways_and_sees_the_holes() {
    if let Some(program) = ["nbdinfo", "nbdcopy"].into_iter().find(|program| is_missing(program)) {
        skip!("{program} is not installed");
    }
    let place = directory();
    let path = |name: &str| place.path().join(name).to_str().expect("UTF-8").to_owned();
    write_image(path("source").as_ref());
    for &io in ways(&place) {
        let file = path(io);
        empty(file.as_ref(), SIZE as u64);
        let server = Server::start(&["--io", io, "--threads", "2", &format!("disk={file}")]);
        run("nbdcopy", &[&path("source"), &server.uri("disk")]);
        run("nbdcopy", &[&server.uri(""), &path("copy")]);
        assert!(fs::read(path("copy")).expect("reads") == image(), "{io}");
        let map = run("nbdinfo", &["--map", "--totals", &server.uri("disk")]);
        assert!(map.contains("hole,zero") && map.contains("data"), "{map}");
        let info = run("nbdinfo", &["--json", "--no-content", &server.uri("disk")]);
        for fact in [
            "\"structured\": true",
            "\"export-name\": \"disk\"",
            "\"base:allocation\"",
            "\"can_multi_conn\": true",
            "\"can_flush\": true",
            "\"can_fua\": true",
            "\"block_size_preferred\": 4096",
            "\"block_size_maximum\": 33554432",
        ] {
            assert!(info.contains(fact), "{fact} is not in {info}");
        }
        assert!(info.contains(&format!("\"export-size\": {SIZE}")), "{info}");
        let report = server.stop();
        assert!(fs::read(&file).expect("reads") == image(), "{io}");
        assert!(report["bytes_of_holes"].as_u64() > Some(0), "{report}");
        assert_eq!(report["exports"][0]["io"], io, "{report}");
        assert_eq!(report["failures"], serde_json::json!({}), "{report}");
        if io == "direct" {
            let written = &report["written"];
            assert!(written["zero_copy"].as_u64() > Some(3 << 20), "{report}");
            assert_eq!(written["copied"], 0, "{report}");
        }
    }
}

#[test]
fn libnbds_shell_finds_the_corners_as_they_should_be() {
    // The system's Python has the module, whatever else is on the path.
    let shell = || {
        let mut shell = Command::new("nbdsh");
        shell.env("PATH", "/usr/bin:/bin");
        shell
    };
    let has_module = shell().arg("--version").output().is_ok_and(|it| it.status.success());
    if !has_module {
        skip!("nbdsh does not run");
    }
    let place = directory();
    for &io in ways(&place) {
        let file = place.path().join(io);
        empty(&file, 245 * 4096);
        let server = Server::start(&["--io", io, "--threads", "2", file.to_str().expect("UTF-8")]);
        let uri = format!("uri = \"{}\"", server.uri(""));
        let script = include_str!("corners.py");
        // An export by the page cache can be read ahead.
        let script = if io == "cache" {
            script.replace("(lambda: h.cache(10, 0), errno.EINVAL),", "")
        } else {
            script.to_owned()
        };
        let output = shell().args(["-c", &uri, "-c", &script]).output().expect("starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("all corners"), "{io}: {}", String::from_utf8_lossy(&output.stderr));
        server.stop();
    }
}

#[test]
fn several_exports_are_listed_unless_they_should_not() {
    if is_missing("nbdinfo") {
        skip!("nbdinfo is not installed");
    }
    let place = directory();
    let path = |name: &str| place.path().join(name).to_str().expect("UTF-8").to_owned();
    for name in ["a", "b=c"] {
        empty(path(name).as_ref(), 1 << 16);
    }
    let exports = [format!("first={}", path("a")), format!("zweite Platte ü={}", path("b=c"))];
    let options = ["--read-only", &exports[0], &exports[1]];
    let server = Server::start(&options);
    let list = run("nbdinfo", &["--list", "--no-content", &server.uri("")]);
    assert!(list.contains("export=\"first\":") && list.contains("is_read_only: true"), "{list}");
    assert!(list.contains("zweite Platte"), "{list}");
    server.stop();
    let server = Server::start(&[&options[..], &["--no-list"]].concat());
    let list = run("nbdinfo", &["--no-content", &server.uri("first")]);
    assert!(list.contains("export=\"first\":"), "{list}");
    let listed = Command::new("nbdinfo")
        .args(["--list", "--no-content", &server.uri("")])
        .output()
        .expect("starts");
    assert!(!String::from_utf8_lossy(&listed.stdout).contains("first"), "{listed:?}");
}

#[test]
fn qemu_converts_compares_and_writes_parts_of_blocks() {
    if let Some(program) = ["qemu-img", "qemu-io"].into_iter().find(|program| is_missing(program)) {
        skip!("{program} is not installed");
    }
    let place = directory();
    let path = |name: &str| place.path().join(name).to_str().expect("UTF-8").to_owned();
    write_image(path("source").as_ref());
    let ways = ways(&place).iter().map(|io| (*io, format!("--io={io}")));
    for (name, option) in ways.chain([("temporary", "--temporary".to_owned())]) {
        let file = path(name);
        empty(file.as_ref(), SIZE as u64);
        let socket = path(&format!("{name}.socket"));
        let unix = format!("unix:{socket}");
        let mut serve = command(&["--json", "--listen", &unix, &option, &file]);
        let server = Running::start(&mut serve);
        server.line("listening on unix:");
        let uri = format!("nbd+unix:///?socket={socket}");
        run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &path("source"), &uri]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &path("source"), &uri]);
        let commands = [
            "write -P 0x11 1000 3000",
            "write -f -P 0x22 4095 2",
            "write -z 5000 100000",
            "write -f -z -u 200000 5001",
            "discard 1048577 1000000",
            "aio_write -P 0x33 2097153 12345",
            "aio_write -P 0x44 2109498 1",
            "aio_flush",
            "flush",
            "read -P 0x11 1000 3000",
            "read -P 0x22 4095 2",
            "read -P 0 5000 100000",
            "read -P 0 200000 5001",
            "read -P 0x33 2097153 12345",
            "read -P 0x44 2109498 1",
        ];
        let mut arguments = vec!["-f", "raw"];
        commands.iter().for_each(|command| arguments.extend(["-c", command]));
        arguments.push(&uri);
        let output = run("qemu-io", &arguments);
        assert!(!output.contains("failed"), "{name}: {output}");
        server.signal(Signal::TERM);
        let report = server.end().json();
        assert_eq!(report["failures"], serde_json::json!({}), "{report}");
        let bytes = fs::read(&file).expect("reads");
        match name {
            "temporary" => assert!(bytes.iter().all(|byte| *byte == 0)),
            _ => assert!(bytes[1000..4000].iter().all(|byte| *byte == 0x11), "{name}"),
        }
    }
}
