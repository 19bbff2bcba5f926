//! Ways to send a file that the kernel lends, by the library as its users call it.
//!
//! Minimum kernel, capability and return signal: those of the module, and of `SEND_ZC`.

use std::{collections::VecDeque, net::TcpStream, time::Instant};

use handoff::{
    Driver, Engine, GetBuf, Getting, KernelSource, Lease, OnLoan, Refused, RingUse, Socket, Tally,
    Wait,
};

use super::{
    TIMEOUT,
    file_send::{Offset, PIECE, Way},
    streams::{LENGTH, Streams},
};

/// The most pieces under way at a time.
const UNDER_WAY: usize = 16;

pub(super) struct Leased {
    // The handles are dropped before the driver.
    getting: VecDeque<Getting>,
    on_loan: VecDeque<OnLoan<Lease>>,
    /// The lease of the whole file; `None` if each piece has a lease of its own.
    kept: Option<Lease>,
    source: KernelSource,
    getbuf: GetBuf,
    socket: Socket,
    driver: Driver,
    offset: Offset,
    returned: Tally,
}

impl Leased {
    /// Makes a way whose pieces are lent one by one, or are parts of one lease of the whole file if it is `kept`.
    pub(super) fn new(streams: &Streams, socket: TcpStream, kept: bool) -> Result<Self, String> {
        let driver = Driver::builder().ring(RingUse::Require).build().map_err(line)?;
        let getbuf = driver.get_buf().map_err(line)?;
        let source = getbuf.source(streams.file()?).map_err(line)?;
        let socket = driver.socket(socket).map_err(line)?;
        socket.set_engine(Engine::UringZc).map_err(line)?;
        let kept = match kept {
            false => None,
            true => {
                let getting = source.get_at(0, LENGTH as u32).map_err(line)?;
                let lent = driver.block_on(getting).and_then(|lent| lent).map_err(line)?;
                let whole = lent.filter(|lease| lease.len() as u64 == LENGTH);
                Some(whole.ok_or("the file is not lent as a whole")?)
            }
        };
        Ok(Self {
            getting: VecDeque::new(),
            on_loan: VecDeque::new(),
            kept,
            source,
            getbuf,
            socket,
            driver,
            offset: Offset::default(),
            returned: Tally::default(),
        })
    }

    fn under_way(&self) -> usize {
        self.getting.len() + self.on_loan.len()
    }

    /// Waits for something to happen, and takes what has finished.
    fn turn(&mut self) -> Result<(), String> {
        self.driver.turn(Wait::AtMost(TIMEOUT)).map_err(line)?;
        while let Some(getting) = self.getting.pop_front() {
            match getting.try_take() {
                Ok(lent) => {
                    let whole = lent.map_err(line)?.filter(|lease| lease.len() as u64 == PIECE);
                    self.lend_on(whole.ok_or("a piece is not lent as a whole")?)?;
                }
                Err(getting) => {
                    self.getting.push_front(getting);
                    break;
                }
            }
        }
        while let Some(on_loan) = self.on_loan.pop_front() {
            match on_loan.try_take() {
                Ok(back) => {
                    self.returned += back.receipt.tally;
                    if back.receipt.tally.total() != PIECE {
                        return Err("a piece was not sent as a whole".to_owned());
                    }
                }
                Err(on_loan) => {
                    self.on_loan.push_front(on_loan);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Sends a leased piece. What happened to the send shows in its return.
    fn lend_on(&mut self, lease: Lease) -> Result<(), String> {
        let sending = self.socket.send(lease).map_err(|it: Refused<_>| line(it.error))?;
        self.on_loan.push_back(sending.split().1);
        Ok(())
    }

    fn turn_until(&mut self, most: usize) -> Result<(), String> {
        let (mut before, mut since) = (self.returned.total(), Instant::now());
        while self.under_way() > most {
            self.turn()?;
            if self.returned.total() > before {
                (before, since) = (self.returned.total(), Instant::now());
            } else if since.elapsed() > TIMEOUT {
                return Err(format!("nothing came back for {TIMEOUT:?}"));
            }
        }
        Ok(())
    }
}

fn line(error: handoff::Error) -> String {
    error.to_string()
}

impl Way for Leased {
    fn send(&mut self) -> Result<(), String> {
        if self.under_way() == UNDER_WAY {
            self.turn_until(UNDER_WAY - 1)?;
        }
        let place = self.offset.next();
        match &self.kept {
            Some(lease) => {
                let part = lease.part(place as usize..(place + PIECE) as usize);
                self.lend_on(part)
            }
            None => {
                let getting = self.source.get_at(place, PIECE as u32).map_err(line)?;
                self.getting.push_back(getting);
                Ok(())
            }
        }
    }

    fn settle(&mut self) -> Result<(), String> {
        self.turn_until(0)
    }

    fn copied(&self) -> Result<Option<u64>, String> {
        let lent = self.getbuf.stats().map_err(line)?.copied_bytes;
        Ok((self.returned.unknown == 0).then_some(lent + self.returned.copied))
    }

    fn lends(&self) -> Result<Option<u64>, String> {
        Ok(Some(self.getbuf.stats().map_err(line)?.lent))
    }
}
