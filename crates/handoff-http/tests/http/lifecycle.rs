//! Crowds, clients that stall or leave, and the end of a server.

use std::future::poll_fn;
use std::io::{ErrorKind, Read as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::pin::pin;
use std::slice;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::future::{Either, select};
use handoff::{Buffer, Driver, Error, Wait};
use handoff_http::{LentBody, Limits, Server};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::serving::{Client, RINGS, Serving, TIMEOUT, content, until_full};

const HELLO: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

fn hello() -> Router {
    Router::new().fallback(any(async || "hello"))
}

/// Takes out the client that is answered first: connections may be accepted in another order than they were made.
fn first_answered(clients: &mut Vec<Client>) -> Client {
    let streams = clients.iter().map(|client| PollFd::new(&client.stream, PollFlags::IN));
    let mut streams: Vec<_> = streams.collect();
    let timeout = TIMEOUT.try_into().expect("is short");
    poll(&mut streams, Some(&timeout)).expect("waits");
    let first = streams.iter().position(|stream| !stream.revents().is_empty());
    let mut client = clients.swap_remove(first.expect("one is answered"));
    assert_eq!(client.answer().text(), "hello");
    client
}

#[test]
fn a_thousand_connections() {
    let wanted = if std::env::var_os("HANDOFF_SOAK").is_some() { 10_000 } else { 1_000 };
    // Both ends of all are here.
    let descriptors = 2 * wanted as u64 + 200;
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|most| most.max(descriptors));
    // Root may have more.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let most = match raised {
        Ok(()) => wanted,
        Err(_) => {
            let all = Rlimit { current: limit.maximum, ..limit };
            setrlimit(Resource::Nofile, all).expect("may be raised");
            limit.maximum.map_or(wanted, |most| most as usize / 2 - 100)
        }
    };
    let crowd = most.min(wanted);
    for ring in RINGS {
        let limits = Limits { connections: crowd, ..Limits::default() };
        let driver = Driver::builder().ring(ring).in_flight(2 * crowd + 64);
        let serving = Serving::start_on(driver, limits, hello);
        let mut clients: Vec<_> = (0..crowd).map(|_| serving.connect()).collect();
        for _ in 0..3 {
            for client in &mut clients {
                client.send(HELLO);
            }
            for client in &mut clients {
                assert_eq!(client.answer().text(), "hello");
            }
        }
        drop(clients);
        let served = serving.stop();
        let crowd = crowd as u64;
        assert_eq!((served.requests, served.most_open), (3 * crowd, crowd), "{served:?}");
        assert_eq!((served.open, served.cut_short), (0, 0), "{served:?}");
    }
}

#[test]
fn no_more_are_served_at_once_than_allowed() {
    for ring in RINGS {
        let limits = Limits { connections: 2, ..Limits::default() };
        let serving = Serving::start(ring, limits, hello());
        let mut clients: Vec<_> = (0..5).map(|_| serving.connect()).collect();
        for client in &mut clients {
            client.send(HELLO);
        }
        // The first two exist at the same time: neither leaves before both have their answers.
        let first = [first_answered(&mut clients), first_answered(&mut clients)];
        drop(first);
        while !clients.is_empty() {
            first_answered(&mut clients);
        }
        let served = serving.stop();
        assert_eq!((served.connections, served.most_open), (5, 2), "{served:?}");
    }
}

#[test]
fn idle_clients_leave_their_places_to_others() {
    for ring in RINGS {
        let limits = Limits { connections: 3, idle: 10 * TIMEOUT, ..Limits::default() };
        let serving = Serving::start(ring, limits, hello());
        let mut idle: Vec<_> = (0..3).map(|_| serving.connect()).collect();
        for client in &mut idle[1..] {
            client.send(HELLO);
            assert_eq!(client.answer().text(), "hello");
        }
        for _ in 0..2 {
            let mut other = serving.connect();
            other.send(HELLO);
            assert_eq!(other.answer().text(), "hello");
            idle.push(other);
        }
        // Those that have waited longest, and no others.
        let mut latest = idle.split_off(2);
        idle.iter_mut().for_each(Client::ends);
        for client in &mut latest {
            client.send(HELLO);
            assert_eq!(client.answer().text(), "hello");
        }
        let served = serving.stop();
        assert_eq!((served.displaced, served.most_open), (2, 3), "{served:?}");
    }
}

