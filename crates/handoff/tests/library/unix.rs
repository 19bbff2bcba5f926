//! Unix sockets: names and their files, order, ends, credentials and descriptors, with a ring and without.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use handoff::{
    Buffer, Driver, Engine, Error, Outcome, Refused, RingUse, Route, RouteEngine, Socket,
    UnixAddress, UnixKind, UnixListener, Wait,
};
use rustix::io::{FdFlags, fcntl_getfd};
use tempfile::TempDir;

use crate::traffic::{assert_same, pattern, tcp, telling, with_each_driver, without_ring};

const LONG: Duration = Duration::from_secs(60);
/// The wait for what must not come.
const SHORT: Duration = Duration::from_millis(20);

fn zeroed(len: usize) -> Buffer {
    Buffer::from(vec![0; len])
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn at(directory: &TempDir) -> (PathBuf, UnixAddress) {
    let path = directory.path().join("socket");
    let address = UnixAddress::path(&path).unwrap();
    (path, address)
}

/// A name that no other test has.
fn abstract_name(test: &str) -> UnixAddress {
    UnixAddress::abstract_name(format!("handoff-{test}-{}", std::process::id())).unwrap()
}

fn settle(driver: &Driver) {
    while driver.in_flight() > 0 {
        driver.turn(Wait::AtMost(SHORT)).unwrap();
    }
}

fn invalid<T>(refused: Result<T, Refused<Buffer>>) -> String {
    let Err(Refused { error: Error::Invalid(why), .. }) = refused else {
        panic!("it was not refused")
    };
    why.to_owned()
}

async fn send(socket: &Socket, bytes: &[u8]) {
    let finished = socket.send(Buffer::from(bytes.to_vec())).unwrap().await.unwrap();
    assert_eq!(finished.sent.unwrap(), bytes.len());
}

async fn receive(socket: &Socket) -> Vec<u8> {
    let received = socket.receive_into(zeroed(1 << 16)).unwrap().await.unwrap();
    let bytes = received.result.unwrap();
    received.buffer[..bytes].to_vec()
}

#[test]
fn a_connection_is_made_at_each_kind_of_name() {
    with_each_driver(LONG, |driver| {
        let directory = directory();
        for kind in [UnixKind::Stream, UnixKind::Seqpacket] {
            let (path, named) = at(&directory);
            for address in [named, abstract_name("connect"), UnixAddress::unnamed()] {
                let mut listener = driver.listen_unix(&address, kind).unwrap();
                let address = listener.local_addr().unwrap();
                assert!(!address.is_unnamed(), "the kernel has chosen a name");
                let text = address.to_string();
                assert_eq!(text.parse::<UnixAddress>().unwrap(), address, "{text}");
                let exchange = async {
                    let near = driver.connect_unix(&address, kind).unwrap().await.unwrap();
                    let (far, peer) = listener.accept().await.unwrap();
                    assert!(peer.is_unnamed());
                    assert_eq!(UnixAddress::peer(&near).unwrap(), address);
                    let sending = near.message(Buffer::from(pattern(1, 70_000))).header(b"head");
                    let sending = sending.send().unwrap();
                    let mut got = Vec::new();
                    while got.len() < 70_004 {
                        let part = far.receive_into(zeroed(80_000)).unwrap().await.unwrap();
                        got.extend_from_slice(&part.buffer[..part.result.unwrap()]);
                    }
                    assert_same(&got, &[b"head", &pattern(1, 70_000)[..]].concat());
                    let finished = sending.await.unwrap();
                    assert_eq!(finished.sent.unwrap(), 70_004);
                    assert_eq!(finished.receipt.outcome(), Outcome::Copied);
                    assert_eq!(finished.receipt.engine, Some(Engine::Copy));
                    let choice = near.choice(70_000);
                    assert!(choice.reason.contains("no zero-copy send"), "{}", choice.reason);
                    near.shutdown(Shutdown::Write).unwrap();
                    assert!(receive(&far).await.is_empty(), "the end");
                };
                driver.block_on(exchange).unwrap();
                assert_eq!(path.exists(), address.as_path().is_some());
                drop(listener);
                settle(&driver);
                assert!(!path.exists(), "a listener removes its file");
            }
        }
    });
}

#[test]
fn names_that_cannot_be_are_told() {
    let why = |made: Result<UnixAddress, Error>| made.unwrap_err().to_string();
    assert!(why(UnixAddress::path("x".repeat(108))).contains("107 bytes"));
    assert!(UnixAddress::path("x".repeat(107)).is_ok());
    assert!(why(UnixAddress::path("")).contains("empty"));
    assert!(why(UnixAddress::path("a\0b")).contains("NUL"));
    assert!(why(UnixAddress::abstract_name("x".repeat(108))).contains("107 bytes"));
    assert!(UnixAddress::abstract_name("x".repeat(107)).is_ok());
    assert!(why(UnixAddress::abstract_name("")).contains("empty"));
    assert!(why("/run/socket".parse()).contains("unix:/path"));
    assert_eq!("unix:@a\\b".parse::<UnixAddress>().unwrap().as_abstract_name(), Some(&b"a\\b"[..]));
    let driver = Driver::new().unwrap();
    let unnamed = UnixAddress::unnamed();
    for kind in [UnixKind::Stream, UnixKind::Datagram, UnixKind::Seqpacket] {
        let error = driver.connect_unix(&unnamed, kind).unwrap_err();
        assert!(error.to_string().contains("no name"), "{error}");
    }
    let error = driver.listen_unix(&unnamed, UnixKind::Datagram).unwrap_err();
    assert!(error.to_string().contains("bind_unix"), "{error}");
    let (stream, _far) = tcp("127.0.0.1");
    assert!(why(UnixAddress::local(&stream)).contains("not a Unix socket"));
    let stream = driver.socket(stream).unwrap();
    let named = abstract_name("misuse");
    assert!(matches!(stream.connect_unix(&named), Err(Error::Invalid(_))));
    assert!(matches!(stream.peer_credentials(), Err(Error::Invalid(_))));
    assert!(invalid(stream.receive_message(zeroed(1), 1)).contains("only Unix"));
    assert!(invalid(stream.message(zeroed(1)).to_unix(&named).send()).contains("only a Unix"));
    let fd = [stream.as_fd()];
    assert!(invalid(stream.message(zeroed(1)).descriptors(&fd).send()).contains("only a Unix"));
    let (near, _far) = driver.unix_pair(UnixKind::Seqpacket).unwrap();
    let internet = "127.0.0.1:9".parse().unwrap();
    assert!(invalid(near.message(zeroed(1)).to(internet).send()).contains("to_unix"));
    assert!(invalid(near.send(zeroed(0))).contains("end"));
    assert!(invalid(near.receive_exact(zeroed(1))).contains("streams"));
    assert!(invalid(near.receive_message(zeroed(0), 1)).contains("room"));
    assert!(invalid(near.receive_message(zeroed(1), 254)).contains("253"));
    let error = near.set_engine(Engine::MsgZerocopy).unwrap_err();
    assert!(error.to_string().contains("no zero-copy send"), "{error}");
    let (near, _far) = driver.unix_pair(UnixKind::Stream).unwrap();
    let message = near.message(zeroed(0)).descriptors(&fd);
    assert!(invalid(message.send()).contains("at least one"));
    let many = vec![fd[0]; 254];
    assert!(invalid(near.message(zeroed(1)).descriptors(&many).send()).contains("253"));
}

/// Leaves the file of a listener that is gone, as a killed process does.
fn leave_file(path: &Path) {
    drop(net::UnixListener::bind(path).unwrap());
    assert!(path.symlink_metadata().unwrap().file_type().is_socket());
}

#[test]
fn a_file_is_replaced_only_if_nobody_has_it() {
    let directory = directory();
    let (path, address) = at(&directory);
    let driver = Driver::new().unwrap();
    let listen = || driver.listen_unix(&address, UnixKind::Stream);
    let in_use = |tried: Result<UnixListener, Error>, why: &str| {
        let error = tried.unwrap_err();
        assert!(matches!(error, Error::NameInUse { .. }) && error.to_string().contains(why));
        assert_eq!(std::io::Error::from(error).kind(), ErrorKind::AddrInUse);
        assert!(path.exists());
    };
    leave_file(&path);
    let listener = listen().unwrap();
    in_use(listen(), "somebody");
    drop(listener);
    assert!(!path.exists());
    // Also of one with a full backlog, and of one of another kind.
    let full = net::UnixListener::bind(&path).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let _client = net::UnixStream::connect(&path).unwrap();
    in_use(listen(), "somebody");
    drop(full);
    std::fs::remove_file(&path).unwrap();
    let datagrams = driver.bind_unix(&address).unwrap();
    in_use(listen(), "somebody");
    drop(datagrams);
    assert!(!path.exists(), "with the last handle");
    // Of those who replace it at once one has it, and the others are told.
    for _ in 0..5 {
        leave_file(&path);
        let address = &address;
        let won = thread::scope(|scope| {
            let racers = [(); 4].map(|()| {
                scope.spawn(move || {
                    let driver = without_ring();
                    let listener = driver.listen_unix(address, UnixKind::Stream);
                    let won = match &listener {
                        Ok(_) => net::UnixStream::connect(address.as_path().unwrap()).is_ok(),
                        Err(error) => panic_unless_in_use(error),
                    };
                    // It goes when all have tried.
                    thread::sleep(5 * SHORT);
                    won
                })
            });
            racers.map(|racer| racer.join().unwrap()).into_iter().filter(|won| *won).count()
        });
        assert_eq!(won, 1);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }
    File::create(&path).unwrap();
    in_use(listen(), "no socket");
    assert_eq!(driver.in_flight(), 0);
    let name = abstract_name("taken");
    let _has_it = driver.bind_unix(&name).unwrap();
    let error = driver.bind_unix(&name).unwrap_err();
    assert!(error.to_string().contains(&name.to_string()), "{error}");
}

fn panic_unless_in_use(error: &Error) -> bool {
    assert!(matches!(error, Error::NameInUse { .. }), "{error}");
    false
}

#[test]
fn a_file_that_is_anothers_by_now_stays() {
    let directory = directory();
    let (path, address) = at(&directory);
    let driver = Driver::new().unwrap();
    let listener = driver.listen_unix(&address, UnixKind::Stream).unwrap();
    std::fs::remove_file(&path).unwrap();
    let successor = net::UnixListener::bind(&path).unwrap();
    drop(listener);
    assert!(path.exists());
    // One that listens already is not ours.
    let mut listener = driver.listen_unix_on(successor).unwrap();
    let client = net::UnixStream::connect(&path).unwrap();
    driver.block_on(listener.accept()).unwrap().unwrap();
    drop((listener, client));
    std::fs::remove_file(&path).unwrap();
    let mut listener = driver.listen_unix(&address, UnixKind::Stream).unwrap();
    listener.keep_file();
    let inode = path.symlink_metadata().unwrap().ino();
    drop(listener);
    assert_eq!(path.symlink_metadata().unwrap().ino(), inode);
    let (one, _other) = net::UnixStream::pair().unwrap();
    assert!(matches!(driver.listen_unix_on(one), Err(Error::Invalid(_))));
}

#[test]
fn a_connect_waits_for_the_listener_and_can_be_given_up() {
    with_each_driver(LONG, |driver| {
        let name = abstract_name("backlog");
        let mut listener = driver.listen_unix(&name, UnixKind::Stream).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let connect = || driver.connect_unix(&name, UnixKind::Stream).unwrap();
        let first = driver.block_on(connect()).unwrap().unwrap();
        let dropped = connect();
        let kept = connect();
        let cancelled = driver.cancel_after(SHORT, connect());
        let result = driver.block_on(cancelled).unwrap();
        assert!(matches!(result, Err(Error::Canceled { .. })), "{result:?}");
        drop(dropped);
        driver
            .block_on(async {
                let (_far, _) = listener.accept().await.unwrap();
                let near = kept.await.unwrap();
                let (far, _) = listener.accept().await.unwrap();
                send(&near, b"late").await;
                assert_eq!(receive(&far).await, b"late");
            })
            .unwrap();
        drop((first, listener));
        settle(&driver);
        let error = driver.block_on(connect()).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
        settle(&driver);
    });
}

#[test]
fn messages_keep_their_order_and_their_ends() {
    const MESSAGES: usize = 300;
    with_each_driver(LONG, |driver| {
        for kind in [UnixKind::Datagram, UnixKind::Seqpacket] {
            let (near, far) = driver.unix_pair(kind).unwrap();
            // More than there is room for.
            let len_of = |number: usize| 1 + number * 37 % 5_000;
            let sends: Vec<_> = (0..MESSAGES)
                .map(|number| near.send(Buffer::from(pattern(number, len_of(number)))).unwrap())
                .collect();
            driver
                .block_on(async {
                    for number in 0..MESSAGES {
                        assert_same(&receive(&far).await, &pattern(number, len_of(number)));
                    }
                    for sending in sends {
                        sending.await.unwrap().sent.unwrap();
                    }
                })
                .unwrap();
            // Cancelled sends go, and the others stay in order.
            let fill: Vec<_> =
                (0..MESSAGES).map(|_| near.send(zeroed(4_000)).unwrap().split()).collect();
            let (sent, _back): (Vec<_>, Vec<_>) = fill.into_iter().unzip();
            sent[MESSAGES - 1].cancel();
            sent[MESSAGES - 3].cancel();
            driver
                .block_on(async {
                    let mut told = 0;
                    for (number, sent) in sent.into_iter().enumerate() {
                        if number == 0 {
                            for _ in 0..MESSAGES - 2 {
                                assert_eq!(receive(&far).await.len(), 4_000);
                            }
                        }
                        match sent.await {
                            Err(Error::Canceled { done: 0 }) => told += 1,
                            result => assert_eq!(result.unwrap(), 4_000),
                        }
                    }
                    assert_eq!(told, 2);
                })
                .unwrap();
            drop(near);
            if kind == UnixKind::Seqpacket {
                assert!(driver.block_on(receive(&far)).unwrap().is_empty(), "the end");
            }
        }
        settle(&driver);
    });
}

#[test]
fn a_stream_of_spans_ends_with_the_peer() {
    with_each_driver(LONG, |driver| {
        for kind in [UnixKind::Stream, UnixKind::Seqpacket] {
            let region = handoff::Region::anonymous(1 << 20).unwrap();
            let pool = driver.pool(region, 1 << 14).unwrap();
            let (near, far) = driver.unix_pair(kind).unwrap();
            let mut receiver = far.receive(&pool).unwrap();
            driver
                .block_on(async {
                    for number in 0..20 {
                        send(&near, &pattern(number, 5_000)).await;
                    }
                    drop(near);
                    let (mut got, mut spans) = (Vec::new(), 0);
                    while let Some(span) = receiver.next_span().await {
                        got.extend_from_slice(&span.unwrap());
                        spans += 1;
                    }
                    let expected: Vec<_> = (0..20).flat_map(|n| pattern(n, 5_000)).collect();
                    assert_same(&got, &expected);
                    assert!(kind == UnixKind::Stream || spans == 20);
                })
                .unwrap();
        }
        settle(&driver);
    });
}

#[test]
fn a_datagram_goes_to_a_name_and_tells_its_sender() {
    with_each_driver(LONG, |driver| {
        let directory = directory();
        let (path, address) = at(&directory);
        let far = driver.bind_unix(&address).unwrap();
        let near = driver.bind_unix(&UnixAddress::unnamed()).unwrap();
        let name = UnixAddress::local(&near).unwrap();
        assert!(name.as_abstract_name().is_some());
        driver
            .block_on(async {
                let message = near.message(Buffer::from(b"hello".to_vec())).to_unix(&address);
                assert_eq!(message.send().unwrap().await.unwrap().sent.unwrap(), 5);
                let got = far.receive_message(zeroed(3), 0).unwrap().await.unwrap();
                assert_eq!(got.result.unwrap(), 3);
                assert!(got.truncated);
                assert_eq!(got.sender, Some(name.clone()));
                let unnamed = driver.unix_socket(UnixKind::Datagram).unwrap();
                let unnamed = unnamed.connect_unix(&address).unwrap().await.unwrap();
                send(&unnamed, b"from nobody").await;
                let got = far.receive_message(zeroed(99), 0).unwrap().await.unwrap();
                assert_eq!((got.result.unwrap(), got.sender), (11, None));
                // One that is too long says what the limit is.
                let error = unnamed.send(zeroed(64 << 20)).unwrap().await.unwrap().sent;
                let error = error.unwrap_err().to_string();
                assert!(error.contains("SO_SNDBUF"), "{error}");
            })
            .unwrap();
        // More than it has room for, to a peer that is not the socket's own: they wait, and one is given up.
        let to_far = |len| near.message(zeroed(len)).to_unix(&address).send().unwrap();
        let sends: Vec<_> = (1..=40).map(to_far).collect();
        let given_up = to_far(50);
        driver.turn(Wait::AtMost(SHORT)).unwrap();
        let (sent, _) = given_up.split();
        sent.cancel();
        let result = driver.block_on(sent).unwrap();
        assert!(matches!(result, Err(Error::Canceled { .. })), "{result:?}");
        driver
            .block_on(async {
                for _ in 1..=40 {
                    assert!((1..=40).contains(&receive(&far).await.len()));
                }
                for sending in sends {
                    sending.await.unwrap().sent.unwrap();
                }
            })
            .unwrap();
        drop(far);
        settle(&driver);
        assert!(!path.exists());
    });
}

#[test]
fn the_peer_is_told_by_number_and_by_descriptor() {
    with_each_driver(LONG, |driver| {
        let (near, _far) = driver.unix_pair(UnixKind::Stream).unwrap();
        let peer = near.peer_credentials().unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
        match near.peer_pidfd() {
            Ok(process) => {
                assert!(fcntl_getfd(&process).unwrap().contains(FdFlags::CLOEXEC));
                let told = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
                let told = std::fs::read_to_string(told).unwrap();
                assert!(told.contains(&format!("Pid:\t{}\n", std::process::id())), "{told}");
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT), "{error}"),
        }
        let alone = driver.unix_socket(UnixKind::Stream).unwrap();
        assert_eq!(alone.peer_credentials().unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    });
}

/// A pipe: what to pass, and what tells that no descriptor of it is left.
fn pipe() -> (OwnedFd, File) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    (write, File::from(read))
}

