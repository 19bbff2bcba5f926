//! Devices whose mapping is a user's, under a supervisor.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;

use rustix::fs::{CWD, Mode};

use super::command::{
    Added, Files, answer, driver_or_skip, kill, nothing_is_left, parent, read_block, refused,
    verified, write_block,
};
use super::processes::{eventually, limit_descriptors, log, waiting};

const SPARSE: &[u8] = include_bytes!(concat!(env!("BLK_OBJECTS"), "/sparse.bpf.o"));

/// Blocks in a MiB, which is what the policy maps.
const MIB: u64 = 256;

fn is_refused<T>(tried: io::Result<T>) -> bool {
    tried.err().and_then(|error| error.raw_os_error()) == Some(libc::EIO)
}

/// A device with the policy, and the path of that.
pub(super) fn sparse(files: &Files) -> (Added, String) {
    let object = files.directory.path().join("sparse.bpf.o");
    fs::write(&object, SPARSE).expect("a file");
    let object = object.to_str().expect("UTF-8").to_owned();
    let policy = ["--policy", &object, "--size", "64m", "--queues", "2"];
    (Added::new(&[&["policy", files.name(0)], &policy[..]].concat()), object)
}

/// What the user has put into the policy's map outlives the server, and the next one asks it.
#[test]
fn after_a_server_was_killed_the_policy_still_decides() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let (device, object) = sparse(&files);
    let (id, node) = (device.id.to_string(), device.node());
    let place = |pair: &str| drop(answer(&["set", &id, "places", pair]));
    assert!(is_refused(write_block(&node, 1, 7 * MIB)), "it has no place");
    place("7=2");
    write_block(&node, 1, 7 * MIB).expect("has a place");
    // Two MiB for a verifier, which is at work while servers are killed.
    place("20=4");
    place("21=3");
    let load = device.load("2m", 15, &["--offset=20m"]);
    let mut server = device.server(None);
    for round in 0..3u8 {
        kill(server);
        server = device.server(Some(server));
        assert_eq!(read_block(&node, 7 * MIB).expect("has a place"), [round + 1; 4096]);
        assert!(is_refused(read_block(&node, 8 * MIB)), "it has no place");
        // The new server's policy looks into the same map.
        let (here, there) = (40 + u64::from(round), 5 + round);
        assert!(is_refused(write_block(&node, 9, here * MIB)), "it has no place yet");
        place(&format!("{here}={there}"));
        write_block(&node, 10 + round, here * MIB).expect("has a place");
        write_block(&node, round + 2, 7 * MIB).expect("has a place");
    }
    verified(load);
    let show = device.show();
    assert_eq!((&show["state"], &show["policy"]), (&"live".into(), &object.into()));
    device.del();
    let bytes = fs::read(&files.paths[0]).expect("a file");
    for (place, byte) in [(2, 4), (5, 10), (6, 11), (7, 12)] {
        assert_eq!(bytes[(place - 1) << 20..][..4096], [byte; 4096], "place {place}");
    }
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0), "nobody was given place 1");
    nothing_is_left();
}

/// What the loop needs of the kernel it may lack for a while, as any server does.
#[test]
fn a_server_that_finds_no_descriptors_for_its_policy_is_tried_until_there_are_some() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let (device, _) = sparse(&files);
    answer(&["set", &device.id.to_string(), "places", "3=1"]);
    let mut server = device.server(None);
    let supervisor = parent(server);
    let limit = |most| limit_descriptors(supervisor, most);
    // What waits already has no limit.
    waiting(supervisor, server, None);
    limit(15);
    kill(server);
    server = device.server(Some(server));
    kill(server);
    // More often than servers are tried that fail for good.
    let lacks = || log(&device).matches("supervise::log: the engine bpf cannot be tried: ").count();
    eventually(|| (lacks() > 12).then_some(()));
    limit(1024);
    device.server(Some(server));
    write_block(&device.node(), 6, 3 * MIB).expect("has a place");
    assert_eq!(read_block(&device.node(), 3 * MIB).expect("read"), [6; 4096]);
    device.del();
    nothing_is_left();
}

/// The server's one control thread opens nothing for a client, and does not wait for long.
#[test]
fn an_object_without_an_end_is_refused_and_the_device_goes_on() {
    driver_or_skip!();
    let files = Files::new(2, 8 << 20);
    let (device, object) = sparse(&files);
    let id = device.id.to_string();
    let fifo = files.directory.path().join("fifo");
    rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).expect("made");
    for path in [fifo.to_str().expect("UTF-8"), "/dev/zero"] {
        let size = ["--size", "64m"];
        let added = [&["add", "policy", files.name(1), "--policy", path][..], &size].concat();
        for arguments in [&["set", &id, "--policy", path][..], &added] {
            let line = refused(arguments, 2);
            assert!(line.contains(&format!("{path} is no regular file")), "{line}");
        }
    }
    let silent = UnixStream::connect(format!("/run/handoff/blk/{id}/exchange")).expect("connects");
    answer(&["set", &id, "--policy", &object]);
    drop(silent);
    assert_eq!(device.show()["policy"], *object);
    device.del();
    nothing_is_left();
}