#[test]
fn slow_clients_leave_the_driver_room_for_others() {
    let lent = Buffer::from(content(64 << 20)).freeze();
    for ring in RINGS {
        let lent = lent.clone();
        let router = hello().route("/lent", get(async move || Extension(LentBody::from(lent))));
        let limits = Limits { connections: 16, stall: 2 * TIMEOUT, ..Limits::default() };
        let driver = Driver::builder().ring(ring).in_flight(48);
        let serving = Serving::start_on(driver, limits, move || router);
        let mut slow: Vec<_> = (0..15).map(|_| serving.connect()).collect();
        for client in &mut slow {
            client.send(b"GET /lent HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(client.head().status, 200);
        }
        until_full(&slow);
        let mut other = serving.connect();
        other.send(HELLO);
        assert_eq!(other.answer().text(), "hello");
        drop(slow);
        serving.stop();
    }
}

#[test]
fn clients_that_take_nothing_are_reset() {
    const CROWD: usize = 200;
    let (page, file) = (Bytes::from(content(32 << 20)), tempfile::tempfile().expect("a file"));
    file.set_len(32 << 20).expect("grows");
    let (lent, file) = (Buffer::from(content(32 << 20)).freeze(), std::sync::Arc::new(file));
    for ring in RINGS {
        let (page, lent, file) = (page.clone(), lent.clone(), file.clone());
        let file = get(async move || Extension(LentBody::file(file, 0..32 << 20)));
        let router = hello()
            .route("/bytes", get(async move || page))
            .route("/lent", get(async move || Extension(LentBody::from(lent))))
            .route("/file", file);
        let limits =
            Limits { stall: Duration::from_millis(500), connections: 256, ..Limits::default() };
        // Two operations for each connection, and no more.
        let driver = Driver::builder().ring(ring).in_flight(512);
        let serving = Serving::start_on(driver, limits, move || router);
        // More than there is room for.
        for round in 1..=3 {
            let mut crowd: Vec<_> = (0..CROWD).map(|_| serving.connect_without_room()).collect();
            for (client, path) in crowd.iter_mut().zip(["bytes", "lent", "file"].iter().cycle()) {
                client.send(format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            }
            // Others are served meanwhile.
            for _ in 0..20 {
                assert_eq!(serving.ask(HELLO).text(), "hello");
            }
            serving.until(|served| served.cut_short == (round * CROWD) as u64);
            for client in &mut crowd {
                let left = client.stream.read_to_end(&mut Vec::new()).map_err(|it| it.kind());
                assert_eq!(left, Err(ErrorKind::ConnectionReset));
            }
        }
        let served = serving.stop();
        assert_eq!((served.cut_short, served.open), (3 * CROWD as u64, 0), "{served:?}");
    }
}

#[test]
fn a_driver_without_room_has_a_file_wait() {
    const FILE: u64 = 32 << 20;
    for ring in RINGS {
        let file = std::sync::Arc::new(tempfile::tempfile().expect("a file"));
        file.set_len(FILE).expect("grows");
        let file = get(async move || Extension(LentBody::file(file, 0..FILE)));
        let router = hello().route("/file", file);
        for idle in 1..4 {
            let (driver, router) = (Driver::builder().ring(ring).in_flight(8), router.clone());
            let serving = Serving::start_on(driver, Limits::default(), move || router);
            let mut others: Vec<_> = (0..idle).map(|_| serving.connect()).collect();
            for client in &mut others {
                client.send(HELLO);
                assert_eq!(client.answer().text(), "hello");
            }
            let mut client = serving.connect();
            client.send(b"GET /file HTTP/1.1\r\nHost: h\r\n\r\n");
            // It has to wait for room in the socket.
            until_full(slice::from_ref(&client));
            assert_eq!(client.answer().body.len() as u64, FILE);
            drop((client, others));
            assert_eq!(serving.stop().cut_short, 0);
        }
    }
}

#[test]
fn a_driver_without_room_serves_fewer_at_once() {
    for ring in RINGS {
        let driver = Driver::builder().ring(ring).in_flight(8);
        let serving = Serving::start_on(driver, Limits::default(), hello);
        let mut clients: Vec<_> = (0..9).map(|_| serving.connect()).collect();
        for client in &mut clients {
            client.send(HELLO);
        }
        // These exist at once, and leave before the others are served.
        let mut first: Vec<_> = (0..4).map(|_| first_answered(&mut clients)).collect();
        while !clients.is_empty() {
            first.pop();
            first_answered(&mut clients);
        }
        assert_eq!(serving.stop().most_open, 4);
    }
}

#[test]
fn connections_from_elsewhere_take_no_more_room_than_there_is() {
    let driver = Driver::builder().in_flight(4).build().expect("a driver");
    let server = Server::new(&driver, Limits::default());
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("bound");
    let connect = || {
        let client = TcpStream::connect(address).expect("connects");
        let (near, peer) = listener.accept().expect("accepts");
        (client, driver.socket(near).expect("attaches"), peer)
    };
    let [(_one, first, peer), (_two, second, _), (mut three, third, _)] =
        [connect(), connect(), connect()];
    let serve = |socket| server.serve_connection(socket, peer, hello(), std::future::pending());
    let all = async {
        let (first, second) = (pin!(serve(first)), pin!(serve(second)));
        match select(select(first, second), pin!(serve(third))).await {
            Either::Right((over, _)) => over,
            Either::Left(_) => panic!("a connection that waits has ended"),
        }
    };
    let over = driver.block_on(all).expect("runs");
    assert!(matches!(over, Err(Error::Busy { .. })), "{over:?}");
    assert_eq!(std::io::Read::read(&mut three, &mut [0]).expect("is closed"), 0);
    assert_eq!(server.served().turned_away, 1);
}

#[test]
fn a_client_has_no_more_than_its_share() {
    for ring in RINGS {
        let limits = Limits { per_client: 2, ..Limits::default() };
        let serving = Serving::start(ring, limits, hello());
        for round in 1..4 {
            let mut own = [serving.connect(), serving.connect()];
            for client in &mut own {
                client.send(HELLO);
                assert_eq!(client.answer().text(), "hello");
            }
            serving.connect().ends();
            let mut other = serving.connect_from([127, 0, 0, 2]);
            other.send(HELLO);
            assert_eq!(other.answer().text(), "hello");
            drop((own, other));
            serving.until(|served| served.open == 0 && served.turned_away == round);
        }
        assert_eq!(serving.stop().connections, 9);
    }
}

#[test]
fn who_stands_still_is_disconnected() {
    let quick = Duration::from_millis(300);
    for ring in RINGS {
        let lent = Buffer::from(content(32 << 20)).freeze();
        let file = std::sync::Arc::new(tempfile::tempfile().expect("a file"));
        file.set_len(32 << 20).expect("grows");
        let router = Router::new()
            .route("/lent", {
                let lent = lent.clone();
                get(async move || Extension(LentBody::from(lent)))
            })
            .route("/file", get(async move || Extension(LentBody::file(file, 0..32 << 20))));
        let idle = Limits { idle: quick, ..Limits::default() };
        let serving = Serving::start(ring, idle, hello());
        // Again where it was too slow to ask.
        let is_answered = |_| {
            let mut idle = serving.connect();
            idle.try_send(HELLO);
            String::from_utf8_lossy(&idle.rest()).ends_with("hello")
        };
        assert!((0..10).any(is_answered));
        serving.stop();
        let limits = Limits { stall: quick, ..Limits::default() };
        let serving = Serving::start(ring, limits, router);
        for (cut, path) in [(1, "lent"), (2, "file")] {
            let mut still = serving.connect();
            still.send(format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            serving.until(|served| served.cut_short == cut);
            let came = still.rest().len();
            assert!(came < 32 << 20, "{path}: all of {came} bytes came");
        }
        assert_eq!(serving.stop().cut_short, 2);
        assert!(lent.try_unfreeze().is_ok());
    }
}

/// Each piece of 256 KiB in time, but not two. Several are under way when others come and take the driver's room to spare.
#[test]
fn who_takes_every_piece_in_time_gets_all() {
    const LEN: usize = 4 << 20;
    let stall = Duration::from_millis(200);
    for ring in RINGS {
        let lent = Buffer::from(content(LEN)).freeze();
        let router = Router::new().route("/", get(async move || Extension(LentBody::from(lent))));
        let limits = Limits { connections: 8, stall, ..Limits::default() };
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        // Connections inherit it.
        sockopt::set_socket_send_buffer_size(&listener, 64 << 10).expect("set");
        let driver = Driver::builder().ring(ring).in_flight(24);
        let serving = Serving::start_at(listener, driver, limits, move || router);
        // Again where this side was too slow.
        let gets_all = |_| {
            let mut client = serving.connect();
            sockopt::set_socket_recv_buffer_size(&client.stream, 256 << 10).expect("set");
            client.send(HELLO);
            let (mut came, mut piece) = (0, vec![0; 64 << 10]);
            let mut others = Vec::new();
            while came <= LEN
                && let Ok(len @ 1..) = client.stream.read(&mut piece)
            {
                came += len;
                others.resize_with(7, || serving.connect());
                // A quarter of a piece in less than a quarter of the time.
                std::thread::sleep(stall * len as u32 * 3 / 20 / (64 << 10));
            }
            came > LEN
        };
        assert!((0..10).any(gets_all));
        serving.stop();
    }
}

#[test]
fn who_drips_what_nobody_reads_is_disconnected() {
    let quick = Duration::from_millis(300);
    for ring in RINGS {
        let limits = Limits { body_time: quick, ..Limits::default() };
        let serving = Serving::start(ring, limits, hello());
        let mut client = serving.connect();
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n");
        assert_eq!(client.answer().text(), "hello");
        // It drips until then.
        serving.until(|served| {
            client.try_send(b"x");
            served.requests == 1 && served.open == 0
        });
        serving.stop();
    }
}

#[test]
fn empty_lines_behind_a_request_are_no_head() {
    let quick = Duration::from_millis(25);
    for ring in RINGS {
        let limits = Limits { head_time: quick, ..Limits::default() };
        let serving = Serving::start(ring, limits, hello());
        let mut client = serving.connect();
        client.send(&[HELLO, b"\r\n"].concat());
        assert_eq!(client.answer().text(), "hello");
        std::thread::sleep(4 * quick);
        client.send(HELLO);
        assert_eq!(client.answer().text(), "hello");
        assert_eq!(serving.stop().refused, 0);
    }
}

#[test]
fn late_bytes_take_no_last_answer_away() {
    const LEN: usize = 16 << 20;
    /// The server reads for as long behind its answer.
    const LINGER: Duration = Duration::from_secs(2);
    for ring in RINGS {
        let lent = Buffer::from(content(LEN)).freeze();
        let router = Router::new().fallback(any(async move || Extension(LentBody::from(lent))));
        let serving = Serving::start(ring, Limits::default(), router);
        let is_whole = |_| {
            let begin = Instant::now();
            let mut client = serving.connect();
            client.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
            assert_eq!(client.head().status, 200);
            let mut came = client.take(LEN - (1 << 20)).len();
            // The kernel has everything then, and the server waits for nothing more.
            until_full(slice::from_ref(&client));
            client.try_send(b"\r\n");
            // A reset would come meanwhile.
            std::thread::sleep(Duration::from_millis(100));
            came += client.rest().len();
            assert!(came == LEN || begin.elapsed() >= LINGER, "{came} of {LEN} bytes");
            came == LEN
        };
        // A busy machine may need longer.
        assert!((0..10).any(is_whole));
        serving.stop();
    }
}

#[test]
fn a_server_that_has_stopped_serves_again() {
    let (first, second) = (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
    let (first, second) = (first.expect("binds"), second.expect("binds"));
    let driver = Driver::new().expect("a driver");
    let server = Server::new(&driver, Limits::default());
    let address = second.local_addr().expect("bound");
    let serving = async {
        let listener = driver.listen(first).expect("listens");
        server.serve(listener, hello(), std::future::ready(())).await;
        let listener = driver.listen(second).expect("listens");
        // The client comes once it serves again, which ends when the client has its answer.
        let stop = async {
            let client = std::thread::spawn(move || {
                let mut client = Client::to(address);
                client.send(HELLO);
                client.answer()
            });
            while !client.is_finished() {
                driver.sleep(Duration::from_millis(10)).await.expect("it is driven");
            }
            let answer = client.join().expect("is answered");
            assert_eq!((answer.text(), answer.is_last()), ("hello", false));
        };
        server.serve(listener, hello(), stop).await;
    };
    driver.block_on(serving).expect("it is driven");
}

#[test]
fn a_stop_is_heard_while_nothing_can_be_accepted() {
    for ring in RINGS {
        let driver = Driver::builder().ring(ring).build().expect("a driver");
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let same = listener.try_clone().expect("has a descriptor");
        let listener = driver.listen(listener).expect("listens");
        // Every accept fails from here on.
        rustix::net::shutdown(same, rustix::net::Shutdown::Both).expect("ends");
        let server = Server::new(&driver, Limits::default());
        let stop = async {
            driver.sleep(Duration::from_millis(50)).await.expect("it is driven");
        };
        driver.block_on(server.serve(listener, hello(), stop)).expect("it is driven");
    }
}

#[test]
fn a_client_that_never_pauses_stops_too() {
    for ring in RINGS {
        let serving =
            Serving::start(ring, Limits { grace: 2 * TIMEOUT, ..Limits::default() }, hello());
        let mut busy = serving.connect();
        let mut answers = busy.stream.try_clone().expect("has a descriptor");
        let asking = std::thread::spawn(move || {
            let begin = Instant::now();
            let mut goes_on = true;
            while goes_on && begin.elapsed() < TIMEOUT {
                goes_on = std::io::Write::write_all(&mut busy.stream, &HELLO.repeat(200)).is_ok();
            }
            goes_on
        });
        let reading = std::thread::spawn(move || {
            let mut came = Vec::new();
            let _ = std::io::Read::read_to_end(&mut answers, &mut came);
            came
        });
        // A connection stopped before its first request gets no answer.
        serving.until(|served| served.requests > 1_000);
        let served = serving.stop();
        let came = reading.join().expect("reads");
        let last = String::from_utf8_lossy(&came[came.len().saturating_sub(300)..]).into_owned();
        assert!(last.contains("Connection: close"), "{served:?}: {last}");
        assert!(!asking.join().expect("asks"), "the connection stays");
    }
}

#[test]
fn who_only_lingers_is_not_cut_short() {
    for ring in RINGS {
        let limits = Limits { grace: Duration::from_millis(300), ..Limits::default() };
        let serving = Serving::start(ring, limits, hello());
        let mut client = serving.connect();
        client.send(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(client.answer().status, 400);
        // It has its answer, and does not end its side.
        assert_eq!(serving.stop().cut_short, 0);
    }
}

#[test]
fn a_server_ends_when_its_requests_have() {
    for ring in RINGS {
        let (begin, begun) = std::sync::mpsc::channel();
        let slow = async move |request: Request| {
            begin.send(()).expect("somebody waits");
            // Its end comes with the body's.
            axum::body::to_bytes(request.into_body(), 100).await.expect("the body");
            "done"
        };
        let router = hello().route("/slow", any(slow));
        let start =
            |grace| Serving::start(ring, Limits { grace, ..Limits::default() }, router.clone());
        let ask = |serving: &Serving| {
            let mut client = serving.connect();
            client.send(b"POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n");
            begun.recv_timeout(TIMEOUT).expect("it begins");
            client
        };
        let serving = start(2 * TIMEOUT);
        let mut idle = serving.connect();
        idle.send(HELLO);
        assert_eq!(idle.answer().text(), "hello");
        let (mut first, mut last) = (ask(&serving), ask(&serving));
        let address = serving.address;
        let stopping = std::thread::spawn(move || serving.stop());
        idle.ends();
        for client in [&mut first, &mut last] {
            client.send(b"x");
            let answer = client.answer();
            assert_eq!((answer.text(), answer.is_last()), ("done", true));
            client.ends();
            assert!(TcpStream::connect(address).is_err(), "it listens still");
        }
        let served = stopping.join().expect("ends");
        assert_eq!((served.requests, served.cut_short, served.open), (3, 0, 0), "{served:?}");
        // Who does not end is cut short.
        let serving = start(Duration::from_millis(300));
        let mut endless = ask(&serving);
        let served = serving.stop();
        endless.ends();
        assert_eq!((served.requests, served.cut_short, served.open), (1, 1, 0), "{served:?}");
    }
}

/// Numbers that differ, and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % below
    }
}

#[test]
fn hostile_bytes_hurt_nobody_else() {
    let whole =
        b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for ring in RINGS {
        let quick = Duration::from_millis(100);
        let limits = Limits { head_time: quick, body_time: quick, ..Limits::default() };
        let router = Router::new().fallback(any(async |body: axum::body::Bytes| body));
        let serving = Serving::start(ring, limits, router);
        let mut good = serving.connect();
        let mut numbers = Numbers(7);
        for round in 0..300 {
            let mut bytes = whole.repeat(1 + numbers.next(3));
            for _ in 0..numbers.next(4) {
                let at = numbers.next(bytes.len());
                match numbers.next(3) {
                    0 => bytes[at] = numbers.next(256) as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"\r\n: 0f"[numbers.next(6)]),
                }
            }
            bytes.truncate(1 + numbers.next(bytes.len()));
            let mut client = serving.connect();
            client.try_send(&bytes);
            if round % 3 == 0 {
                client.end();
                client.rest();
            }
            drop(client);
            good.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi");
            assert_eq!(good.answer().text(), "hi", "round {round}");
        }
        drop(good);
        serving.until(|served| served.open == 0);
        let served = serving.stop();
        assert_eq!(served.failed, 0);
        // Each round has a good request, and most rounds have another that is whole or is refused.
        assert!(served.requests + served.refused > 450, "{served:?}");
    }
}

#[test]
fn dropped_at_any_point_it_leaves_nothing() {
    let request =
        b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    for ring in RINGS {
        let driver = Driver::builder().ring(ring).build().expect("a driver");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        let lent = Buffer::from(content(1 << 20)).freeze();
        let file = std::sync::Arc::new(tempfile::tempfile().expect("a file"));
        file.set_len(200_000).expect("grows");
        for polls in 0..60 {
            let router: Router = Router::new().fallback(any({
                let (lent, file) = (lent.clone(), file.clone());
                async move |body: axum::body::Bytes| match body.first() {
                    Some(b'f') => Extension(LentBody::file(file, 0..200_000)),
                    _ => Extension(LentBody::from(lent)),
                }
            }));
            let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
            let (far, peer) = listener.accept().expect("accepts");
            let client = std::thread::spawn(move || {
                use std::io::{Read as _, Write as _};
                // It may be gone at each of these.
                let _ = (&near).write_all(request);
                std::thread::sleep(Duration::from_millis(2));
                let _ = (&near).write_all(if polls % 2 == 0 { b"abc" } else { b"foo" });
                let _ = (&near).read_to_end(&mut Vec::new());
            });
            let server = Server::new(&driver, Limits::default());
            {
                let socket = driver.socket(far).expect("attaches");
                let stop = std::future::pending();
                let mut serving = pin!(server.serve_connection(socket, peer, router, stop));
                let mut left = polls;
                let some = poll_fn(|context| {
                    if left == 0 {
                        return Poll::Ready(());
                    }
                    left -= 1;
                    serving.as_mut().poll(context).map(|ended| ended.expect("is of TCP"))
                });
                // If it waits for more than happens, it is dropped there.
                let _ = driver.block_on(driver.timeout(Duration::from_millis(50), some));
            }
            let begin = Instant::now();
            while driver.in_flight() > 0 {
                driver.turn(Wait::AtMost(Duration::from_millis(10))).expect("turns");
                assert!(begin.elapsed() < TIMEOUT, "{polls} polls: {driver:?}");
            }
            assert_eq!(server.served().open, 0);
            client.join().expect("ends");
        }
        assert!(lent.try_unfreeze().is_ok(), "somebody has it still");
    }
}