/// Whether nobody has the writing end of a pipe any more.
fn is_closed(mut read: &File) -> bool {
    match read.read(&mut [0]) {
        Ok(0) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn descriptors_go_with_their_message() {
    with_each_driver(LONG, |driver| {
        for kind in [UnixKind::Stream, UnixKind::Datagram, UnixKind::Seqpacket] {
            let (near, far) = driver.unix_pair(kind).unwrap();
            let (write, read) = pipe();
            driver
                .block_on(async {
                    for most in [1, 2, 253] {
                        let borrowed = [write.as_fd()];
                        let message = near.message(Buffer::from(b"x".to_vec())).header(b"head");
                        message.descriptors(&borrowed).send().unwrap().await.unwrap().sent.unwrap();
                        let receiving = far.receive_message(vec![zeroed(2), zeroed(9)], most);
                        let got = receiving.unwrap().await.unwrap();
                        assert_eq!(got.result.unwrap(), 5);
                        assert_eq!(&got.buffer[0][..], b"he");
                        assert_eq!(&got.buffer[1][..3], b"adx");
                        let [passed] = &got.descriptors[..] else { panic!("one was sent") };
                        assert!(fcntl_getfd(passed).unwrap().contains(FdFlags::CLOEXEC));
                        File::from(passed.try_clone().unwrap()).write_all(b"!").unwrap();
                        let mut told = [0];
                        (&read).read_exact(&mut told).unwrap();
                    }
                    // The most that go.
                    let many = (0..253).map(|_| write.try_clone().unwrap()).collect();
                    let message = near.message(Buffer::from(vec![1])).give_descriptors(many);
                    message.send().unwrap().await.unwrap().sent.unwrap();
                    let got = far.receive_message(zeroed(9), 253).unwrap().await.unwrap();
                    assert_eq!((got.result.unwrap(), got.descriptors.len()), (1, 253));
                })
                .unwrap();
            drop(write);
            assert!(is_closed(&read), "nobody keeps one");
        }
        settle(&driver);
    });
}

#[test]
fn descriptors_that_nobody_gets_are_closed() {
    with_each_driver(LONG, |driver| {
        let (near, far) = driver.unix_pair(UnixKind::Seqpacket).unwrap();
        let pass = |number: usize| {
            let (write, read) = pipe();
            let mut all = vec![write];
            all.extend((1..number).map(|_| all_of(&near)));
            let message = near.message(Buffer::from(vec![7; 10])).give_descriptors(all);
            driver
                .block_on(async { message.send().unwrap().await })
                .unwrap()
                .unwrap()
                .sent
                .unwrap();
            read
        };
        // More than are wanted: the bytes come, and no descriptor.
        let read = pass(3);
        let got = driver.block_on(far.receive_message(zeroed(20), 2).unwrap()).unwrap().unwrap();
        assert!(matches!(got.result, Err(Error::DescriptorsCut { received: 10 })));
        assert_eq!(got.buffer[..10], [7; 10]);
        assert!(got.descriptors.is_empty() && is_closed(&read));
        // None wanted, by each way to receive.
        let read = pass(1);
        let got = driver.block_on(far.receive_message(zeroed(20), 0).unwrap()).unwrap().unwrap();
        assert_eq!(got.result.unwrap(), 10);
        assert!(is_closed(&read));
        let read = pass(1);
        assert_eq!(driver.block_on(receive(&far)).unwrap().len(), 10);
        assert!(is_closed(&read));
        // Dropped before and after it came.
        let read = pass(1);
        let receiving = far.receive_message(zeroed(20), 1).unwrap();
        while matches!(driver.turn(Wait::AtMost(SHORT)), Ok(n) if n > 0) {}
        drop(receiving);
        settle(&driver);
        assert!(is_closed(&read));
        let receiving = far.receive_message(zeroed(20), 1).unwrap();
        driver.turn(Wait::No).unwrap();
        drop(receiving);
        settle(&driver);
        let read = pass(1);
        assert!(!is_closed(&read), "the message is whole in the queue");
        // Cancelled, with nothing there.
        let _kept = driver.block_on(far.receive_message(zeroed(20), 1).unwrap()).unwrap().unwrap();
        let receiving = far.receive_message(zeroed(20), 1).unwrap();
        let got = driver.block_on(driver.cancel_after(SHORT, receiving)).unwrap().unwrap();
        assert!(matches!(got.result, Err(Error::Canceled { done: 0 })));
        // Those of a send that is cancelled, refused, or fails.
        let (write, read) = pipe();
        let fill: Vec<_> = (0..300).map(|_| near.send(zeroed(4_000)).unwrap()).collect();
        let message = near.message(zeroed(1)).give_descriptors(vec![write]);
        let (sent, back) = message.send().unwrap().split();
        assert!(!is_closed(&read));
        sent.cancel();
        assert!(matches!(driver.block_on(sent).unwrap(), Err(Error::Canceled { .. })));
        assert!(is_closed(&read));
        drop((back, fill));
        let (write, read) = pipe();
        let refused = near.message(zeroed(0)).give_descriptors(vec![write]).send();
        assert!(refused.is_err() && is_closed(&read));
        near.abort();
        settle(&driver);
        let (write, read) = pipe();
        let message = near.message(zeroed(1)).give_descriptors(vec![write]).send().unwrap();
        let finished = driver.block_on(async { message.await }).unwrap().unwrap();
        assert!(finished.sent.is_err() && is_closed(&read));
        // The driver goes, with a receive under way.
        let (one, other) = driver.unix_pair(UnixKind::Stream).unwrap();
        let receiving = other.receive_message(zeroed(20), 1).unwrap();
        let driver_left = driver.clone();
        drop(driver);
        drop(driver_left);
        drop((one, receiving));
    });
}

fn all_of(socket: &Socket) -> OwnedFd {
    socket.as_fd().try_clone_to_owned().unwrap()
}

#[test]
fn a_process_without_descriptors_is_told_that_they_are_lost() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    with_each_driver(LONG, |driver| {
        let (near, far) = driver.unix_pair(UnixKind::Stream).unwrap();
        let (write, read) = pipe();
        let borrowed = [write.as_fd()];
        let message = near.message(zeroed(1)).descriptors(&borrowed).send().unwrap();
        driver.block_on(async { message.await }).unwrap().unwrap().sent.unwrap();
        drop(write);
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        let got = driver.block_on(far.receive_message(zeroed(9), 1).unwrap()).unwrap().unwrap();
        setrlimit(Resource::Nofile, limit).unwrap();
        assert!(matches!(got.result, Err(Error::DescriptorsCut { received: 1 })));
        assert!(is_closed(&read));
    });
}

#[test]
fn a_file_goes_to_a_stream_by_its_pages() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(3, 1 << 20)).unwrap();
    with_each_driver(LONG, move |driver| {
        for engine in [RouteEngine::Splice, RouteEngine::Memory, RouteEngine::Copy] {
            let (near, far) = net::UnixStream::pair().unwrap();
            let reading = thread::spawn(move || {
                let mut all = Vec::new();
                (&far).read_to_end(&mut all).unwrap();
                all
            });
            let file = driver.file(file.try_clone().unwrap()).unwrap();
            let socket = driver.socket(near).unwrap();
            let mut route = Route::new(&driver, (&file, 0..1 << 20), &socket).only(engine);
            let carried = driver.block_on(route.run()).unwrap();
            carried.result.unwrap();
            assert_eq!(carried.bytes, 1 << 20, "{engine}");
            let verdict = carried.given.outcome();
            match engine {
                // Nobody reports what becomes of the pages.
                RouteEngine::Splice => assert_eq!(verdict, Outcome::Unknown),
                _ => assert_eq!(verdict, Outcome::Copied),
            }
            drop((route, socket));
            assert_same(&reading.join().unwrap(), &pattern(3, 1 << 20));
        }
    });
}

