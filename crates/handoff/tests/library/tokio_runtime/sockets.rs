//! Sockets with tokio's traits, whose futures are dropped at every point where they wait.

use std::future::poll_fn;
use std::io::Write;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use handoff::tokio::{Buffers, Outgoing, SendSink, TcpListener, TcpStream, UdpSocket, run_with};
use handoff::{Buffer, BufferPool, Driver, Engine, Error, Frozen, Region, Result, Wait};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::join;
use tokio::task::{spawn_local, yield_now};

use crate::tokio_runtime::{Impatient, LONG, builders, each_engine, pool};
use crate::traffic::{
    assert_same, attached, await_bytes, engines, narrow_tcp, pattern, read_all,
    stay_on_one_processor, tcp, with_each_driver, with_each_engine, within, without_ring,
};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A connection over loopback with little room on the way.
async fn pair(driver: &Driver, engine: Engine) -> (TcpStream, TcpStream) {
    let mut listener = TcpListener::bind(driver, ANY).unwrap();
    let address = listener.local_addr().unwrap();
    let (near, accepted) = join!(TcpStream::connect(driver, address), listener.accept());
    let (near, (far, peer)) = (near.unwrap(), accepted.unwrap());
    assert_eq!((near.local_addr().unwrap(), near.peer_addr().unwrap()), (peer, address));
    near.set_nodelay(true).unwrap();
    assert!(SockRef::from(&near).tcp_nodelay().unwrap());
    for stream in [&near, &far] {
        SockRef::from(stream).set_send_buffer_size(64 << 10).unwrap();
        stream.socket().set_engine(engine).unwrap();
    }
    (near, far)
}

/// Waits until nothing is under way.
async fn quiet(driver: &Driver) {
    while driver.in_flight() > 0 {
        yield_now().await;
    }
}

#[test]
fn a_stream_loses_nothing_to_reads_and_writes_that_are_given_up() {
    const BYTES: usize = 1 << 20;
    within(LONG, || {
        each_engine(async |driver, engine| {
            Impatient::each(async |impatient| {
                let (mut near, mut far) = pair(driver, engine).await;
                let writer = async {
                    let bytes = pattern(1, BYTES);
                    let mut left = &bytes[..];
                    while !left.is_empty() {
                        let written = impatient.again(async || near.write(left).await).await;
                        left = &left[written.unwrap()..];
                    }
                    impatient.again(async || near.shutdown().await).await.unwrap();
                };
                let reader = async {
                    let (mut got, mut part) = (Vec::new(), vec![0; 30_000]);
                    loop {
                        match impatient.again(async || far.read(&mut part).await).await.unwrap() {
                            0 => break got,
                            read => got.extend_from_slice(&part[..read]),
                        }
                    }
                };
                let ((), got) = join!(writer, reader);
                assert_same(&got, &pattern(1, BYTES));
                drop((near, far));
                quiet(driver).await;
            })
            .await;
        });
    });
}

#[test]
fn a_listener_loses_no_connection_to_an_accept_that_is_given_up() {
    within(LONG, || {
        each_engine(async |driver, _| {
            Impatient::each(async |impatient| {
                let mut listener = TcpListener::bind(driver, ANY).unwrap();
                let address = listener.local_addr().unwrap();
                for stream in [false, true] {
                    let driver = driver.clone();
                    let connecting =
                        spawn_local(async move { TcpStream::connect(&driver, address).await });
                    let (mut accepted, _) = impatient
                        .again(async || match stream {
                            false => listener.accept().await.unwrap(),
                            true => listener.next().await.unwrap().unwrap(),
                        })
                        .await;
                    let mut near = connecting.await.unwrap().unwrap();
                    near.write_all(b"it is this one").await.unwrap();
                    let mut got = [0; 14];
                    accepted.read_exact(&mut got).await.unwrap();
                    assert_eq!(&got, b"it is this one");
                }
                // A dropped connection attempt leaves nothing behind.
                drop(impatient.once(TcpStream::connect(driver, address)).await);
                drop(listener);
                quiet(driver).await;
            })
            .await;
        });
    });
}

