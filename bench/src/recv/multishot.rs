//! The library's copying receive: one multishot request into a pool of buffers.

use std::{net::TcpStream, time::Instant};

use handoff::{Driver, Pool, Receiver, Region, RingUse, Socket, Wait};

use super::{PATIENCE, bed::Bed, pattern::Stream, reception::Receive};

const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 16;

pub(super) struct Multishot {
    // Before the driver: handles go first.
    receiver: Receiver,
    _pool: Pool,
    _socket: Socket,
    driver: Driver,
}

impl Multishot {
    pub(super) fn new(socket: TcpStream, _: &Bed) -> Result<Self, String> {
        let line = |error: handoff::Error| error.to_string();
        let driver = Driver::builder().ring(RingUse::Require).build().map_err(line)?;
        let region = Region::anonymous(CHUNK * CHUNKS).map_err(line)?;
        let pool = driver.pool(region, CHUNK).map_err(line)?;
        let socket = driver.socket(socket).map_err(line)?;
        let receiver = socket.receive(&pool).map_err(line)?;
        Ok(Self { receiver, _pool: pool, _socket: socket, driver })
    }
}

impl Receive for Multishot {
    fn receive(&mut self, stream: &mut Stream) -> Result<(), String> {
        let (before, mut begin) = (stream.position(), None);
        loop {
            self.driver.turn(Wait::AtMost(PATIENCE)).map_err(|error| error.to_string())?;
            while let Some(next) = self.receiver.try_next_span() {
                let span = next.ok_or("the connection has ended")?;
                stream.take(&span.map_err(|error| error.to_string())?);
            }
            if stream.position() > before {
                return Ok(());
            }
            // Something else has happened.
            if begin.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(format!("nothing arrived for {PATIENCE:?}"));
            }
        }
    }

    fn copied(&self) -> Option<u64> {
        let tally = self.receiver.tally();
        (tally.unknown == 0).then_some(tally.copied)
    }
}
