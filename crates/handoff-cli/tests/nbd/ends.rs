//! The end of the server.

use std::fs;
use std::io::Write as _;

use rustix::process::Signal;

use crate::raw::{FLUSH, READ, Raw, TRIM, WRITE};
use crate::server::{Server, command, directory, empty, image, write_image};

#[test]
fn requests_that_have_come_are_answered_before_the_end() {
    let place = directory();
    let file = place.path().join("image");
    write_image(&file);
    let server = Server::start(&[file.to_str().expect("UTF-8")]);
    let mut idle = Raw::new(server.connect(), "");
    let mut raw = Raw::new(server.connect(), "");
    assert_eq!(raw.write(0, 123, b"written"), 0);
    // More than the sockets hold: it is under way when the signal comes.
    let cookie = raw.begin(0, READ, 0, 8 << 20);
    let mut head = [0; 16];
    std::io::Read::read_exact(&mut raw.stream, &mut head).expect("receives");
    assert_eq!(head[8..], cookie.to_be_bytes());
    server.signal(Signal::TERM);
    let mut bytes = vec![0; 8 << 20];
    std::io::Read::read_exact(&mut raw.stream, &mut bytes).expect("all of it");
    let mut all = image();
    all[123..130].copy_from_slice(b"written");
    assert!(bytes == all[..8 << 20]);
    let ended = server.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert_eq!(ended.json()["failures"], serde_json::json!({}));
    assert!(idle.try_reply().is_err(), "is over");
    assert!(fs::read(&file).expect("reads") == all);
}

#[test]
fn a_unix_socket_goes_with_the_server_and_a_report_is_for_people_too() {
    let place = directory();
    let (file, socket) = (place.path().join("image"), place.path().join("socket"));
    empty(&file, 1 << 20);
    let listen = format!("unix:{}", socket.display());
    let mut command = command(&["--listen", "127.0.0.1:0", "--listen", &listen]);
    command.arg(&file);
    let running = handoff_testbed::running::Running::start(&mut command);
    running.line("listening on ");
    assert!(socket.exists());
    running.signal(Signal::INT);
    let ended = running.end();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(!socket.exists());
    let text = String::from_utf8(ended.stdout).expect("text");
    assert!(text.contains("0 connections") && text.contains("server -> file"), "{text}");
}

#[test]
fn a_flush_of_one_connection_is_for_all() {
    let place = directory();
    let file = place.path().join("image");
    empty(&file, 1 << 20);
    let server = Server::start(&["--io", "cache", "--threads", "2", file.to_str().expect("UTF-8")]);
    let mut both = [Raw::new(server.connect(), ""), Raw::new(server.connect(), "")];
    both[0].begin(0, WRITE, 0, 4096);
    both[0].stream.write_all(&[1; 4096]).expect("sends");
    assert_eq!(both[0].reply().1, 0);
    assert_eq!(both[1].ask(0, FLUSH, 0, 0), 0);
    assert_eq!(both[1].read(0, 4096), [1; 4096]);
    let report = server.stop();
    assert_eq!(report["requests"]["flush"], 1, "{report}");
}

#[test]
fn a_client_in_full_swing_gets_the_answer_to_all_that_was_taken() {
    let place = directory();
    let file = place.path().join("image");
    empty(&file, 1 << 20);
    for _ in 0..5 {
        let server = Server::start(&[file.to_str().expect("UTF-8")]);
        let mut raw = Raw::new(server.connect(), "");
        let mut asking = raw.stream.try_clone().expect("clones");
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0; 2]);
        request.extend(TRIM.to_be_bytes());
        request.extend([0; 16]);
        request.extend(4096_u32.to_be_bytes());
        let requests = request.repeat(100);
        let answered = std::thread::scope(|scope| {
            scope.spawn(move || while asking.write_all(&requests).is_ok() {});
            let mut answered = 0;
            while let Ok((_, error)) = raw.try_reply() {
                assert_eq!(error, 0);
                answered += 1;
                if answered == 50 {
                    server.signal(Signal::TERM);
                }
            }
            // Ends the other thread, if the server has not.
            let _ = raw.stream.shutdown(std::net::Shutdown::Both);
            answered
        });
        let report = server.end().json();
        assert_eq!(report["requests"]["trim"], answered, "{report}");
    }
}
