//! Options of sockets: before a connection is made, and on one that is there.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use handoff::{Buffer, Error, SocketOptions};
use socket2::SockRef;

use crate::traffic::{drivers, tcp, with_each_driver};

const LONG: Duration = Duration::from_secs(30);

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Everything that needs no capability.
fn all() -> SocketOptions {
    let mut options = SocketOptions::default();
    options.nodelay = Some(true);
    options.linger = Some(Some(Duration::from_secs(3)));
    options.keepalive = Some(true);
    options.keepalive_idle = Some(Duration::from_secs(61));
    options.keepalive_interval = Some(Duration::from_secs(7));
    options.keepalive_count = Some(4);
    options.user_timeout = Some(Duration::from_millis(20_500));
    options.send_buffer = Some(100 << 10);
    options.receive_buffer = Some(90 << 10);
    options.priority = Some(5);
    options
}

/// What the kernel tells of [`all`].
fn told() -> SocketOptions {
    let mut told = all();
    // It keeps room for what is around payload.
    told.send_buffer = Some(200 << 10);
    told.receive_buffer = Some(180 << 10);
    told
}

/// Leaves out what depends on the machine.
fn of_ours(mut options: SocketOptions) -> SocketOptions {
    assert_eq!(options.device.take().as_deref(), Some(""));
    options.busy_poll = None;
    options.mark = None;
    options
}

#[test]
fn a_connect_and_a_listener_have_options_before_the_fact() {
    with_each_driver(LONG, |driver| {
        let mut listener = driver.listen_at(loopback(), &all()).unwrap();
        let mut options = all();
        options.bind = Some("127.0.0.9:0".parse().unwrap());
        let connecting = driver.connect_with(listener.local_addr().unwrap(), &options).unwrap();
        let near = driver.block_on(connecting).unwrap().unwrap();
        let (far, peer) = driver.block_on(listener.accept()).unwrap().unwrap();
        assert_eq!(of_ours(near.options().unwrap()), told());
        // Connections inherit those of their listener; the kernel gives each a priority of its own.
        let inherited = far.options().unwrap();
        let mut expected = told();
        expected.priority = Some(0);
        assert_eq!(of_ours(inherited), expected);
        assert_eq!((peer, peer.ip()), (near.local_addr().unwrap(), options.bind.unwrap().ip()));
        let sent = driver.block_on(async { near.send(Buffer::from(vec![7; 9])).unwrap().await });
        assert_eq!(sent.unwrap().unwrap().sent.unwrap(), 9);
        let got = driver
            .block_on(async { far.receive_exact(Buffer::from(vec![0; 9])).unwrap().await })
            .unwrap()
            .unwrap();
        assert_eq!(&got.buffer[..], [7; 9]);
    });
}

/// With a port that the kernel chooses at connect time, two connections to two peers may have the same.
#[test]
fn the_port_to_connect_from_is_chosen_when_the_peer_is_known() {
    for driver in drivers() {
        let listener = driver.listen_at(loopback(), &SocketOptions::default()).unwrap();
        let mut options = SocketOptions::default();
        options.bind = Some("127.0.0.8:0".parse().unwrap());
        let to = listener.local_addr().unwrap();
        let socket = driver.block_on(driver.connect_with(to, &options).unwrap()).unwrap().unwrap();
        assert_ne!(socket.local_addr().unwrap().port(), 0);
        // One that is given is taken, and cannot be taken twice.
        options.bind = Some(socket.local_addr().unwrap());
        let refused = match driver.connect_with(to, &options) {
            Err(error) => error,
            Ok(connecting) => driver.block_on(connecting).unwrap().unwrap_err(),
        };
        let errno = refused.raw_os_error();
        assert!(matches!(errno, Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL)), "{refused}");
    }
}

