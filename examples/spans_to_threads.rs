//! A socket to the threads of a pool: each adds up the bytes of spans where they were received, and their memory goes
//! back from there. `spans-to-threads ADDRESS:PORT`

use std::error::Error;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use handoff::{Driver, Region, SendSpan};

const THREADS: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: spans-to-threads ADDRESS:PORT")?;
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    let (to_threads, work) = mpsc::channel::<SendSpan>();
    let work = Arc::new(Mutex::new(work));
    let add_up = move || -> u64 {
        let next = || work.lock().expect("no thread panics").recv().ok();
        std::iter::from_fn(next).map(|span| span.iter().map(|it| u64::from(*it)).sum::<u64>()).sum()
    };
    let threads = [(); THREADS].map(|()| thread::spawn(add_up.clone()));

    let driver = Driver::new()?;
    let pool = driver.pool(Region::anonymous(8 << 20)?, 64 << 10)?;
    let mut receiver = driver.socket(listener.accept()?.0)?.receive(&pool)?;
    driver.block_on(async {
        while let Some(span) = receiver.next_span().await {
            let span = span?.into_send().map_err(|refused| refused.error)?;
            to_threads.send(span)?;
        }
        Ok::<_, Box<dyn Error>>(())
    })??;
    drop(to_threads);
    let sum: u64 = threads.into_iter().map(|it| it.join().expect("ends")).sum();
    println!("{} bytes received, and their sum is {sum}", receiver.tally().total());
    Ok(())
}
