//! Bytes of a client that no request has taken: headers, and what came together with them.

use std::time::Duration;

use handoff::{Buffer, Driver, Error, Socket};

/// The most that is received without knowing what it is.
const ROOM: usize = 8 << 10;

pub(crate) struct Input {
    socket: Socket,
    driver: Driver,
    /// Away while it is received into.
    buffer: Option<Buffer>,
    from: usize,
    to: usize,
}

impl Input {
    pub(crate) fn new(driver: &Driver, socket: &Socket) -> Self {
        let buffer = Some(Buffer::from(vec![0; ROOM]));
        Self { socket: socket.clone(), driver: driver.clone(), buffer, from: 0, to: 0 }
    }

    /// What is here.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[self.from..self.to])
    }

    /// So many of these are done with.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.from += bytes;
    }

    /// Receives at most `most` bytes, when all that was here is taken; 0 at the end.
    ///
    /// # Errors
    ///
    /// Why nothing comes any more, in words.
    pub(crate) async fn more(
        &mut self,
        most: usize,
        limit: Option<Duration>,
    ) -> Result<usize, String> {
        let Some(mut buffer) = self.buffer.take() else { return Err("nothing comes".to_owned()) };
        buffer.set_len(most.clamp(1, ROOM));
        let receiving = self.socket.receive_into(buffer).map_err(|refused| refused.error);
        let receiving = receiving.map_err(|error| error.to_string())?;
        let received = match limit {
            Some(limit) => self.driver.timeout(limit, receiving).await,
            None => Ok(receiving.await),
        };
        let received = match received {
            Ok(received) => received.map_err(|error| error.to_string())?,
            Err(Error::TimedOut { .. }) => {
                return Err("the client did not send the rest of a request in time".to_owned());
            }
            Err(error) => return Err(error.to_string()),
        };
        let mut buffer = received.buffer;
        buffer.set_len(buffer.capacity());
        self.buffer = Some(buffer);
        self.from = 0;
        self.to = received.result.map_err(|error| error.to_string())?;
        Ok(self.to)
    }

    /// Without a limit on what is not known.
    pub(crate) const fn room() -> usize {
        ROOM
    }
}
