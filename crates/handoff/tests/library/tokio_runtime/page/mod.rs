//! The programs of `docs/tokio.md`, each in a file that the page quotes; `docs/embedding.md` quotes two.

#![allow(unreachable_pub, reason = "the page has them as a library would")]

mod echo;
mod fan_out;
mod files;
mod per_core;
mod receive;
mod threads;
mod time_outs;

use std::future::poll_fn;
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;
use std::{fs, thread};

use futures_util::SinkExt;
use handoff::tokio::{SendSink, TcpListener, run_with};
use handoff::{Buffer, Driver, Error};
use socket2::{Domain, SockRef, Socket, Type};

use crate::tokio_runtime::{LONG, builders, pool};
use crate::traffic::{alone, assert_same, narrow_tcp, pattern, read_all, tcp, within};

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[test]
fn the_page_quotes_the_files() {
    let page = include_str!("../../../../../../docs/tokio.md");
    let mut quoted: Vec<_> =
        page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    for (name, file) in [
        ("echo", include_str!("echo.rs")),
        ("fan_out", include_str!("fan_out.rs")),
        ("files", include_str!("files.rs")),
        ("per_core", include_str!("per_core.rs")),
        ("receive", include_str!("receive.rs")),
        ("threads", include_str!("threads.rs")),
        ("time_outs", include_str!("time_outs.rs")),
    ] {
        let place = quoted.iter().position(|quote| *quote == file);
        quoted.remove(place.unwrap_or_else(|| panic!("docs/tokio.md does not have {name}.rs")));
    }
    assert_eq!(quoted, [""; 0], "each program of the page has a file here");
    let embedding = include_str!("../../../../../../docs/embedding.md");
    for file in [include_str!("echo.rs"), include_str!("threads.rs")] {
        assert!(
            embedding.contains(&format!("```rust\n{file}```")),
            "docs/embedding.md has:\n{file}"
        );
    }
}

/// An address without a listener, for a server that runs until its process ends. The socket keeps it from others.
fn free() -> (Socket, SocketAddr) {
    let place = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    place.set_reuse_address(true).unwrap();
    place.set_reuse_port(true).unwrap();
    place.bind(&LOCAL.into()).unwrap();
    let address = place.local_addr().unwrap().as_socket().unwrap();
    (place, address)
}

/// Connects as soon as somebody listens.
fn connect(address: SocketAddr) -> TcpStream {
    loop {
        if let Ok(connection) = TcpStream::connect(address) {
            return connection;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Connections that their clients reset at once.
fn reset_many(address: SocketAddr) {
    for _ in 0..100 {
        SockRef::from(&connect(address)).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

#[test]
fn the_servers_of_a_line_serve() {
    if !alone("tokio_runtime::page::the_servers_of_a_line_serve") {
        return;
    }
    within(LONG, || {
        let (_place, address) = free();
        thread::spawn(move || echo::echo(address));
        reset_many(address);
        let mut near = connect(address);
        near.write_all(&pattern(1, 10_000)).unwrap();
        let mut got = vec![0; 10_000];
        near.read_exact(&mut got).unwrap();
        assert_same(&got, &pattern(1, 10_000));

        let (_place, address) = free();
        thread::spawn(move || per_core::greet_on_all_processors(address).map_err(drop));
        reset_many(address);
        // The threads do not begin to listen at once, and a new listener may move a connection's place.
        let heard = (0..100).filter(|_| {
            let mut got = String::new();
            connect(address).read_to_string(&mut got).is_ok_and(|_| got == "hello\n")
        });
        assert!(heard.count() > 50);

        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(LOCAL)).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async { threads::echo(listener).await.map_err(drop) });
        reset_many(address);
        let mut near = connect(address);
        near.write_all(&pattern(2, 100_000)).unwrap();
        let mut got = vec![0; 100_000];
        near.read_exact(&mut got).unwrap();
        assert_same(&got, &pattern(2, 100_000));
    });
}

#[test]
fn the_file_server_sends_what_is_asked_for() {
    within(LONG, || {
        for builder in builders() {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("large"), pattern(1, 3_000_001)).unwrap();
            fs::write(directory.path().join("empty"), []).unwrap();
            run_with(builder, async |driver: Driver| {
                let listener = TcpListener::bind(&driver, LOCAL).unwrap();
                let address = listener.local_addr().unwrap();
                let ask = move |name: &'static str| {
                    let mut near = TcpStream::connect(address).unwrap();
                    writeln!(near, "{name}").unwrap();
                    let mut got = Vec::new();
                    near.read_to_end(&mut got).unwrap();
                    got
                };
                let asks = tokio::task::spawn_blocking(move || {
                    reset_many(address);
                    assert_same(&ask("large"), &pattern(1, 3_000_001));
                    assert_same(&ask("../else/where/large"), &pattern(1, 3_000_001));
                    assert_same(&ask("empty"), &[]);
                    assert_same(&ask("missing"), &[]);
                    assert_same(&ask(".."), &[]);
                });
                let serving = files::serve(driver, listener, directory.path().to_owned());
                tokio::select! {
                    served = serving => panic!("{served:?}"),
                    asked = asks => asked.unwrap(),
                }
            })
            .unwrap();
        }
    });
}

#[test]
fn the_receiver_writes_all_that_comes() {
    within(LONG, || {
        for builder in builders() {
            let (near, mut far) = tcp("127.0.0.1");
            let writer = thread::spawn(move || far.write_all(&pattern(3, 3_000_001)).unwrap());
            let mut file = tempfile::tempfile().unwrap();
            let target = file.try_clone().unwrap();
            let written = run_with(builder, async |driver: Driver| {
                let stream = driver.socket(near).unwrap().try_into().unwrap();
                receive::receive(&driver, stream, target).await
            });
            assert_eq!(written.unwrap().unwrap(), 3_000_001);
            let mut got = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut got).unwrap();
            assert_same(&got, &pattern(3, 3_000_001));
            writer.join().unwrap();
        }
    });
}

