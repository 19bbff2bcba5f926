//! Driver threads beside a runtime with its own threads: what crosses, what is dropped, what is gone.

use std::cell::Cell;
use std::future::pending;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures_util::StreamExt;
use handoff::tokio::{DriverThreads, Remote, RemoteBuffers, Reply};
use handoff::{Buffer, Driver, DriverBuilder, Engine, Error, Socket};
use tokio::io::AsyncReadExt;
use tokio::runtime::Runtime;

use crate::tokio_runtime::{Impatient, LONG, builders, pool};
use crate::traffic::{assert_same, engines, pattern, read_all, tcp, within};

/// Of many threads, so that tasks move.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Runs a test with threads of each kind of driver, and each of its engines.
fn each_engine(test: impl AsyncFn(&DriverThreads, Engine)) {
    for builder in builders() {
        for engine in engines(&builder.clone().build().unwrap()) {
            let threads = DriverThreads::with(builder.clone(), 2).unwrap();
            runtime().block_on(async {
                test(&threads, engine).await;
                threads.shutdown().await;
            });
        }
    }
}

/// A socket on a thread, and its peer.
async fn socket(threads: &DriverThreads, engine: Engine) -> (Remote<Socket>, std::net::TcpStream) {
    let (near, far) = tcp("127.0.0.1");
    let socket = threads.socket(near).await.unwrap();
    socket.call(move |socket| async move { socket.set_engine(engine) }).await.unwrap().unwrap();
    (socket, far)
}

#[test]
fn handles_and_futures_are_of_every_thread() {
    fn crosses<T: Send + Sync + 'static>(_: &T) {}
    fn moves<T: Send + 'static>(it: T) -> T {
        it
    }
    fn of_types<T: Send + Sync + Unpin>() {}
    of_types::<Reply<Buffer>>();
    of_types::<Remote<Driver>>();
    of_types::<RemoteBuffers>();
    within(LONG, || {
        let threads = DriverThreads::new(0).unwrap();
        assert_eq!(threads.threads().len(), 1);
        crosses(&threads);
        runtime().block_on(async {
            let (near, _far) = tcp("127.0.0.1");
            let clone = threads.clone();
            let task = moves(async move { clone.socket(near).await.unwrap() });
            let socket = tokio::spawn(task).await.unwrap();
            crosses(&socket);
            let sent = moves(socket.send(Buffer::from(vec![1; 9])));
            assert_eq!(tokio::spawn(sent).await.unwrap().unwrap().sent.unwrap(), 9);
        });
        // Without a runtime as well.
        let driver = Driver::new().unwrap();
        let free = threads.next().call(|driver| async move { driver.in_flight() });
        driver.block_on(free).unwrap().unwrap();
    });
}

#[test]
fn connections_are_echoed_by_tasks_on_any_thread() {
    const CONNECTIONS: usize = 20;
    const BYTES: usize = 300_000;
    within(LONG, || {
        each_engine(async |threads, engine| {
            let pool = pool(32, 1 << 14);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let clients: Vec<_> = (0..CONNECTIONS)
                .map(|seed| {
                    thread::spawn(move || {
                        let mut near = std::net::TcpStream::connect(address).unwrap();
                        let reading = near.try_clone().unwrap();
                        let reader = read_all(reading);
                        near.write_all(&pattern(seed, BYTES)).unwrap();
                        near.shutdown(std::net::Shutdown::Write).unwrap();
                        assert_same(&reader.join().unwrap(), &pattern(seed, BYTES));
                    })
                })
                .collect();
            for _ in 0..CONNECTIONS {
                let (connection, _) = listener.accept().await.unwrap();
                let socket = threads.socket(connection.into_std().unwrap()).await.unwrap();
                let pool = pool.clone();
                tokio::spawn(async move {
                    let call = move |socket: Socket| async move { socket.set_engine(engine) };
                    socket.call(call).await.unwrap().unwrap();
                    let mut arriving = socket.receive(&pool, 2);
                    while let Some(buffer) = arriving.next().await {
                        socket.send(buffer.unwrap()).await.unwrap().sent.unwrap();
                    }
                });
            }
            let joined = tokio::task::spawn_blocking(move || {
                clients.into_iter().for_each(|client| client.join().unwrap());
            });
            joined.await.unwrap();
            while pool.free() < pool.buffers() {
                tokio::task::yield_now().await;
            }
        });
    });
}

