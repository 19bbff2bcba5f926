//! Bytes that do not lie on blocks, errors, and what is written side by side.

use std::fs;
use std::process::Command;
use std::thread;

use handoff_testbed::skip;

use crate::raw::{EINVAL, ENOSPC, EPERM, FLUSH, FUA, READ, Raw, TRIM, WRITE, ZEROES};
use crate::server::{SIZE, Server, command, directory, empty, image, ways, write_image};

#[test]
fn neighbours_within_a_block_lose_nothing() {
    const WRITERS: u64 = 8;
    const ROUNDS: u64 = 60;
    let place = directory();
    let ways = ways(&place).iter().map(|io| (*io, format!("--io={io}")));
    for (name, option) in ways.chain([("temporary", "--temporary".to_owned())]) {
        let file = place.path().join(name);
        empty(&file, 1 << 20);
        let server = Server::start(&["--threads", "2", &option, file.to_str().expect("UTF-8")]);
        // Each writer has each eighth piece of 100 bytes, one also writes blocks whole.
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let mut raw = Raw::new(server.connect(), "");
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let at = (round * WRITERS + writer) * 100;
                        assert_eq!(raw.write(0, at, &[writer as u8 + 1; 100]), 0);
                    }
                });
            }
            let mut raw = Raw::new(server.connect(), "");
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    assert_eq!(raw.write(0, 65_536 + round * 4096, &[9; 4096]), 0);
                    assert_eq!(raw.write(0, 65_536 + round * 4096 + 7, &[8; 9]), 0);
                }
            });
        });
        let mut raw = Raw::new(server.connect(), "");
        let bytes = raw.read(0, (WRITERS * ROUNDS * 100) as u32);
        for (at, piece) in bytes.chunks(100).enumerate() {
            let writer = (at as u64 % WRITERS) as u8 + 1;
            assert!(piece.iter().all(|byte| *byte == writer), "{name}: piece {at}");
        }
        for block in raw.read(65_536, (ROUNDS * 4096) as u32).chunks(4096) {
            assert!(
                block[7..16] == [8; 9]
                    && block[..7] == [9; 7]
                    && block[16..].iter().all(|it| *it == 9)
            );
        }
        let report = server.stop();
        assert!(name == "cache" || report["filled_around"].as_u64() > Some(0), "{report}");
    }
}

#[test]
fn any_range_reads_as_it_was_written() {
    let place = directory();
    let file = place.path().join("image");
    write_image(&file);
    let all = image();
    for options in [
        if ways(&place).contains(&"direct") { &["--io=direct"][..] } else { &[] },
        &["--io=cache"],
        &["--temporary"],
        &["-r"],
        &["--memory", "256k"],
    ] {
        let path = file.to_str().expect("UTF-8");
        let server = Server::start(&[options, &[path]].concat());
        let mut raw = Raw::new(server.connect(), "");
        let ends = [0, 1, 511, 4095, 4097, 70_001, (1 << 20) + 1, SIZE - 1000];
        for from in ends {
            for len in [1, 512, 4096, 65_537, 300_000, (2 << 20) + 3] {
                let to = SIZE.min(from + len);
                assert!(
                    raw.read(from as u64, (to - from) as u32) == all[from..to],
                    "{options:?} {from} {len}"
                );
            }
        }
        assert!(raw.read(0, SIZE as u32) == all, "{options:?}");
        server.stop();
    }
}

/// Its last block is longer than the file, and only the page cache writes a part of one.
#[test]
fn a_file_that_ends_within_a_block_goes_by_the_page_cache() {
    const LEN: u64 = (1 << 20) + 777;
    let place = directory();
    let file = place.path().join("image");
    empty(&file, LEN);
    let path = file.to_str().expect("UTF-8");
    if ways(&place).contains(&"direct") {
        let refused = command(&["--io", "direct", path]).output().expect("starts");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(3) && said.contains("no whole blocks"), "{said}");
    }
    let server = Server::start(&[path]);
    let mut raw = Raw::new(server.connect(), "");
    assert_eq!(raw.write(0, LEN - 5000, &[7; 5000]), 0);
    assert_eq!(raw.write(FUA, LEN - 1, &[8]), 0);
    assert_eq!(raw.read(LEN - 5001, 5001), [&[0][..], &[7; 4999], &[8]].concat());
    let report = server.stop();
    assert_eq!(report["exports"][0]["io"], "cache", "{report}");
    assert_eq!(fs::metadata(&file).expect("is there").len(), LEN);
}

#[test]
fn what_goes_wrong_has_its_number() {
    let place = directory();
    let file = place.path().join("image");
    empty(&file, SIZE as u64);
    let path = file.to_str().expect("UTF-8");
    let server = Server::start(&["-r", path]);
    let mut raw = Raw::new(server.connect(), "");
    assert_eq!(raw.write(0, 0, &[1; 512]), EPERM);
    assert_eq!(raw.ask(0, TRIM, 0, 4096), EINVAL, "was not announced");
    assert_eq!(raw.ask(0, READ, SIZE as u64 - 1, 2), EINVAL);
    server.stop();
    let server = Server::start(&[path]);
    let mut raw = Raw::new(server.connect(), "");
    assert_eq!(raw.write(0, SIZE as u64 - 1, &[1; 2]), ENOSPC);
    assert_eq!(raw.ask(0, 77, 0, 0), EINVAL);
    assert_eq!(raw.write(FUA, SIZE as u64 - 1, &[5]), 0);
    assert_eq!(raw.ask(FUA, ZEROES, 1, 100_000), 0);
    assert_eq!(raw.ask(FUA, TRIM, 0, SIZE as u32), 0);
    assert_eq!(raw.ask(0, FLUSH, 0, 0), 0);
    // The file becomes shorter under the server.
    let cut = fs::File::options().write(true).open(&file).expect("opens");
    cut.set_len(1 << 20).expect("shrinks");
    let error = raw.ask(0, READ, 2 << 20, 4096);
    assert_eq!(error, 5);
    assert_eq!(raw.read(0, 512), [0; 512], "the rest is served on");
    let report = server.stop();
    assert!(report["refused"].as_u64() >= Some(2), "{report}");
    assert_eq!(fs::metadata(&file).expect("is there").len(), 1 << 20);
}

#[test]
fn needs_root_a_full_disk_is_told_to_the_client() {
    if !rustix::process::geteuid().is_root() {
        skip!("mounts a file system");
    }
    let place = directory();
    let path = place.path().to_str().expect("UTF-8");
    let serve = command(&["--json", "--listen", "127.0.0.1:0"]);
    let mut shell = Command::new("unshare");
    let script = format!(
        "mount -t tmpfs -o size=1m none {path} && truncate -s 16m {path}/disk && exec \"$@\" {path}/disk"
    );
    shell.args(["-m", "sh", "-c", &script, "sh"]).arg(serve.get_program()).args(serve.get_args());
    let server = Server::start_as(shell);
    let mut raw = Raw::new(server.connect(), "");
    let block = vec![7; 256 << 10];
    let errors: Vec<_> = (0..8).map(|at| raw.write(0, at << 18, &block)).collect();
    assert!(errors.contains(&0) && errors.contains(&ENOSPC), "{errors:?}");
    assert_eq!(raw.read(0, 4096), [7; 4096]);
    let report = server.stop();
    let notes = report["notes"].to_string();
    assert!(notes.contains("tmpfs"), "{notes}");
    assert!(report["requests"]["write"] == 8, "{report} {WRITE}");
}
