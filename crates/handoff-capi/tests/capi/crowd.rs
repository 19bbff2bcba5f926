//! A crowd of peers that send, acknowledge and never read, while others are served. Over veth, since loopback copies.
//! Needs root, or a kernel that lets users make namespaces.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use handoff_testbed::Pair;
use socket2::{Domain, Socket, Type};

use super::programs::{AS_TOLD, Server, example, port_of};

const CROWD: usize = 200;
const HONEST: usize = 8;
/// The crowd's bytes fill the server's memory, 16 MiB, as long as it waits for them.
const SENT: usize = 256 << 10;

/// A peer with little room that sends and reads nothing.
fn stranger(server: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("sets");
    socket.connect(&server.into()).expect("connects");
    let mut stream = TcpStream::from(socket);
    stream.set_nonblocking(true).expect("sets");
    // The server takes as much as it wants.
    let _ = stream.write_all(&vec![1; SENT]);
    stream
}

/// Asks until all is back: a busy machine may be slower than the server's time-out.
fn assert_served(server: SocketAddr, number: usize) {
    let sent: Vec<_> = (0..100_000).map(|at| (at / 7 + number) as u8).collect();
    loop {
        let mut sender = TcpStream::connect(server).expect("connects");
        let mut receiver = sender.try_clone().expect("is cloned");
        let bytes = sent.clone();
        let writer = thread::spawn(move || sender.write_all(&bytes));
        let mut back = vec![0; sent.len()];
        let read = receiver.read_exact(&mut back);
        let written = writer.join().expect("ends");
        if read.is_ok() && written.is_ok() {
            assert!(back == sent, "{number}");
            return;
        }
        let is_reset = |error: std::io::Error| {
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        };
        assert!(read.err().is_none_or(is_reset) && written.err().is_none_or(is_reset));
    }
}

#[test]
fn the_echo_server_serves_others_among_peers_that_take_nothing() {
    let pair = match Pair::new(9000) {
        Ok(pair) => pair,
        Err(error) => handoff_testbed::skip!("{error}"),
    };
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(example("echo", AS_TOLD, directory.path()));
    let Pair { left, right, .. } = &pair;
    right.namespace().attach(command.args(["-p", "1"]).stdout(Stdio::piped()));
    let mut server = Server(command.spawn().expect("starts"));
    let port = port_of(&mut BufReader::new(server.0.stdout.take().expect("is piped")));
    let server = SocketAddr::from((right.v4(), port));
    let peers = move || {
        let crowd: Vec<_> = (0..CROWD).map(|_| stranger(server)).collect();
        (0..HONEST).for_each(|number| assert_served(server, number));
        drop(crowd);
        assert_served(server, HONEST);
    };
    left.namespace().spawn("peers", peers).expect("starts").join().expect("are served");
}
