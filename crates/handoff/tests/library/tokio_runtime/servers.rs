//! Servers on the calling thread and on several: their outputs, and their ends.

use std::future::pending;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use handoff::tokio::{
    DriverThreads, TcpListener, TcpStream, per_core, per_core_with, run, run_with,
};
use handoff::{Buffer, Driver, Error};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{spawn_local, yield_now};

use crate::tokio_runtime::{LONG, builders};
use crate::traffic::{Warnings, alone, assert_same, narrow_tcp, pattern, read_all, tcp, within};

#[test]
fn it_gives_what_the_future_came_to_and_drops_its_tasks_before_the_driver() {
    struct Tells<'a>(Driver, &'a AtomicUsize);
    impl Drop for Tells<'_> {
        fn drop(&mut self) {
            // The driver is there, and can be asked.
            let buffers = self.0.in_flight();
            self.1.fetch_add(1 + buffers, Relaxed);
        }
    }
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    within(LONG, || {
        for builder in builders() {
            let before = DROPPED.load(Relaxed);
            let output = run_with(builder, async |driver| {
                let tells = Tells(driver.clone(), &DROPPED);
                spawn_local(async move {
                    pending::<()>().await;
                    drop(tells);
                });
                tokio::time::sleep(Duration::from_millis(1)).await;
                driver.sleep(Duration::from_millis(1)).await.unwrap();
                17
            });
            assert_eq!(output.unwrap(), 17);
            assert_eq!(DROPPED.load(Relaxed), before + 1);
        }
    });
}

#[test]
fn nothing_is_warned_of_that_is_in_order() {
    within(LONG, || {
        for builder in builders() {
            let warnings = Arc::default();
            tracing::subscriber::with_default(Warnings(Arc::clone(&warnings)), || {
                let slept = run_with(builder, async |driver: Driver| {
                    driver.sleep(Duration::from_millis(1)).await
                });
                slept.unwrap().unwrap();
            });
            assert_eq!(warnings.load(SeqCst), 0);
        }
    });
}

#[test]
fn sends_that_nobody_awaited_leave_at_the_end() {
    within(LONG, || {
        for builder in builders() {
            // Again where the machine was too slow for the time that they have.
            while {
                let (near, far) = narrow_tcp();
                let reader = read_all(far);
                let begun = Instant::now();
                let work = async |driver: Driver| {
                    let socket = driver.socket(near).unwrap();
                    drop(socket.send(Buffer::from(pattern(1, 2 << 20))).unwrap());
                };
                run_with(builder.clone(), work).unwrap();
                let in_time = begun.elapsed() < Duration::from_millis(900);
                let got = reader.join().unwrap();
                if in_time {
                    assert_same(&got, &pattern(1, 2 << 20));
                }
                !in_time
            } {}
        }
    });
}

#[test]
fn a_peer_that_does_not_read_holds_up_no_end() {
    within(LONG, || {
        for builder in builders() {
            let (near, _far) = narrow_tcp();
            let begun = Instant::now();
            let work = async |driver: Driver| {
                let socket = driver.socket(near).unwrap();
                drop(socket.send(Buffer::from(pattern(1, 2 << 20))).unwrap());
            };
            run_with(builder, work).unwrap();
            assert!(begun.elapsed() > Duration::from_millis(900));
        }
    });
}

#[test]
fn inside_a_runtime_it_is_refused_with_the_way_out() {
    let current = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let many = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    for runtime in [current, many] {
        let (one, several) = runtime.block_on(async {
            (run(async |_| ()).unwrap_err(), per_core(1, async |_| ()).unwrap_err())
        });
        for error in [one, several] {
            assert!(error.to_string().contains("DriverThreads"), "{error}");
        }
        // A thread for blocking calls belongs to the runtime, and stops for nobody.
        let blocking = runtime.spawn_blocking(|| run(async |_| ()).unwrap_err().to_string());
        let told = runtime.block_on(blocking).unwrap();
        assert!(told.contains("spawn_blocking") && !told.contains("stand still"), "{told}");
    }
}

/// Looks for its runtime when dropped, as tokio programs may.
struct EndsInside<'a>(&'a AtomicBool);

impl Drop for EndsInside<'_> {
    fn drop(&mut self) {
        self.0.store(tokio::runtime::Handle::try_current().is_ok(), Relaxed);
    }
}

#[test]
fn a_panic_of_the_future_goes_on_and_leaves_nothing() {
    static INSIDE: AtomicBool = AtomicBool::new(false);
    within(LONG, || {
        for builder in builders() {
            let (near, mut far) = tcp("127.0.0.1");
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                run_with(builder, async |driver: Driver| {
                    let socket = driver.socket(near).unwrap();
                    spawn_local(async move {
                        let _inside = (socket, EndsInside(&INSIDE));
                        pending::<()>().await;
                    });
                    yield_now().await;
                    panic!("of the program");
                })
            }));
            assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "of the program");
            assert!(INSIDE.swap(false, Relaxed));
            assert_eq!(far.read(&mut [0; 9]).unwrap(), 0);
        }
    });
}

