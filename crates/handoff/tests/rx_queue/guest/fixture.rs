//! A process of its own that holds spans of a queue until it is killed.

use handoff::RxBinding;

use crate::bed::port;
use crate::receiving::{QUEUE, area, driver, receiver};

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
        // A second ring has the queue, too, and is there when the process is killed.
        let exported = queue.export().expect("exports");
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let driver = crate::receiving::driver();
            let queue = driver.import_rx_queue(&exported).expect("imports");
            ready.send(()).expect("is heard");
            loop {
                driver.turn(handoff::Wait::AtMost(crate::receiving::LONG)).expect("turns");
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