#[test]
fn a_dropped_connect_with_options_leaves_nothing() {
    with_each_driver(LONG, |driver| {
        let listener = driver.listen_at(loopback(), &SocketOptions::default()).unwrap();
        for turns in 0..2 {
            let connecting = driver.connect_with(listener.local_addr().unwrap(), &all()).unwrap();
            for _ in 0..turns {
                driver.turn(handoff::Wait::No).unwrap();
            }
            drop(connecting);
        }
        drop(listener);
        while driver.in_flight() > 0 {
            driver.turn(handoff::Wait::AtMost(Duration::from_millis(1))).unwrap();
        }
    });
}

#[test]
fn options_of_a_socket_are_set_and_told() {
    for driver in drivers() {
        let (near, _far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let before = socket.options().unwrap();
        socket.set_options(&SocketOptions::default()).unwrap();
        assert_eq!(socket.options().unwrap(), before, "nothing was given");
        socket.set_options(&all()).unwrap();
        assert_eq!(of_ours(socket.options().unwrap()), told());
        let mut off = SocketOptions::default();
        off.linger = Some(None);
        off.nodelay = Some(false);
        off.keepalive = Some(false);
        off.user_timeout = Some(Duration::ZERO);
        socket.set_options(&off).unwrap();
        let told = socket.options().unwrap();
        assert_eq!(
            (told.linger, told.nodelay, told.keepalive),
            (Some(None), Some(false), Some(false))
        );
        assert_eq!(told.user_timeout, Some(Duration::ZERO));

        // Datagrams have no options of TCP.
        let socket = driver.socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let mut options = SocketOptions::default();
        options.receive_buffer = Some(64 << 10);
        socket.set_options(&options).unwrap();
        let told = socket.options().unwrap();
        assert_eq!((told.receive_buffer, told.nodelay), (Some(128 << 10), None));
        options.nodelay = Some(true);
        let refused = socket.set_options(&options).unwrap_err();
        assert!(refused.to_string().starts_with("setting TCP_NODELAY: "), "{refused}");
    }
}

#[test]
fn what_has_no_meaning_is_refused_with_the_reason() {
    for driver in drivers() {
        let (near, _far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let given = |give: fn(&mut SocketOptions)| {
            let mut options = SocketOptions::default();
            give(&mut options);
            options
        };
        let bind = given(|it| it.bind = Some(loopback()));
        let backlog = given(|it| it.backlog = Some(5));
        let told = |refused: Result<(), Error>| refused.unwrap_err().to_string();
        for options in [&bind, &backlog] {
            assert!(told(socket.set_options(options)).contains("Driver::connect_with"));
        }
        let listened = driver.listen_at(loopback(), &bind).map(drop);
        assert!(told(listened).contains("a listener has its address"));
        assert!(
            told(driver.connect_with(loopback(), &backlog).map(drop)).contains("for listeners")
        );
        // The kernel would round these to nothing.
        let short = Some(Duration::from_millis(999));
        let mut options = given(|_| {});
        options.keepalive_idle = short;
        assert!(told(socket.set_options(&options)).contains("keepalive_idle"));
        let mut options = given(|_| {});
        options.linger = Some(short);
        assert!(told(socket.set_options(&options)).contains("linger"));
        let mut options = given(|_| {});
        options.device = Some("no-such-device".to_owned());
        assert!(told(socket.set_options(&options)).starts_with("setting SO_BINDTODEVICE: "));
        let mut options = given(|_| {});
        options.bind = Some("192.0.2.1:0".parse().unwrap());
        assert!(told(driver.connect_with(loopback(), &options).map(drop)).starts_with("binding"));
    }
}

#[test]
fn listeners_share_an_address() {
    for driver in drivers() {
        let mut options = SocketOptions::default();
        options.reuse_port = Some(true);
        options.backlog = Some(1);
        let first = driver.listen_at(loopback(), &options).unwrap();
        let address = first.local_addr().unwrap();
        let second = driver.listen_at(address, &options).unwrap();
        assert_eq!(second.local_addr().unwrap(), address);
        assert!(SockRef::from(&second).reuse_port().unwrap());
        assert!(TcpStream::connect(address).is_ok());
    }
}