#[test]
fn several_threads_share_the_connections_of_one_address() {
    const THREADS: usize = 3;
    const CONNECTIONS: usize = 60;
    within(LONG, || {
        for builder in builders() {
            // Shared too, so that it keeps the port for them and takes no connection.
            let place = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let place = place.unwrap();
            place.set_reuse_port(true).unwrap();
            place.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
            let address = place.local_addr().unwrap().as_socket().unwrap();
            let (listening, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let serve = async |driver: Driver| {
                let mut listener = TcpListener::bind_shared(&driver, address).unwrap();
                listening.fetch_add(1, Relaxed);
                let mut mine = 0;
                while served.load(Relaxed) < CONNECTIONS {
                    let accepting = driver.timeout(Duration::from_millis(10), listener.accept());
                    let Ok(accepted) = accepting.await else { continue };
                    accepted.unwrap().0.write_all(b"served").await.unwrap();
                    mine += 1;
                    served.fetch_add(1, Relaxed);
                }
                mine
            };
            let by_thread = thread::scope(|scope| {
                scope.spawn(|| {
                    while listening.load(Relaxed) < THREADS {
                        thread::yield_now();
                    }
                    for _ in 0..CONNECTIONS {
                        let mut connection = std::net::TcpStream::connect(address).unwrap();
                        let mut got = String::new();
                        connection.read_to_string(&mut got).unwrap();
                        assert_eq!(got, "served");
                    }
                });
                per_core_with(builder, THREADS, serve).unwrap()
            });
            assert_eq!(by_thread.len(), THREADS);
            assert!(by_thread.iter().filter(|served| **served > 0).count() > 1, "{by_thread:?}");
            assert_eq!(by_thread.iter().sum::<usize>(), CONNECTIONS);
        }
    });
}

#[test]
fn what_threads_come_to_is_in_their_order() {
    within(LONG, || {
        assert_eq!(per_core(0, async |_| ()).unwrap(), []);
        let number = AtomicUsize::new(0);
        let mut outputs = per_core(3, async |_| number.fetch_add(1, Relaxed)).unwrap();
        outputs.sort();
        assert_eq!(outputs, [0, 1, 2]);
    });
}

#[test]
fn a_thread_that_panics_ends_the_others_and_its_panic_goes_on() {
    within(LONG, || {
        for builder in builders() {
            let number = AtomicUsize::new(0);
            let serve = async |driver: Driver| {
                if number.fetch_add(1, Relaxed) == 1 {
                    driver.sleep(Duration::from_millis(5)).await.unwrap();
                    panic!("of one thread");
                }
                pending::<()>().await;
            };
            let panicked = catch_unwind(AssertUnwindSafe(|| per_core_with(builder, 3, serve)));
            assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "of one thread");
        }
    });
}

#[test]
fn a_driver_that_cannot_be_built_is_told_and_the_others_end() {
    const NAME: &str =
        "tokio_runtime::servers::a_driver_that_cannot_be_built_is_told_and_the_others_end";
    if !alone(NAME) {
        return;
    }
    within(LONG, || {
        for builder in builders() {
            // Enough descriptors for one thread, or for none.
            for more in [12, 1] {
                let limit = getrlimit(Resource::Nofile);
                let most = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64 + more;
                setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }).unwrap();
                let several = per_core_with(builder.clone(), 50, async |_| pending::<()>().await);
                let threads = DriverThreads::with(builder.clone(), 50).map(drop);
                setrlimit(Resource::Nofile, limit).unwrap();
                for error in [several.map(drop), threads].map(Result::unwrap_err) {
                    let full = Some(libc::EMFILE);
                    let told = matches!(&error, Error::NoDescriptor { .. });
                    assert!(told || error.raw_os_error() == full, "{error}");
                }
            }
        }
    });
}

#[test]
fn a_connection_that_never_runs_dry_keeps_no_task_waiting() {
    const BYTES: usize = 50_000;
    within(LONG, || {
        for builder in builders() {
            let (near, mut far) = tcp("127.0.0.1");
            far.write_all(&[7; BYTES]).unwrap();
            let turns = run_with(builder, async |driver: Driver| {
                let mut near = TcpStream::try_from(driver.socket(near).unwrap()).unwrap();
                // All of it is there.
                near.socket().readable().unwrap().await.unwrap();
                let reading = spawn_local(async move {
                    for _ in 0..BYTES {
                        near.read_u8().await.unwrap();
                    }
                });
                let mut turns = 0;
                while !reading.is_finished() {
                    yield_now().await;
                    turns += 1;
                }
                turns
            });
            assert!(turns.unwrap() > 100);
        }
    });
}
