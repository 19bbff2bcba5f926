//! What a call on a driver thread costs: the round trip of one, and a call among many, with a send and without.
//!
//! `cargo run --release -p handoff --features tokio --example crossing`

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use handoff::tokio::{DriverThreads, Remote};
use handoff::{Buffer, Engine, Result, Socket};

const ROUNDS: usize = 20;
const CALLS: u32 = 2_000;
/// Bytes of a message.
const MESSAGE: usize = 64;

/// A socket whose peer reads all that comes.
async fn socket(threads: &DriverThreads) -> Result<Remote<Socket>, Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let mut far = listener.accept()?.0;
    thread::spawn(move || while far.read(&mut [0; 1 << 16]).is_ok_and(|read| read > 0) {});
    let socket = threads.socket(near).await?;
    socket.call(|socket| async move { socket.set_engine(Engine::Copy) }).await??;
    Ok(socket)
}

/// Prints the median and the least of what a call took in each round.
fn tell(what: &str, mut rounds: Vec<Duration>) {
    rounds.sort();
    println!("{what}: {:?} a call, at least {:?}", rounds[ROUNDS / 2] / CALLS, rounds[0] / CALLS);
}

async fn measure(threads: DriverThreads) -> Result<(), Box<dyn std::error::Error>> {
    let remote = threads.next().clone();
    let socket = socket(&threads).await?;

    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for _ in 0..CALLS {
            remote.call(|_| async {}).await?;
        }
        rounds.push(begun.elapsed());
    }
    tell("one after another", rounds);

    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let replies: Vec<_> = (0..CALLS).map(|_| remote.call(|_| async {})).collect();
        for reply in replies {
            reply.await?;
        }
        rounds.push(begun.elapsed());
    }
    tell("many at once", rounds);

    let mut rounds = Vec::new();
    let mut buffers: Vec<_> = (0..CALLS).map(|_| Buffer::from(vec![0; MESSAGE])).collect();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let replies: Vec<_> = buffers.drain(..).map(|buffer| socket.send(buffer)).collect();
        for reply in replies {
            buffers.push(reply.await?.buffer);
        }
        rounds.push(begun.elapsed());
    }
    tell("many sends at once", rounds);

    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let moved = std::mem::take(&mut buffers);
        let send_all = |socket: Socket| async move {
            let begun = Instant::now();
            let mut back = Vec::new();
            for buffer in moved {
                back.push(socket.send(buffer).map_err(|refused| refused.error)?.await?.buffer);
            }
            Ok::<_, handoff::Error>((begun.elapsed(), back))
        };
        let (took, back) = socket.call(send_all).await??;
        rounds.push(took);
        buffers = back;
    }
    tell("the same sends in one call", rounds);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = DriverThreads::new(1)?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()?
        .block_on(measure(threads))
}
