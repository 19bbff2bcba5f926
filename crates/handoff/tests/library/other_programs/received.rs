//! Accepted connections, receives into place, and sends of files.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::thread;

use handoff::{Buffer, Driver, Socket};

use crate::other_programs::{LONG, start};
use crate::traffic::{assert_same, drivers, pattern, skip, with_each_driver, within};

const LEN: usize = (1 << 20) + 321;

fn listening(driver: &Driver) -> (handoff::Listener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (driver.listen(listener).unwrap(), address)
}

/// A request's text, up to the empty line.
async fn request(socket: &Socket) -> String {
    let mut text = String::new();
    while !text.contains("\r\n\r\n") {
        let got = socket.receive_into(Buffer::from(vec![0; 4096])).unwrap().await.unwrap();
        let len = got.result.unwrap();
        assert!(len > 0, "the end, after {text:?}");
        text.push_str(std::str::from_utf8(&got.buffer[..len]).unwrap());
    }
    text
}

/// The bytes that an HTTP request asks for.
fn asked(request: &str) -> Option<Range<usize>> {
    let range = request.lines().find_map(|line| line.strip_prefix("Range: bytes="))?;
    let (first, last) = range.split_once('-').unwrap();
    Some(first.parse().unwrap()..last.parse::<usize>().unwrap() + 1)
}

#[test]
fn curl_gets_a_file_and_a_part_of_it() {
    const TEST: &str = "curl_gets_a_file_and_a_part_of_it";
    within(LONG, || {
        let mut source = tempfile::tempfile().unwrap();
        source.write_all(&pattern(1, LEN)).unwrap();
        for driver in drivers() {
            let file = driver.file(source.try_clone().unwrap()).unwrap();
            let (mut listener, address) = listening(&driver);
            let url = format!("http://{address}/");
            for range in [None, Some(0..1), Some(70_001..900_000), Some(LEN - 5..LEN)] {
                let part = range.as_ref().map(|part| format!("{}-{}", part.start, part.end - 1));
                let mut arguments = vec!["--silent", "--fail", "--noproxy", "*", &url];
                arguments.extend(part.iter().flat_map(|part| ["--range", part.as_str()]));
                let Some(curl) = start("curl", &arguments) else {
                    return skip(TEST, "curl is not installed");
                };
                let printed = thread::spawn(move || curl.wait_with_output().unwrap());
                let serve = async {
                    let (socket, _) = listener.accept().await.unwrap();
                    let wanted = asked(&request(&socket).await);
                    assert_eq!(wanted, range);
                    let (status, wanted) = match wanted {
                        Some(part) => ("206 Partial Content", part),
                        None => ("200 OK", 0..LEN),
                    };
                    let len = wanted.len();
                    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\n\r\n");
                    let (sent, _) =
                        socket.send(Buffer::from(head.clone().into_bytes())).unwrap().split();
                    let wanted = wanted.start as u64..wanted.end as u64;
                    let carried = socket.send_file(&file, wanted).await;
                    carried.result.unwrap();
                    assert_eq!(carried.bytes, len as u64);
                    assert_eq!(sent.await.unwrap(), head.len());
                };
                driver.block_on(serve).unwrap();
                let output = printed.join().unwrap();
                assert!(output.status.success(), "{output:?}");
                assert_same(&output.stdout, &pattern(1, LEN)[range.unwrap_or(0..LEN)]);
            }
        }
    });
}

/// Its pieces are not ours: each has 13 bytes.
#[test]
fn what_socat_sends_in_small_pieces_lands_in_its_places() {
    const TEST: &str = "what_socat_sends_in_small_pieces_lands_in_its_places";
    const MESSAGES: usize = 200;
    with_each_driver(LONG, |driver| {
        let (mut listener, address) = listening(&driver);
        let to = format!("TCP:{address}");
        let Some(mut socat) = start("socat", &["-u", "-b13", "-", &to]) else {
            return skip(TEST, "socat is not installed");
        };
        let mut input = socat.stdin.take().unwrap();
        let writer = thread::spawn(move || {
            for number in 0..MESSAGES {
                let payload = pattern(number, number * 7 % 500);
                let message = [&(payload.len() as u32).to_le_bytes()[..], &payload].concat();
                input.write_all(&message).unwrap();
            }
        });
        let receive = async {
            let (socket, _) = listener.accept().await.unwrap();
            for number in 0..MESSAGES {
                let head = socket.receive_exact(Buffer::from(vec![0; 4])).unwrap().await.unwrap();
                assert_eq!(head.result.unwrap(), 4);
                let len = u32::from_le_bytes(*head.buffer.first_chunk().unwrap()) as usize;
                let place = Buffer::from(vec![0; len]);
                let payload = socket.receive_exact(place).unwrap().await.unwrap();
                assert_eq!(payload.result.unwrap(), len);
                assert_same(&payload.buffer, &pattern(number, number * 7 % 500));
            }
            let end = socket.receive_into(Buffer::from(vec![0; 1])).unwrap().await.unwrap();
            assert_eq!(end.result.unwrap(), 0, "and then the end");
        };
        driver.block_on(receive).unwrap();
        writer.join().unwrap();
        assert!(socat.wait().unwrap().success());
    });
}