#[test]
fn what_is_written_goes_behind_what_was_lent() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            let (mut near, mut far) = pair(driver, engine).await;
            let writer = async {
                for round in 0..20 {
                    // Nobody awaits it.
                    drop(near.socket().send(Buffer::from(pattern(round, 100_000))).unwrap());
                    let bytes = [pattern(round, 50), pattern(round + 1, 50_000)].concat();
                    near.write_all(&bytes[..50]).await.unwrap();
                    drop(near.socket().send(Buffer::from(vec![9; 10])).unwrap());
                    near.write_all(&bytes[50..]).await.unwrap();
                }
                drop(near.socket().send(Buffer::from(b"the end".to_vec())).unwrap());
                near.shutdown().await.unwrap();
            };
            let reader = async {
                let mut got = Vec::new();
                far.read_to_end(&mut got).await.unwrap();
                got
            };
            let ((), got) = join!(writer, reader);
            let round = |round| {
                let lent = [pattern(round, 100_000), pattern(round, 50)].concat();
                [lent, vec![9; 10], pattern(round + 1, 50_000)].concat()
            };
            let mut expected: Vec<u8> = (0..20).flat_map(round).collect();
            expected.extend_from_slice(b"the end");
            assert_same(&got, &expected);
        });
    });
}

/// Feeds a sink with `item` of each number, and drops each wait that is too long.
async fn feed<I: Outgoing>(
    impatient: &Impatient,
    sink: &mut SendSink<I>,
    items: usize,
    item: impl AsyncFn(usize) -> I,
) {
    for number in 0..items {
        let item = impatient.again(async || item(number).await).await;
        let room = async || poll_fn(|context| Pin::new(&mut *sink).poll_ready(context)).await;
        impatient.again(room).await.unwrap();
        Pin::new(&mut *sink).start_send(item).unwrap();
        if number % 3 == 0 {
            impatient.again(async || sink.flush().await).await.unwrap();
        }
    }
    impatient.again(async || sink.close().await).await.unwrap();
}

/// Everything that a stream has; drops each wait that is too long.
async fn collect<S: Stream<Item = Result<B>> + Unpin, B: AsRef<[u8]>>(
    impatient: &Impatient,
    mut stream: S,
    bytes: usize,
) -> Vec<u8> {
    let mut got = Vec::new();
    while got.len() < bytes {
        let next = impatient.again(async || stream.next().await).await;
        got.extend_from_slice(next.expect("there is more").unwrap().as_ref());
    }
    got
}

struct Text<B>(B);

impl<B: std::ops::Deref<Target = [u8]>> AsRef<[u8]> for Text<B> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

const ITEMS: usize = 16;
const ITEM: usize = 20_000;

fn all_items() -> Vec<u8> {
    (0..ITEMS).flat_map(|number| pattern(number, ITEM)).collect()
}

#[test]
fn sinks_and_streams_lose_nothing_to_futures_that_are_given_up() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            Impatient::each(async |impatient| {
                let filled = async |pool: &BufferPool, number| {
                    let mut buffer = pool.get().await;
                    buffer.set_len(ITEM);
                    buffer.copy_from_slice(&pattern(number, ITEM));
                    buffer
                };
                // Buffers, received as buffers of a pool.
                let (out, back) = (pool(4, 1 << 15), pool(3, 4096));
                let (near, far) = pair(driver, engine).await;
                let mut sink: SendSink<Buffer> = SendSink::new(near.into_socket(), 3);
                let buffers = Buffers::new(far.into_socket(), &back).unwrap();
                let fed = feed(impatient, &mut sink, ITEMS, async |at| filled(&out, at).await);
                let got = collect(impatient, buffers.map(|it| it.map(Text)), ITEMS * ITEM);
                let ((), got) = join!(fed, got);
                assert_same(&got, &all_items());
                assert_eq!(back.free(), back.buffers());
                drop(sink);
                quiet(driver).await;
                assert_eq!(out.free(), out.buffers(), "{engine}");
                // Frozen buffers and bytes, received as spans.
                let spans = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
                let (near, far) = pair(driver, engine).await;
                let mut sink: SendSink<Frozen> = SendSink::new(near.into_socket(), 3);
                let receiver = far.socket().receive(&spans).unwrap().map(|it| it.map(Text));
                let frozen = async |number| filled(&out, number).await.freeze();
                let got = collect(impatient, receiver, ITEMS * ITEM);
                let ((), got) = join!(feed(impatient, &mut sink, ITEMS, frozen), got);
                assert_same(&got, &all_items());
                let (near, mut far) = pair(driver, engine).await;
                let mut sink: SendSink<Bytes> = SendSink::new(near.into_socket(), 100);
                let bytes = async |number| Bytes::from(pattern(number, ITEM));
                let read = async {
                    let mut got = vec![0; ITEMS * ITEM];
                    far.read_exact(&mut got).await.unwrap();
                    got
                };
                let ((), got) = join!(feed(impatient, &mut sink, ITEMS, bytes), read);
                assert_same(&got, &all_items());
            })
            .await;
        });
    });
}

