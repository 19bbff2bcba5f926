//! Frozen buffers, segmented sends and pools of buffers, as the peer gets them.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdout};

use handoff::{Buffer, BufferPool, Driver, Frozen, Region, Socket, Wait};

use crate::other_programs::{LONG, start};
use crate::traffic::{self, assert_same, attached, engines_apart, filled, pattern, within};

const LEN: usize = 60_000;
const SEGMENT: usize = 1200;

/// Prints its port, then everything that arrives there, each with its length first: datagrams, or
/// connections.
const PYTHON: &str = "
import socket, struct, sys
def say(said):
    sys.stdout.buffer.write(struct.pack('>I', len(said)) + said)
    sys.stdout.buffer.flush()
kind = socket.SOCK_DGRAM if sys.argv[1] == 'udp' else socket.SOCK_STREAM
here = socket.socket(socket.AF_INET, kind)
here.bind(('127.0.0.1', 0))
if kind == socket.SOCK_STREAM:
    here.listen()
say(str(here.getsockname()[1]).encode())
while True:
    say(here.recv(65536) if kind == socket.SOCK_DGRAM else here.accept()[0].makefile('rb').read())
";

/// Another program, which ends with this.
struct Program {
    child: Child,
    says: ChildStdout,
}

impl Program {
    /// `None` if the machine does not have it.
    fn start(name: &str, arguments: &[&str]) -> Option<Self> {
        let mut child = start(name, arguments)?;
        let says = child.stdout.take().unwrap();
        Some(Self { child, says })
    }

    fn python(test: &str, kind: &str) -> Option<(Self, String)> {
        let Some(mut program) = Self::start("python3", &["-c", PYTHON, kind]) else {
            traffic::skip(test, "there is no python3");
            return None;
        };
        let port = String::from_utf8(program.next()).unwrap();
        Some((program, format!("127.0.0.1:{port}")))
    }

    /// Its next line.
    fn next(&mut self) -> Vec<u8> {
        let mut len = [0; 4];
        self.says.read_exact(&mut len).unwrap();
        let mut said = vec![0; u32::from_be_bytes(len) as usize];
        self.says.read_exact(&mut said).unwrap();
        said
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a frozen buffer whole, and then its last third, on one socket at once.
fn send_twice(driver: &Driver, socket: &Socket, frozen: &Frozen) {
    let parts = [frozen.clone(), frozen.part(frozen.len() / 3 * 2..)];
    let sendings = parts.map(|part| socket.send(part).unwrap());
    driver
        .block_on(async {
            for sending in sendings {
                let finished = sending.await.unwrap();
                assert_eq!(finished.sent.unwrap(), finished.buffer.len());
            }
        })
        .unwrap();
}

#[test]
fn python_gets_each_datagram() {
    within(LONG, || {
        let test = "python_gets_each_datagram";
        let Some((mut python, address)) = Program::python(test, "udp") else { return };
        for (number, (driver, engine)) in engines_apart().into_iter().enumerate() {
            let near = UdpSocket::bind("127.0.0.1:0").unwrap();
            near.connect(&address).unwrap();
            let socket = attached(&driver, near, engine);
            let mut region = Region::anonymous(LEN).unwrap();
            if driver.ring_unavailable().is_none() {
                driver.register(&region).unwrap();
            }
            let bytes = pattern(number, LEN);
            let frozen = filled(&mut region, number, LEN).freeze();
            let sending = socket.message(frozen.clone()).segment(SEGMENT).send().unwrap();
            let finished = driver.block_on(async { sending.await }).unwrap().unwrap();
            assert_eq!(finished.sent.unwrap(), LEN, "{engine}");
            for piece in bytes.chunks(SEGMENT) {
                assert_same(&python.next(), piece);
            }
            send_twice(&driver, &socket, &frozen);
            // Datagrams may overtake each other.
            let mut both = [python.next(), python.next()];
            both.sort_by_key(Vec::len);
            assert_same(&both[1], &bytes);
            assert_same(&both[0], &bytes[LEN / 3 * 2..]);
        }
    });
}

#[test]
fn python_gets_each_byte_of_a_stream() {
    within(LONG, || {
        let test = "python_gets_each_byte_of_a_stream";
        let Some((mut python, address)) = Program::python(test, "tcp") else { return };
        for (number, (driver, engine)) in engines_apart().into_iter().enumerate() {
            let socket = driver.socket(TcpStream::connect(&address).unwrap()).unwrap();
            socket.set_engine(engine).unwrap();
            let mut region = Region::anonymous(LEN).unwrap();
            let bytes = pattern(number, LEN);
            let frozen = filled(&mut region, number, LEN).freeze();
            send_twice(&driver, &socket, &frozen);
            drop(socket);
            driver.turn(Wait::No).unwrap();
            assert_same(&python.next(), &[&bytes, &bytes[LEN / 3 * 2..]].concat());
        }
    });
}

/// More than the pool has, so each buffer is sent many times.
#[test]
fn socat_gets_what_a_few_buffers_bring() {
    const MESSAGES: usize = 64;
    const BUFFER: usize = 8192;
    within(LONG, || {
        let test = "socat_gets_what_a_few_buffers_bring";
        for (driver, engine) in engines_apart() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("TCP:{}", listener.local_addr().unwrap());
            let Some(mut socat) = Program::start("socat", &["-u", &address, "STDOUT"]) else {
                return traffic::skip(test, "there is no socat");
            };
            let socket = driver.socket(listener.accept().unwrap().0).unwrap();
            socket.set_engine(engine).unwrap();
            let pool = BufferPool::new(Region::anonymous(4 * BUFFER).unwrap(), BUFFER).unwrap();
            let reader = std::thread::spawn(move || {
                let mut all = Vec::new();
                socat.says.read_to_end(&mut all).unwrap();
                all
            });
            driver
                .block_on(async {
                    for number in 0..MESSAGES {
                        let mut buffer: Buffer = pool.get().await;
                        let bytes = pattern(number, BUFFER - number);
                        buffer.set_len(bytes.len());
                        buffer.copy_from_slice(&bytes);
                        drop(socket.send(buffer).unwrap());
                    }
                })
                .unwrap();
            while driver.in_flight() > 0 {
                driver.turn(Wait::Event).unwrap();
            }
            drop(socket);
            driver.turn(Wait::No).unwrap();
            let expected = (0..MESSAGES).flat_map(|number| pattern(number, BUFFER - number));
            assert_same(&reader.join().unwrap(), &expected.collect::<Vec<_>>());
        }
    });
}
