//! Programs that tokio's users know, written for both: echo, chat and proxy. Both versions send the same to
//! the same clients.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use futures_util::SinkExt;
use handoff::tokio::SendSink;
use handoff::{BufferPool, Driver, Frozen};
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, copy_bidirectional,
};
use tokio::task::{LocalSet, spawn_local};

use crate::tokio_runtime::{LONG, builders, pool};
use crate::traffic::{assert_same, pattern, read_all, within};

/// Where a program listens, told to its clients. Without clients it ends.
struct Listening {
    tell: mpsc::Sender<SocketAddr>,
    end: tokio::sync::oneshot::Receiver<()>,
}

/// Lets clients talk with a program, and returns what they were told.
fn talk<T>(program: impl FnOnce(Listening) + Send, clients: impl FnOnce(SocketAddr) -> T) -> T {
    let (tell, address) = mpsc::channel();
    let (ends, end) = tokio::sync::oneshot::channel();
    thread::scope(|scope| {
        scope.spawn(|| program(Listening { tell, end }));
        let told = clients(address.recv().unwrap());
        ends.send(()).unwrap();
        told
    })
}

/// Runs a server by handoff until its clients are gone.
fn by_handoff(
    builder: handoff::DriverBuilder,
    listening: Listening,
    mut serve: impl FnMut(&Driver, handoff::tokio::TcpStream),
) {
    handoff::tokio::run_with(builder, async |driver| {
        let address = "127.0.0.1:0".parse().unwrap();
        let mut listener = handoff::tokio::TcpListener::bind(&driver, address).unwrap();
        listening.tell.send(listener.local_addr().unwrap()).unwrap();
        let mut end = listening.end;
        loop {
            tokio::select! {
                accepted = listener.accept() => serve(&driver, accepted.unwrap().0),
                _ = &mut end => break,
            }
        }
    })
    .unwrap();
}

/// The same by tokio alone.
fn by_tokio(listening: Listening, mut serve: impl FnMut(tokio::net::TcpStream)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listening.tell.send(listener.local_addr().unwrap()).unwrap();
        let mut end = listening.end;
        loop {
            tokio::select! {
                accepted = listener.accept() => serve(accepted.unwrap().0),
                _ = &mut end => break,
            }
        }
    });
}

async fn echo<S: AsyncRead + AsyncWrite>(stream: S) {
    let (mut reading, mut writing) = tokio::io::split(stream);
    copy(&mut reading, &mut writing).await.unwrap();
    writing.shutdown().await.unwrap();
}

/// Sends pieces of many lengths while it reads the echo.
fn echo_client(address: SocketAddr) -> Vec<u8> {
    let mut near = TcpStream::connect(address).unwrap();
    let reading = near.try_clone().unwrap();
    let reader = read_all(reading);
    for len in [1, 10, 1000, 100_000, 1_000_000, 3] {
        near.write_all(&pattern(len, len)).unwrap();
    }
    near.shutdown(Shutdown::Write).unwrap();
    reader.join().unwrap()
}

#[test]
fn echo_says_the_same_as_that_of_tokio() {
    within(LONG, || {
        let serve = |stream| drop(spawn_local(echo(stream)));
        let expected = talk(|listening| by_tokio(listening, serve), echo_client);
        assert_eq!(expected.len(), 1_101_014);
        for builder in builders() {
            let serve = |_: &Driver, stream| drop(spawn_local(echo(stream)));
            let got = talk(|listening| by_handoff(builder, listening, serve), echo_client);
            assert_same(&got, &expected);
        }
    });
}

#[test]
fn proxy_says_the_same_as_that_of_tokio() {
    within(LONG, || {
        let serve_tokio = |stream| drop(spawn_local(echo(stream)));
        let behind = |clients: &dyn Fn(SocketAddr) -> Vec<u8>| {
            talk(|listening| by_tokio(listening, serve_tokio), clients)
        };
        let expected = behind(&|server| {
            let serve = |mut stream: tokio::net::TcpStream| {
                drop(spawn_local(async move {
                    let mut onward = tokio::net::TcpStream::connect(server).await.unwrap();
                    copy_bidirectional(&mut stream, &mut onward).await.unwrap();
                }));
            };
            talk(|listening| by_tokio(listening, serve), echo_client)
        });
        for builder in builders() {
            let got = behind(&|server| {
                let serve = |driver: &Driver, mut stream: handoff::tokio::TcpStream| {
                    let driver = driver.clone();
                    drop(spawn_local(async move {
                        let onward = handoff::tokio::TcpStream::connect(&driver, server).await;
                        copy_bidirectional(&mut stream, &mut onward.unwrap()).await.unwrap();
                    }));
                };
                let builder = builder.clone();
                talk(|listening| by_handoff(builder, listening, serve), echo_client)
            });
            assert_same(&got, &expected);
        }
    });
}

/// The members of a chat, by name, and how to send each a line.
type Room<W> = Rc<RefCell<HashMap<String, W>>>;