#[test]
fn datagrams_come_with_their_senders() {
    const DATAGRAMS: usize = 30;
    within(LONG, || {
        stay_on_one_processor();
        each_engine(async |driver, engine| {
            Impatient::each(async |impatient| {
                let (near, far) =
                    (UdpSocket::bind(driver, ANY).unwrap(), UdpSocket::bind(driver, ANY).unwrap());
                near.socket().set_engine(engine).unwrap();
                let (from, to) = (near.local_addr().unwrap(), far.local_addr().unwrap());
                let mut sink = SendSink::new(near.socket().clone(), 4);
                let item = async |number| (Buffer::from(pattern(number, 900 + number)), to);
                let received = async {
                    let mut into = vec![0; 2000];
                    for number in 0..DATAGRAMS / 2 {
                        let (len, peer) =
                            impatient.again(async || far.recv_from(&mut into).await).await.unwrap();
                        assert_same(&into[..len], &pattern(number, 900 + number));
                        assert_eq!(peer, from);
                    }
                    let pool = pool(2, 2048);
                    let mut datagrams = far.datagrams(&pool).unwrap();
                    for number in DATAGRAMS / 2..DATAGRAMS {
                        let next = impatient.again(async || datagrams.next().await).await;
                        let (buffer, peer) = next.unwrap().unwrap();
                        assert_same(&buffer, &pattern(number, 900 + number));
                        assert_eq!(peer, from);
                    }
                    assert!(far.recv_from(&mut into).await.is_err(), "it has a receiver");
                };
                let sent = feed(impatient, &mut sink, DATAGRAMS, item);
                let ((), ()) = join!(sent, received);
                drop((sink, near, far));
                quiet(driver).await;
            })
            .await;
        });
    });
}

#[test]
fn two_receivers_of_a_socket_are_refused_and_nothing_is_lost() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            let (mut near, mut far) = pair(driver, engine).await;
            let (spans, buffers) =
                (driver.pool(Region::anonymous(4096).unwrap(), 4096).unwrap(), pool(1, 4096));
            near.write_all(b"one").await.unwrap();
            let receiver = far.socket().receive(&spans).unwrap();
            let refused = far.read(&mut [0; 9]).await.unwrap_err();
            assert!(refused.to_string().contains("has a receiver"), "{refused}");
            let mut receiver = receiver;
            assert_eq!(&receiver.next().await.unwrap().unwrap()[..], b"one");
            drop(receiver);
            quiet(driver).await;
            near.write_all(b"two").await.unwrap();
            let reading = Buffers::new(far.socket().clone(), &buffers).unwrap();
            assert!(far.socket().receive(&spans).is_err());
            assert!(Buffers::new(far.socket().clone(), &buffers).is_err());
            assert!(far.socket().receive_into(Buffer::from(vec![0; 9])).is_err());
            drop(reading);
            let mut got = [0; 3];
            far.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"two");
        });
    });
}

#[test]
fn ends_and_failures_are_told() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            // A write to a peer that is gone.
            let (mut near, far) = pair(driver, engine).await;
            SockRef::from(&far).set_linger(Some(std::time::Duration::ZERO)).unwrap();
            drop(far);
            let error = loop {
                if let Err(error) = near.write_all(&pattern(1, 9000)).await {
                    break error;
                }
                yield_now().await;
            };
            assert!(matches!(error.raw_os_error(), None | Some(libc::EPIPE | libc::ECONNRESET)));
            // A sink reports a failure once, and takes nothing behind it.
            let (near, far) = pair(driver, engine).await;
            let mut sink = SendSink::new(near.into_socket(), 4);
            SockRef::from(&far).set_linger(Some(std::time::Duration::ZERO)).unwrap();
            drop(far);
            loop {
                if sink.send(Buffer::from(pattern(1, 100_000))).await.is_err() {
                    break;
                }
                yield_now().await;
            }
            let told = sink.feed(Buffer::from(vec![1; 9])).await.unwrap_err().to_string();
            assert!(told.contains("nothing goes behind it"), "{told}");
            // Sockets of the wrong kind.
            let (udp, (near, _far)) =
                (UdpSocket::bind(driver, ANY).unwrap(), pair(driver, engine).await);
            let other = TcpStream::try_from(udp.socket().clone()).unwrap_err();
            assert!(other.to_string().contains("UdpSocket"), "{other}");
            UdpSocket::try_from(other.socket).unwrap();
            let other = UdpSocket::try_from(near.into_socket()).unwrap_err();
            TcpStream::try_from(other.socket).unwrap();
            // An end of a stream without bytes.
            let (near, mut far) = pair(driver, engine).await;
            drop(near);
            assert_eq!(far.read(&mut [0; 9]).await.unwrap(), 0);
            let mut buffers = Buffers::new(far.into_socket(), &pool(1, 4096)).unwrap();
            assert!(buffers.next().await.is_none() && buffers.next().await.is_none());
        });
    });
}