#[test]
fn the_fan_out_tells_all_but_those_who_do_not_read() {
    const PIECES: usize = 100;
    const PIECE: usize = 1 << 15;
    within(LONG, || {
        for builder in builders() {
            // More than fits into the send buffer for a reader that does not read.
            let pool = pool(32, PIECE);
            let pairs: Vec<_> = (0..3).map(|_| narrow_tcp()).collect();
            let (near, mut far): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let _silent = far.pop();
            let readers: Vec<_> = far.into_iter().map(read_all).collect();
            run_with(builder, async |driver: Driver| {
                let sink = |near| SendSink::new(driver.socket(near).unwrap(), 4).cancel_on_drop();
                let sinks = near.into_iter().map(sink).collect();
                let mut all = fan_out::Readers { driver: driver.clone(), sinks };
                for number in 0..PIECES {
                    let mut piece = pool.get().await;
                    piece.copy_from_slice(&pattern(number, PIECE));
                    // A busy machine may keep a reader from reading for longer than it is given.
                    for sink in &mut all.sinks[..2] {
                        poll_fn(|context| sink.poll_ready_unpin(context)).await.unwrap();
                    }
                    all.tell(piece).await;
                }
                assert_eq!(all.sinks.len(), 2);
                for sink in &mut all.sinks {
                    sink.flush().await.unwrap();
                }
            })
            .unwrap();
            let expected: Vec<u8> = (0..PIECES).flat_map(|number| pattern(number, PIECE)).collect();
            for reader in readers {
                assert_same(&reader.join().unwrap(), &expected);
            }
        }
    });
}

#[test]
fn what_is_given_up_by_time_is_still_there() {
    const SHORT: Duration = Duration::from_millis(20);
    within(LONG, || {
        for builder in builders() {
            let (near, mut far) = narrow_tcp();
            run_with(builder, async |driver: Driver| {
                let mut stream = driver.socket(near).unwrap().try_into().unwrap();
                assert!(time_outs::read(&mut stream, SHORT).await.unwrap().is_none());
                far.write_all(b"late").unwrap();
                let read = time_outs::read(&mut stream, LONG).await.unwrap();
                assert_eq!(read.unwrap(), b"late");
                let buffer = Buffer::from(pattern(1, 2 << 20));
                let sent = time_outs::send(&driver, &stream, buffer, SHORT).await;
                let Err(Error::Canceled { done }) = sent else { panic!("{sent:?}") };
                let mut got = vec![0; done];
                far.read_exact(&mut got).unwrap();
                assert_same(&got, &pattern(1, 2 << 20)[..done]);
            })
            .unwrap();
        }
    });
}
