//! Processes that hold spans of a queue until they are killed.

use std::fs::File;

use handoff::{DmaBuf, RxBinding};
use handoff_testbed::helpers::eventually;

use crate::rx_queue::receiving::{QUEUE, again, area, driver, receiver};
use crate::rx_queue::testbed::port;

#[test]
#[ignore = "a process of its own, which another test kills"]
fn holds_spans() {
    let device = std::env::var("DEVICE").expect("set");
    let queue = std::env::var("QUEUE").expect("set").parse().expect("a number");
    let driver = driver();
    let binding = RxBinding::new(&device, queue).expect("is there");
    let queue = driver.rx_queue(area(1_024), &binding).expect("binds");
    let listener = std::net::TcpListener::bind(("0.0.0.0", port(QUEUE))).expect("binds");
    if std::env::var_os("SHARED").is_some() {
        // A second ring has the queue, too, and exists when the process is killed.
        let exported = queue.export().expect("exports");
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let driver = crate::rx_queue::receiving::driver();
            let queue = driver.import_rx_queue(&exported).expect("imports");
            ready.send(()).expect("is heard");
            loop {
                driver
                    .turn(handoff::Wait::AtMost(crate::rx_queue::receiving::LONG))
                    .expect("turns");
                assert_eq!(queue.held(), 0);
            }
        });
        is_ready.recv().expect("imports");
    }
    println!("LISTENS");
    let (far, _) = listener.accept().expect("accepts");
    let mut receiver = receiver(&driver, far, &queue);
    let mut kept = Vec::new();
    let keeping = async {
        while let Some(span) = receiver.next_span().await {
            kept.push(span.expect("receives"));
        }
    };
    driver.block_on(keeping).expect("runs");
}

/// Receives into memory of another process, and reports where.
#[test]
#[ignore = "a process of its own, which another test kills"]
fn tells_places() {
    let memory = std::env::var("MEMORY").expect("set");
    let memory = File::options().read(true).write(true).open(memory).expect("is there");
    let dma_buf = DmaBuf::of_memfd(memory).expect("udmabuf");
    let device = std::env::var("DEVICE").expect("set");
    let binding = RxBinding::new(&device, QUEUE).expect("is there");
    let driver = driver();
    // The owner before may not have let go.
    let queue =
        eventually("the queue is free", || driver.dma_buf_queue(again(&dma_buf), &binding).ok());
    let listener = std::net::TcpListener::bind(("0.0.0.0", port(QUEUE))).expect("binds");
    println!("LISTENS");
    let socket = driver.socket(listener.accept().expect("accepts").0).expect("attaches");
    let mut receiver = socket.receive_to_dma_buf(&queue).expect("starts");
    let mut kept = Vec::new();
    let telling = async {
        while let Some(span) = receiver.next_span().await {
            let span = span.expect("receives");
            println!("AT {} {}", span.offset(), span.len());
            kept.push(span);
        }
    };
    driver.block_on(telling).expect("runs");
}