#[test]
fn a_stream_without_its_driver_says_so() {
    within(LONG, || {
        for builder in builders() {
            let kept = async |driver| (pair(&driver, Engine::Copy).await, pool(1, 4096));
            let ((mut near, far), pool) = run_with(builder, kept).unwrap();
            let waits = async {
                let read = near.read(&mut [0; 9]).await.unwrap_err();
                let next = Buffers::new(far.into_socket(), &pool).unwrap().next().await;
                [read.to_string(), next.unwrap().unwrap_err().to_string()]
            };
            for told in without_ring().block_on(waits).unwrap() {
                assert!(told.contains("the driver was dropped"), "{told}");
            }
        }
    });
}

#[test]
fn a_wait_of_many_tasks_for_the_same_sends_ends_for_all() {
    within(LONG, || {
        each_engine(async |driver, engine| {
            let (near, mut far) = pair(driver, engine).await;
            let near = near.into_socket();
            drop(near.send(Buffer::from(pattern(1, 2 << 20))).unwrap());
            let waiting: Vec<_> = (0..5)
                .map(|_| {
                    let near = near.clone();
                    spawn_local(async move { near.flush().await })
                })
                .collect();
            for _ in 0..5 {
                yield_now().await;
            }
            assert!(waiting.iter().all(|task| !task.is_finished()));
            let mut got = vec![0; 2 << 20];
            far.read_exact(&mut got).await.unwrap();
            for task in waiting {
                task.await.unwrap().unwrap();
            }
        });
    });
}

#[test]
fn a_wait_for_sends_ends_with_the_driver() {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }
    with_each_engine(LONG, |driver, engine| {
        let (near, _far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        drop(socket.send(Buffer::from(pattern(1, 2 << 20))).unwrap());
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut flush = pin!(socket.flush());
        driver.turn(Wait::No).unwrap();
        assert!(flush.as_mut().poll(&mut context).is_pending());
        drop(driver);
        assert!(woken.0.load(Relaxed), "{engine}");
        assert!(matches!(flush.as_mut().poll(&mut context), Poll::Ready(Err(_))), "{engine}");
    });
}

#[test]
fn an_empty_datagram_is_no_end_and_a_connected_socket_needs_no_address() {
    within(LONG, || {
        stay_on_one_processor();
        each_engine(async |driver, engine| {
            let far = std::net::UdpSocket::bind(ANY).unwrap();
            let near = UdpSocket::bind(driver, ANY).unwrap();
            near.socket().set_engine(engine).unwrap();
            near.connect(far.local_addr().unwrap()).unwrap();
            near.socket().send(Buffer::from(vec![7; 9])).unwrap().await.unwrap().sent.unwrap();
            let mut got = [0; 20];
            let (len, peer) = far.recv_from(&mut got).unwrap();
            assert_eq!((&got[..len], peer), (&[7; 9][..], near.local_addr().unwrap()));
            for len in [0, 1] {
                far.send_to(&got[..len], peer).unwrap();
            }
            let pool = pool(1, 4096);
            let mut datagrams = near.datagrams(&pool).unwrap();
            for len in [0, 1] {
                let (datagram, from) = datagrams.next().await.unwrap().unwrap();
                assert_eq!((datagram.len(), from), (len, far.local_addr().unwrap()));
            }
            // As buffers without senders as well.
            drop(datagrams);
            let mut buffers = Buffers::new(near.socket().clone(), &pool).unwrap();
            far.send_to(&[], peer).unwrap();
            assert!(buffers.next().await.unwrap().unwrap().is_empty());
        });
    });
}

