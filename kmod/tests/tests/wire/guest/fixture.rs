//! A process of its own that holds a queue until it is killed.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use super::bound::QUEUE;
use crate::testbed::{MIB, PORT};
use crate::zcrx::Receiver;

#[test]
#[ignore = "fixture: is killed by another test"]
fn holds_a_queue() {
    let device = std::env::var("DEVICE").expect("given");
    let name = std::ffi::CString::new(device).expect("a name");
    // SAFETY: the name is terminated.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let mut receiver = Receiver::bind(index, QUEUE, 512, 4_096).expect("binds");
    let listener = TcpListener::bind(("0.0.0.0", PORT)).expect("listens");
    println!("HELD");
    let (stream, _) = listener.accept().expect("accepts");
    let mut taken = 0;
    let outcome = receiver.receive(&stream, |span| {
        taken += span.len();
        if taken > MIB {
            thread::sleep(Duration::from_secs(60));
        }
    });
    println!("{outcome:?}");
}
