//! Who has no KEY, or changes what passes: they get nothing, and end nothing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use handoff_testbed::running::Running;
use rustix::process::Signal;

use super::peer::{self, Impostor, client_hello};
use super::{ADDRESS, Listens, files, run_with_key};
use crate::session::{cp, names, pattern, run};
use crate::strangers::{Crowd, KINDS, Kind, Protocol, Visited};

/// A page for the first words of each, what keeps them, and a handshake: a record and the keys.
const KIB_OF_A_STRANGER: u64 = 64;
/// --buffer times --depth, and the code that the transfer is the first to run.
const KIB_OF_THE_TRANSFER: u64 = (4 + 8) << 10;

#[test]
fn a_man_in_the_middle_gets_nothing() {
    let (directory, source, copy) = files(100_000);
    let listener = Listens::start(&[ADDRESS, &copy]);
    let certificate = peer::certificate_of(listener.host());
    // With a certificate of its own, and with the listener's, whose private key it has not.
    for (impostor, words) in [
        (Impostor::new(None), "the listener has another KEY"),
        (Impostor::new(Some(certificate)), "invalid peer certificate: BadSignature"),
    ] {
        let address = format!("tls://{}", impostor.address);
        let sender = run_with_key(&[&source, &address], &listener.key);
        sender.says(1, words);
        assert_eq!(
            impostor.heard(),
            Vec::<u8>::new(),
            "it gets nothing of the file, nor its length"
        );
    }
    listener.running.signal(Signal::TERM);
    assert_eq!(listener.end().code, Some(143));
    assert_eq!(names(directory.path()), ["source"]);
}

#[test]
fn strangers_do_not_end_the_listener() {
    let (_directory, source, copy) = files(100_000);
    let listener = Listens::start(&[ADDRESS, &copy]);
    // Another program, a copy in the clear, and one that speaks TLS and has no KEY.
    let mut stranger = TcpStream::connect(listener.host()).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n").unwrap();
    let mut told = Vec::new();
    let _ = stranger.read_to_end(&mut told);
    assert!(told.is_empty() || (told[0] == 21 && told.len() == 7), "an alert at most: {told:?}");
    let clear = run(&[&source, &format!("tcp://{}", listener.host())]);
    clear.says(1, "wants tls://");
    let answer = peer::guess(listener.host());
    assert_eq!(answer.first(), Some(&0), "it is refused, and that is all: {answer:?}");
    assert!(answer[1..].iter().all(|byte| *byte == 0), "{answer:?}");
    // Nor one whose first sealed record was changed.
    let mut stranger = TcpStream::connect(listener.host()).unwrap();
    stranger.write_all(&client_hello()).unwrap();
    stranger.read_exact(&mut [0; 5]).unwrap();
    stranger.write_all(&[&[23, 3, 3, 0, 40][..], &[7; 40]].concat()).unwrap();
    let _ = stranger.read_to_end(&mut Vec::new());
    // And the other way round: a listener in the clear.
    let plain = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", "/dev/null"]));
    let address = plain.address().replace("tcp://", "tls://");
    run_with_key(&[&source, &address], &listener.key).says(1, "is it tls-listen:// there?");

    assert_eq!(run_with_key(&[&source, &listener.address], &listener.key).code, Some(0));
    let ended = listener.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("turned a connection from 127.0.0.1:"), "{ended:?}");
    assert!(fs::read(&copy).unwrap() == pattern(100_000));
}

#[test]
fn needs_root_crowds_at_the_handshake_are_bounded_and_the_sender_is_served() {
    if !rustix::process::geteuid().is_root() {
        handoff_testbed::skip!("only root sees the descriptors of a process without cores");
    }
    // The begin of a record, one as long as there is, and a whole hello.
    const PROTOCOL: Protocol = Protocol {
        begin: &[22, 3, 1, 2, 0],
        huge: |_| vec![22, 3, 3, 0x48, 0],
        asks: |_| client_hello(),
    };
    for kind in KINDS.into_iter().chain([Kind::NeverReads]) {
        let (directory, source, copy) = files(1_000_000);
        let listener = Listens::start(&[ADDRESS, &copy]);
        let visited = Visited::new(listener.running.pid());
        let mut crowd =
            Crowd::new(kind, PROTOCOL, |_| TcpStream::connect(listener.host()).unwrap());
        let send = ["--verify", &source, &listener.address];
        let sent = crowd.go_on_beside(|| run_with_key(&send, &listener.key));
        assert_eq!(sent.code, Some(0), "{kind:?}: {sent:?}");
        let received = listener.end();
        assert_eq!(received.code, Some(0), "{kind:?}: {received:?}");
        assert!(fs::read(&copy).unwrap() == pattern(1_000_000), "{kind:?}");
        assert_eq!(names(directory.path()), ["copy", "source"]);
        visited.assert_said_little(&received.stderr, 4);
    }
}

#[test]
fn needs_root_strangers_that_hold_the_handshake_open_are_let_go() {
    if !rustix::process::geteuid().is_root() {
        handoff_testbed::skip!("only root sees the descriptors of a process without cores");
    }
    let listener = Listens::start(&[ADDRESS, "/dev/null"]);
    let visited = Visited::new(listener.running.pid());
    const PROTOCOL: Protocol =
        Protocol { begin: &[], huge: |_| Vec::new(), asks: |_| client_hello() };
    let crowd =
        Crowd::new(Kind::NeverReads, PROTOCOL, |_| TcpStream::connect(listener.host()).unwrap());
    visited.assert_kept_memory("halfway", KIB_OF_A_STRANGER, KIB_OF_THE_TRANSFER);
    crowd.all_end();
    visited.gives_back_descriptors(None, 0);
    listener.running.signal(Signal::TERM);
    let ended = listener.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    visited.assert_said_little(&ended.stderr, 4);
}

/// Passes bytes on until one of them is another than it was.
fn passes_on_but_for_one(listener: TcpListener, to: String) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(to).unwrap();
        let (mut back, mut to_near) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let backwards = std::thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut to_near);
        });
        let (mut near, mut far) = (near, far);
        let (mut bytes, mut passed) = (vec![0; 1 << 16], 0);
        while let Ok(len @ 1..) = near.read(&mut bytes) {
            if passed < 1 << 20 && passed + len >= 1 << 20 {
                bytes[len / 2] ^= 1;
            }
            passed += len;
            if far.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = far.shutdown(std::net::Shutdown::Both);
        let _ = near.shutdown(std::net::Shutdown::Both);
        backwards.join().unwrap();
    })
}

#[test]
fn a_changed_byte_ends_the_transfer() {
    let (directory, source, copy) = files(8 << 20);
    let listener = Listens::start(&[ADDRESS, &copy]);
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tls://{}", between.local_addr().unwrap());
    let passing = passes_on_but_for_one(between, listener.host().to_owned());
    let sent = run_with_key(&[source.as_str(), &address], &listener.key);
    assert_eq!(sent.code, Some(1), "{sent:?}");
    passing.join().unwrap();
    listener.running.line("the KEY is good for another try");
    listener.running.line("listening on");
    assert_eq!(names(directory.path()), ["source"]);
    assert_eq!(run_with_key(&[source.as_str(), &listener.address], &listener.key).code, Some(0));
    assert_eq!(listener.end().code, Some(0));
}