#[test]
fn a_read_behind_a_receive_that_was_given_up_passes_nothing_over() {
    const SHORT: Duration = Duration::from_millis(10);
    within(LONG, || {
        each_engine(async |driver, _| {
            for taken in [0, 40] {
                let (near, mut far) = tcp("127.0.0.1");
                let mut near = TcpStream::try_from(driver.socket(near).unwrap()).unwrap();
                far.write_all(&pattern(1, 60)[..taken]).unwrap();
                await_bytes(near.socket(), taken);
                let receiving = near.socket().receive_exact(Buffer::from(vec![0; 100])).unwrap();
                // It has what came before its time is over.
                driver.turn(Wait::No).unwrap();
                assert!(driver.timeout(SHORT, receiving).await.is_err());
                let mut got = [0; 60];
                let rest = pattern(1, 60).split_off(taken);
                let read = match taken {
                    // A dropped future would take it.
                    0 => {
                        let later = async {
                            driver.turn(Wait::No).unwrap();
                            driver.sleep(SHORT).await.unwrap();
                            far.write_all(&rest).unwrap();
                        };
                        join!(near.read(&mut got), later).0
                    }
                    _ => {
                        far.write_all(&rest).unwrap();
                        near.read(&mut got).await
                    }
                };
                match taken {
                    0 => assert_same(&got[..read.unwrap()], &pattern(1, 60)),
                    _ => {
                        let told = read.unwrap_err().to_string();
                        assert!(told.contains("40 bytes of the stream went to"), "{told}");
                    }
                }
            }
        });
    });
}

#[test]
fn a_read_that_waits_for_a_dropped_receive_ends_with_the_driver() {
    with_each_driver(LONG, |driver| {
        let (near, _far) = tcp("127.0.0.1");
        let mut near = TcpStream::try_from(driver.socket(near).unwrap()).unwrap();
        let receiving = near.socket().receive_exact(Buffer::from(vec![0; 100])).unwrap();
        driver.turn(Wait::No).unwrap();
        drop(receiving);
        let mut got = [0; 9];
        let mut read = pin!(near.read(&mut got));
        let mut context = Context::from_waker(Waker::noop());
        assert!(read.as_mut().poll(&mut context).is_pending());
        drop(driver);
        let Poll::Ready(Err(told)) = read.poll(&mut context) else { panic!("it goes on") };
        assert!(told.to_string().contains("the driver was dropped"), "{told}");
    });
}

#[test]
fn waits_take_no_place_of_operations() {
    within(LONG, || {
        for builder in builders() {
            run_with(builder.in_flight(1), async |driver: Driver| {
                let (sockets, mut far): (Vec<_>, Vec<_>) = (0..3).map(|_| tcp("127.0.0.1")).unzip();
                let sockets = sockets.into_iter().map(|near| driver.socket(near).unwrap());
                let mut sockets: Vec<_> =
                    sockets.map(|near| TcpStream::try_from(near).unwrap()).collect();
                let [one, other, third] = &mut sockets[..] else { unreachable!() };
                let told = async {
                    driver.sleep(Duration::from_millis(5)).await.unwrap();
                    assert_eq!(driver.in_flight(), 2);
                    // The only place is free.
                    let sending = third.socket().send(Buffer::from(vec![3; 9])).unwrap();
                    let refused = third.socket().send(Buffer::from(vec![3; 9])).unwrap_err();
                    assert!(matches!(refused.error, Error::Busy { limit: 1 }));
                    sending.await.unwrap().sent.unwrap();
                    for (number, far) in far.iter_mut().enumerate() {
                        far.write_all(&[number as u8]).unwrap();
                    }
                };
                let (one, other, ()) = join!(one.read_u8(), other.read_u8(), told);
                assert_eq!((one.unwrap(), other.unwrap()), (0, 1));
                quiet(&driver).await;
            })
            .unwrap();
        }
    });
}

