//! Datagrams as QUIC sends them: a lent buffer holds packets of 1,200 bytes, each with its number. It goes out
//! in as few messages as the kernel takes; the kernel or the NIC cuts them.
//!
//! `send-segments HOST:PORT PACKETS`

use std::error::Error;
use std::net::UdpSocket;

use handoff::{BufferPool, Driver, Region};

const PACKET: usize = 1200;
/// Packets sent at once: below 64 KiB.
const BURST: usize = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: send-segments HOST:PORT PACKETS";
    let mut arguments = std::env::args().skip(1);
    let target = arguments.next().ok_or(usage)?;
    let packets: u64 = arguments.next().ok_or(usage)?.parse()?;
    let near = UdpSocket::bind("0.0.0.0:0")?;
    near.connect(target)?;

    let driver = Driver::new()?;
    let pool = BufferPool::new(Region::anonymous(1 << 20)?, BURST * PACKET)?;
    if driver.ring_unavailable().is_none() {
        driver.register(&pool)?;
    }
    let socket = driver.socket(near)?;
    driver.block_on(async {
        let mut next = 0;
        while next < packets {
            let mut burst = pool.get().await;
            let count = (packets - next).min(BURST as u64);
            for packet in burst.chunks_mut(PACKET).take(count as usize) {
                packet[..8].copy_from_slice(&next.to_be_bytes());
                packet[8..].fill(next as u8);
                next += 1;
            }
            burst.set_len(count as usize * PACKET);
            let sending = socket.message(burst).segment(PACKET).send();
            // The memory goes back to the pool when the kernel has let go of it.
            let (sent, _) = sending.map_err(|refused| refused.error)?.split();
            sent.await?;
        }
        Ok::<_, handoff::Error>(())
    })??;
    let stats = socket.send_stats();
    println!("{packets} packets sent in {} messages: {:?}", stats.messages, stats.returned);
    Ok(())
}