/// Two members who talk, and one who listens and leaves; returns what each has heard.
fn chat_clients(address: SocketAddr) -> Vec<Vec<String>> {
    let join = |name: &str| {
        let mut near = TcpStream::connect(address).unwrap();
        writeln!(near, "{name}").unwrap();
        let mut heard = BufReader::new(near.try_clone().unwrap()).lines();
        // It is in the room when it has heard so.
        let greeting = heard.next().unwrap().unwrap();
        (near, heard, vec![greeting])
    };
    let mut all = [join("ann"), join("ben"), join("cid")];
    for (speaker, line) in [(0, "hello"), (1, "hello, ann"), (2, "I have to go")] {
        writeln!(all[speaker].0, "{line}").unwrap();
        for (number, (_, lines, heard)) in all.iter_mut().enumerate() {
            if number != speaker {
                heard.push(lines.next().unwrap().unwrap());
            }
        }
    }
    all.into_iter()
        .map(|(near, lines, mut heard)| {
            near.shutdown(Shutdown::Write).unwrap();
            heard.extend(lines.map(Result::unwrap));
            heard
        })
        .collect()
}

/// Reads a member's lines, and has `say` send them to the others.
async fn chat<R: AsyncRead + Unpin, W>(
    reading: R,
    room: Room<W>,
    me: W,
    mut say: impl FnMut(&mut W, String),
) {
    let mut lines = tokio::io::BufReader::new(reading).lines();
    let name = lines.next_line().await.unwrap().unwrap();
    let mut me = me;
    say(&mut me, format!("{} here", room.borrow().len()));
    room.borrow_mut().insert(name.clone(), me);
    while let Some(line) = lines.next_line().await.unwrap() {
        for (_, other) in room.borrow_mut().iter_mut().filter(|(other, _)| **other != name) {
            say(other, format!("{name}: {line}"));
        }
    }
    room.borrow_mut().remove(&name);
}

#[test]
fn chat_says_the_same_as_that_of_tokio() {
    within(LONG, || {
        let room = Room::default;
        let expected = talk(
            |listening| {
                let room = room();
                by_tokio(listening, |stream| {
                    let (reading, mut writing) = stream.into_split();
                    let (me, mut lines) = tokio::sync::mpsc::unbounded_channel::<String>();
                    spawn_local(async move {
                        while let Some(line) = lines.recv().await {
                            writing.write_all(format!("{line}\n").as_bytes()).await.unwrap();
                        }
                    });
                    let say = |me: &mut tokio::sync::mpsc::UnboundedSender<_>, line| {
                        me.send(line).unwrap();
                    };
                    spawn_local(chat(reading, Rc::clone(&room), me, say));
                });
            },
            chat_clients,
        );
        assert_eq!(expected[0], ["0 here", "ben: hello, ann", "cid: I have to go"]);
        for builder in builders() {
            let pool = pool(16, 4096);
            let got = talk(
                |listening| {
                    let room = room();
                    by_handoff(builder, listening, |_, stream| {
                        let sink = SendSink::new(stream.socket().clone(), 8);
                        let (me, lines) = tokio::sync::mpsc::unbounded_channel();
                        spawn_local(tell(pool.clone(), sink, lines));
                        let say = |me: &mut tokio::sync::mpsc::UnboundedSender<_>, line| {
                            me.send(line).unwrap();
                        };
                        spawn_local(chat(stream, Rc::clone(&room), me, say));
                    });
                },
                chat_clients,
            );
            assert_eq!(got, expected);
        }
    });
}

/// Lends each line to its reader.
async fn tell(
    pool: BufferPool,
    mut sink: SendSink<Frozen>,
    mut lines: tokio::sync::mpsc::UnboundedReceiver<String>,
) {
    while let Some(line) = lines.recv().await {
        let mut buffer = pool.get().await;
        buffer.set_len(line.len() + 1);
        buffer[..line.len()].copy_from_slice(line.as_bytes());
        buffer[line.len()] = b'\n';
        sink.send(buffer.freeze()).await.unwrap();
    }
}

#[test]
fn lines_and_frames_are_read_through_tokios_buffers() {
    within(LONG, || {
        for builder in builders() {
            let serve = |_: &Driver, stream: handoff::tokio::TcpStream| {
                drop(spawn_local(async move {
                    let mut stream = tokio::io::BufStream::new(stream);
                    let mut line = String::new();
                    stream.read_line(&mut line).await.unwrap();
                    let len = stream.read_u32().await.unwrap();
                    let mut frame = vec![0; len as usize];
                    stream.read_exact(&mut frame).await.unwrap();
                    stream.write_all(line.as_bytes()).await.unwrap();
                    stream.write_all(&frame).await.unwrap();
                    stream.flush().await.unwrap();
                }));
            };
            let client = |address| {
                let mut near = TcpStream::connect(address).unwrap();
                near.write_all(b"a line\n\0\0\0\x05frame").unwrap();
                let mut got = String::new();
                near.read_to_string(&mut got).unwrap();
                got
            };
            let got = talk(|listening| by_handoff(builder, listening, serve), client);
            assert_eq!(got, "a line\nframe");
        }
    });
}