#[test]
fn a_wait_ends_with_the_driver() {
    with_each_driver(LONG, |driver| {
        let (near, _far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let mut waits = [socket.readable().unwrap(), socket.readable().unwrap()];
        let nobody = driver.connect("192.0.2.1:9".parse().unwrap()).unwrap();
        driver.turn(Wait::No).unwrap();
        drop(driver);
        let mut context = Context::from_waker(Waker::noop());
        for wait in &mut waits {
            assert!(matches!(pin!(wait).poll(&mut context), Poll::Ready(Err(_))));
        }
        assert!(matches!(pin!(nobody).poll(&mut context), Poll::Ready(Err(_))));
        assert!(matches!(socket.readable(), Err(Error::DriverGone)));
    });
}

#[test]
fn a_sink_whose_sends_are_copied_keeps_no_task_waiting() {
    const ITEMS: usize = 20_000;
    within(LONG, || {
        for builder in builders() {
            let turns = run_with(builder, async |driver: Driver| {
                let far = std::net::UdpSocket::bind(ANY).unwrap();
                let near = UdpSocket::bind(&driver, ANY).unwrap();
                near.connect(far.local_addr().unwrap()).unwrap();
                near.socket().set_engine(Engine::Copy).unwrap();
                let mut sink = SendSink::new(near.socket().clone(), 4);
                let feeding = spawn_local(async move {
                    for _ in 0..ITEMS {
                        sink.feed(Bytes::from_static(b"item")).await.unwrap();
                    }
                });
                let mut turns = 0;
                while !feeding.is_finished() {
                    yield_now().await;
                    turns += 1;
                }
                turns
            });
            assert!(turns.unwrap() > 50);
        }
    });
}

#[test]
fn sockets_do_by_slices_what_those_of_tokio_do() {
    within(LONG, || {
        stay_on_one_processor();
        each_engine(async |driver, engine| {
            let (near, far) =
                (UdpSocket::bind(driver, ANY).unwrap(), UdpSocket::bind(driver, ANY).unwrap());
            let (from, to) = (near.local_addr().unwrap(), far.local_addr().unwrap());
            assert!(near.peer_addr().is_err() && near.send(b"nowhere").await.is_err());
            assert_eq!(near.send_to(b"one", to).await.unwrap(), 3);
            near.connect(to).unwrap();
            assert_eq!(near.peer_addr().unwrap(), to);
            assert_eq!(near.send(b"two, cut").await.unwrap(), 8);
            let mut got = [0; 3];
            assert_eq!(far.recv_from(&mut got).await.unwrap(), (3, from));
            assert_eq!(&got, b"one");
            assert_eq!(far.recv(&mut got).await.unwrap(), 3);
            assert_eq!(&got, b"two");
            drop(near.into_socket());
            let (mut near, mut far) = pair(driver, engine).await;
            near.write_all(b"three").await.unwrap();
            let mut got = [0; 5];
            assert_eq!(far.peek(&mut got[..2]).await.unwrap(), 2);
            far.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"three");
            assert!(near.nodelay().unwrap());
        });
    });
}

#[test]
fn a_receive_that_waits_tells_when_another_began_to() {
    within(LONG, || {
        each_engine(async |driver, _| {
            let far = UdpSocket::bind(driver, ANY).unwrap();
            let to = far.local_addr().unwrap();
            let mut got = [0; 9];
            let mut waits = Box::pin(far.recv_from(&mut got));
            let mut context = Context::from_waker(Waker::noop());
            assert!(waits.as_mut().poll(&mut context).is_pending());
            let pool = pool(1, 4096);
            let mut datagrams = far.datagrams(&pool).unwrap();
            let near = std::net::UdpSocket::bind(ANY).unwrap();
            near.send_to(b"for the stream", to).unwrap();
            let refused = waits.await.unwrap_err().to_string();
            assert!(refused.contains("has a receiver"), "{refused}");
            assert_eq!(&datagrams.next().await.unwrap().unwrap().0[..], b"for the stream");
        });
    });
}

#[test]
fn a_sink_waits_for_room() {
    const SHORT: Duration = Duration::from_millis(5);
    within(LONG, || {
        for builder in builders() {
            let ((near, far), (other, _peer)) = (tcp("127.0.0.1"), tcp("127.0.0.1"));
            let engines = engines(&builder.clone().build().unwrap());
            let count = engines.len();
            let reader = read_all(far);
            run_with(builder.in_flight(1), async |driver: Driver| {
                let (near, other) = (driver.socket(near).unwrap(), driver.socket(other).unwrap());
                for engine in engines {
                    near.set_engine(engine).unwrap();
                    let mut sink = SendSink::new(near.clone(), 4);
                    let receiving = other.receive_into(Buffer::from(vec![0; 9])).unwrap();
                    sink.feed(Bytes::from(pattern(0, ITEM))).await.unwrap();
                    assert!(driver.timeout(SHORT, sink.flush()).await.is_err());
                    receiving.cancel();
                    assert!(receiving.await.unwrap().result.is_err());
                    // Its own items take turns as well.
                    for number in 1..ITEMS {
                        sink.feed(Bytes::from(pattern(number, ITEM))).await.unwrap();
                    }
                    sink.close().await.unwrap();
                    quiet(&driver).await;
                }
            })
            .unwrap();
            assert_same(&reader.join().unwrap(), &all_items().repeat(count));
        }
    });
}