#[test]
fn a_peer_that_takes_nothing_is_left_in_the_end() {
    for ring in [RingUse::Prefer, RingUse::Avoid] {
        let linger = Duration::from_millis(50);
        let driver = Driver::builder().ring(ring).linger(linger).build().unwrap();
        for kind in [UnixKind::Stream, UnixKind::Seqpacket] {
            let (near, far) = driver.unix_pair(kind).unwrap();
            let sends: Vec<_> = (0..100).map(|_| near.send(zeroed(16_000)).unwrap()).collect();
            drop((near, sends));
            settle(&driver);
            drop(far);
        }
    }
}

#[test]
fn a_wait_for_a_message_begins_before_it_comes() {
    with_each_driver(LONG, |driver| {
        let (near, far) = net::UnixStream::pair().unwrap();
        let far = driver.socket(far).unwrap();
        let (receiving, waits) = telling(far.receive_message(zeroed(9), 1).unwrap());
        let sending = thread::spawn(move || {
            waits.recv().unwrap();
            (&near).write_all(b"later").unwrap();
            near
        });
        let got = driver.block_on(receiving).unwrap().unwrap();
        assert_eq!(got.result.unwrap(), 5);
        assert!(got.descriptors.is_empty() && !got.truncated);
        drop(sending.join().unwrap());
    });
}