#[test]
fn replies_and_streams_that_are_given_up_lose_nothing() {
    const MESSAGES: usize = 30;
    const MESSAGE: usize = 5000;
    within(LONG, || {
        each_engine(async |threads, engine| {
            Impatient::each(async |impatient| {
                let (out, back) = (pool(3, MESSAGE), pool(3, 4096));
                let (socket, mut far) = socket(threads, engine).await;
                let echo = thread::spawn(move || {
                    let mut got = vec![0; MESSAGES * MESSAGE];
                    far.read_exact(&mut got).unwrap();
                    far.write_all(&got).unwrap();
                    far
                });
                for number in 0..MESSAGES {
                    let mut buffer = impatient.again(async || out.get().await).await;
                    buffer.set_len(MESSAGE);
                    buffer.copy_from_slice(&pattern(number, MESSAGE));
                    // It goes, dropped or not.
                    drop(impatient.once(socket.send(buffer)).await);
                }
                let mut arriving = socket.receive(&back, 2);
                let mut got = Vec::new();
                while got.len() < MESSAGES * MESSAGE {
                    let next = impatient.again(async || arriving.next().await).await;
                    got.extend_from_slice(&next.unwrap().unwrap());
                }
                let expected: Vec<u8> =
                    (0..MESSAGES).flat_map(|number| pattern(number, MESSAGE)).collect();
                assert_same(&got, &expected);
                drop(echo.join().unwrap());
                let end = impatient.again(async || arriving.next().await).await;
                assert!(end.is_none() && arriving.next().await.is_none());
                while out.free() < out.buffers() || back.free() < back.buffers() {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        });
    });
}

#[test]
fn a_handle_says_that_its_threads_are_gone() {
    within(LONG, || {
        for builder in builders() {
            let runtime = runtime();
            for shutdown in [false, true] {
                let threads = DriverThreads::with(builder.clone(), 2).unwrap();
                let pool = pool(2, 4096);
                runtime.block_on(async {
                    let (socket, mut far) = socket(&threads, Engine::Copy).await;
                    let remote = threads.next().clone();
                    let mut arriving = socket.receive(&pool, 1);
                    let waiting = socket.call(|_| pending::<()>());
                    let other = threads.clone();
                    match shutdown {
                        true => threads.shutdown().await,
                        false => drop(threads),
                    }
                    if !shutdown {
                        drop(other);
                    } else {
                        let gone = other.connect("127.0.0.1:9".parse().unwrap()).await;
                        assert!(matches!(gone, Err(Error::ThreadGone)), "{gone:?}");
                    }
                    assert!(matches!(waiting.await, Err(Error::ThreadGone)));
                    assert!(matches!(arriving.next().await, Some(Err(Error::ThreadGone))));
                    assert!(arriving.next().await.is_none());
                    let gone = socket.send(pool.get().await).await.unwrap_err();
                    assert!(gone.to_string().contains("DriverThreads"), "{gone}");
                    assert!(matches!(remote.call(async |_| ()).await, Err(Error::ThreadGone)));
                    // The socket is closed, and no buffer is missing.
                    assert_eq!(far.read(&mut [0; 9]).unwrap(), 0);
                    assert_eq!(pool.free(), pool.buffers());
                });
            }
        }
    });
}

#[test]
fn a_panic_of_a_call_comes_where_it_is_awaited_and_the_thread_goes_on() {
    within(LONG, || {
        let threads = DriverThreads::new(1).unwrap();
        let runtime = runtime();
        let panics: [fn(&DriverThreads) -> Reply<()>; 3] = [
            |threads| threads.next().call(|_| -> std::future::Ready<()> { panic!("of a call") }),
            |threads| threads.next().call(|_| async { panic!("of a call") }),
            |threads| {
                threads.next().call(|_| async {
                    tokio::task::yield_now().await;
                    panic!("of a call")
                })
            },
        ];
        for panics in panics {
            let call = AssertUnwindSafe(|| runtime.block_on(panics(&threads)));
            let panic = catch_unwind(call).unwrap_err();
            assert_eq!(*panic.downcast::<&str>().unwrap(), "of a call");
            let next = threads.next().call(async |driver| driver.in_flight());
            assert_eq!(runtime.block_on(next).unwrap(), 0);
        }
    });
}

#[test]
fn what_is_hosted_stays_on_its_thread_and_calls_keep_their_order() {
    within(LONG, || {
        let threads = DriverThreads::new(2).unwrap();
        runtime().block_on(async {
            let counter = threads.next().host(async |_| Ok(Rc::new(Cell::new(0)))).await.unwrap();
            let mut replies = Vec::new();
            for number in 0..1000 {
                let call = move |counter: Rc<Cell<i32>>| {
                    assert_eq!(counter.replace(number + 1), number);
                    async move { counter.get() }
                };
                replies.push(counter.clone().call(call));
            }
            let mut last = 0;
            for reply in replies {
                last = last.max(reply.await.unwrap());
            }
            assert_eq!(last, 1000);
            let failed = threads
                .next()
                .host(async |_| Err::<Driver, _>(Error::Invalid("it is not to be had")));
            assert!(failed.await.unwrap_err().to_string().contains("not to be had"));
            let mut names = Vec::new();
            for _ in 0..4 {
                let name = async |_| thread::current().name().unwrap().to_owned();
                names.push(threads.next().call(name).await.unwrap());
            }
            names.sort();
            assert_eq!(names, ["handoff-0", "handoff-0", "handoff-1", "handoff-1"]);
        });
    });
}

#[test]
fn the_last_handle_closes_the_socket_behind_its_sends() {
    within(LONG, || {
        each_engine(async |threads, engine| {
            let (socket, mut far) = socket(threads, engine).await;
            let clone = socket.clone();
            drop(socket);
            drop(clone.send(Buffer::from(pattern(3, 2 << 20))));
            drop(clone);
            let got = tokio::task::spawn_blocking(move || {
                let mut got = Vec::new();
                far.read_to_end(&mut got).unwrap();
                got
            });
            assert_same(&got.await.unwrap(), &pattern(3, 2 << 20));
        });
    });
}

#[test]
fn a_send_that_is_refused_brings_its_buffer() {
    within(LONG, || {
        for builder in builders() {
            let builder: DriverBuilder = builder.in_flight(0);
            let threads = DriverThreads::with(builder, 1).unwrap();
            runtime().block_on(async {
                let (near, mut far) = tcp("127.0.0.1");
                let socket = threads.socket(near).await.unwrap();
                let finished = socket.send(Buffer::from(vec![5; 5])).await.unwrap();
                assert!(matches!(finished.sent, Err(Error::Busy { limit: 0 })));
                assert_eq!(&finished.buffer[..], [5; 5]);
                // Mere waits need no place.
                let mut arriving = socket.receive(&pool(1, 4096), 1);
                far.write_all(&[7; 9]).unwrap();
                assert_eq!(&arriving.next().await.unwrap().unwrap()[..], [7; 9]);
            });
        }
    });
}

#[test]
fn a_reply_waits_as_long_as_the_call_takes() {
    within(LONG, || {
        let threads = DriverThreads::new(1).unwrap();
        runtime().block_on(async {
            let sleep = |driver: Driver| async move {
                driver.sleep(Duration::from_millis(20)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                "slept"
            };
            assert_eq!(threads.next().call(sleep).await.unwrap(), "slept");
        });
    });
}

#[test]
fn a_socket_whose_handle_nobody_took_is_closed() {
    within(LONG, || {
        each_engine(async |threads, _| {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            Impatient::each(async |impatient| {
                let (near, mut far) = tcp("127.0.0.1");
                let attached = impatient.once(threads.socket(near)).await;
                let connected = impatient.once(threads.connect(address)).await;
                drop((attached, connected));
                // Its peer sees the end, whether or not the handle ever came.
                far.set_read_timeout(Some(LONG)).unwrap();
                let end = tokio::task::spawn_blocking(move || far.read(&mut [0; 9]).unwrap());
                assert_eq!(end.await.unwrap(), 0);
                let (mut accepted, _) = listener.accept().await.unwrap();
                assert_eq!(accepted.read(&mut [0; 9]).await.unwrap_or(0), 0);
            })
            .await;
        });
    });
}

#[test]
fn calls_begin_in_their_order_whichever_is_awaited_first() {
    within(LONG, || {
        let threads = DriverThreads::new(1).unwrap();
        runtime().block_on(async {
            let order = threads.next().host(async |_| Ok(Rc::new(Cell::new(0)))).await.unwrap();
            // Not polled before the second is over.
            let first = order.host(|order| {
                order.set(1);
                async move { Ok(order) }
            });
            let seen = order.call(async |order| order.get()).await.unwrap();
            assert_eq!(seen, 1);
            let first = first.await.unwrap();
            assert_eq!(first.call(async |order| order.get()).await.unwrap(), 1);
            // A socket is attached and closed, whether or not its handle is awaited.
            let (near, mut far) = tcp("127.0.0.1");
            drop(threads.socket(near));
            let end = tokio::task::spawn_blocking(move || far.read(&mut [0; 9]).unwrap());
            assert_eq!(end.await.unwrap(), 0);
        });
    });
}

#[test]
fn a_thread_that_is_gone_is_passed_over() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("of a waker");
        }
    }
    within(LONG, || {
        for builder in builders() {
            let threads = DriverThreads::with(builder, 3).unwrap();
            let gone = threads.threads()[1].clone();
            let ends = gone.call(|driver: Driver| async move {
                let waker = Waker::from(Arc::new(Panics));
                let mut context = Context::from_waker(&waker);
                // On a busy machine a sleep may be over before it is first polled.
                let _sleep = loop {
                    let mut sleep = Box::pin(driver.sleep(Duration::from_millis(1)));
                    if sleep.as_mut().poll(&mut context).is_pending() {
                        break sleep;
                    }
                };
                pending::<()>().await;
            });
            runtime().block_on(async {
                assert!(matches!(ends.await, Err(Error::ThreadGone)));
                while !gone.is_gone() {
                    tokio::task::yield_now().await;
                }
                assert!(matches!(gone.call(async |_| ()).await, Err(Error::ThreadGone)));
                for _ in 0..9 {
                    let (near, _far) = tcp("127.0.0.1");
                    let socket = threads.socket(near).await.unwrap();
                    assert_eq!(
                        socket.send(Buffer::from(vec![1; 9])).await.unwrap().sent.unwrap(),
                        9
                    );
                }
                threads.shutdown().await;
            });
        }
    });
}
