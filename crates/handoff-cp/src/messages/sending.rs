//! The sending side.

use handoff::{Buffer, Region};
use handoff_command::Failure;
use handoff_command::allow_list::AllowList;
use handoff_command::clock::Clock;
use handoff_net::address::Endpoint;

use super::handshake::{own_address, resolve, send_hello};
use super::line::{self, Line};
use crate::answer;
use crate::checksum::{PieceSum, zeros};
use crate::coverage::Coverage;
use crate::inlet::Inlet;
use crate::job::Job;
use crate::random;
use crate::ranged::ALIGNMENT;
use crate::report::{Hop, Report, Transferred};
use crate::wire::{Decoder, Frame, Hello};

/// Sends all of `inlet` to the receiver at `endpoint`.
///
/// # Errors
///
/// Errors here, or there.
pub(crate) fn send(
    job: &Job<'_>,
    inlet: &Inlet,
    length: Option<u64>,
    endpoint: &Endpoint,
) -> Result<Report, Failure> {
    let peer = resolve(job, endpoint)?;
    // It connects, where its address is the smaller one.
    let allow_list = AllowList::only([peer.ip()]);
    line::with(job, own_address(peer)?, None, allow_list, async |line| {
        let piece = line::piece(line);
        let room = piece.next_multiple_of(ALIGNMENT as usize);
        let mut region = job.region(room * job.order.depth(1))?;
        let registered = job.register(&region);
        line.free.replace(buffers(&mut region, room, job.order.depth(1)));
        let transfer = random::bits();
        let hello = Hello {
            sends: true,
            verifies: true,
            streams: 1,
            stream: 0,
            transfer,
            length,
            sparse: inlet.is_sparse(),
            preserves: false,
            hears_work: false,
        };
        job.unless_stopped(send_hello(line, peer, &hello)).await?;
        line.begin(peer, &hello);
        let clock = Clock::start();
        let sender = Sender { line, inlet, piece, decoder: Decoder::new(), answer: None };
        let (bytes, holes, checksum) = job.while_moving(&[], sender.run()).await?;
        line.settle().await;
        let hops = vec![
            inlet.hop(job, registered, bytes),
            Hop {
                from: "memory",
                to: job.order.destination_kind(),
                engine: line.engine.to_owned(),
                reason: line::reason(line, piece),
                tally: line.tally(),
            },
        ];
        let verified = Some("the same on both sides");
        let done = Transferred { bytes, holes, streams: 1, checksum, verified, hops };
        Ok(Report::new(job.order, &clock, done))
    })
}

fn buffers(region: &mut Region, room: usize, count: usize) -> Vec<Buffer> {
    (0..count).map_while(|_| region.take(room)).collect()
}

struct Sender<'a> {
    line: &'a Line<'a>,
    inlet: &'a Inlet,
    piece: usize,
    decoder: Decoder,
    answer: Option<(u64, Option<u64>)>,
}

impl Sender<'_> {
    /// Bytes, those of holes, and the checksum, which the receiver has confirmed.
    async fn run(mut self) -> Result<(u64, u64, Option<u64>), Failure> {
        let length = if let Inlet::File { len, .. } = self.inlet { Some(*len) } else { None };
        let mut coverage = Coverage::new(length, true);
        let (mut offset, mut holes) = (0, 0);
        loop {
            if let Some(len) = self.inlet.hole_at(offset) {
                coverage.add(offset, len, zeros(len)).map_err(Failure::failed)?;
                self.line.say(&Frame::Hole { offset, len }.encode()).await?;
                self.line.job.order.progress.inc(len);
                (offset, holes) = (offset + len, holes + len);
                continue;
            }
            let buffer = self.buffer().await?;
            let (inlet, line) = (self.inlet, self.line);
            let reading = inlet.read_at(buffer, self.piece, offset);
            let buffer = line.meanwhile(reading, || self.heed()).await?;
            self.heed()?;
            let Some(buffer) = buffer else { break };
            let len = buffer.len();
            let mut sum = PieceSum::new(true);
            sum.update(&buffer);
            coverage.add(offset, len as u64, sum.finish()).map_err(Failure::failed)?;
            self.line.say(&Frame::data(offset, len as u32)).await?;
            self.line.lend(buffer).await?;
            self.line.job.order.progress.inc(len as u64);
            offset += len as u64;
        }
        let checksum = coverage
            .complete(offset)
            .ok_or_else(|| Failure::failed("pieces of the source are missing"))?;
        self.line.say(&Frame::End { bytes: offset, checksum }.encode()).await?;
        let answer = loop {
            if let Some(answer) = self.answer {
                break answer;
            }
            let bytes = self.line.hear().await?;
            self.take(&bytes)?;
        };
        answer::check(offset, checksum, answer)?;
        Ok((offset, holes, checksum))
    }

    /// A free buffer, once there is one.
    async fn buffer(&mut self) -> Result<Buffer, Failure> {
        loop {
            self.heed()?;
            if let Some(buffer) = self.line.free.borrow_mut().pop() {
                return Ok(buffer);
            }
            self.line.changed().await?;
        }
    }

    /// Reads the receiver's messages; before the end that can only be its failure.
    fn heed(&mut self) -> Result<(), Failure> {
        while let Some(bytes) = self.line.heard()? {
            self.take(&bytes)?;
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if let Some(answer) = answer::read(&mut self.decoder, bytes) {
            self.answer = Some(answer.confirmed()?);
        }
        Ok(())
    }
}
