//! Messages of one buffer or many, alone and in groups, and their ends.

use handoff::{Buffer, Error, Group, Payload, Refused};

use crate::handles::Handle;
use crate::model::{Back, Ending, Message, Place, content, place};
use crate::steps::Memory;
use crate::world::{MESSAGES, To, World};

/// A group that is being filled, or waited for.
pub(crate) struct Gathered {
    pub(crate) group: Option<Group<Buffer>>,
    pub(crate) messages: Vec<usize>,
}

impl World {
    pub(crate) fn send(
        &mut self,
        to: usize,
        len: usize,
        header: usize,
        memory: Memory,
        pieces: usize,
        kept: bool,
    ) {
        let to = if to < 2 { To::Stream(to) } else { To::Datagram };
        let id = self.messages.len() + 1;
        let len = if to == To::Datagram { len.clamp(1, 40_000) } else { len };
        let bytes = content(id, header + len);
        let payload = bytes[header..].to_vec();
        match (pieces, memory) {
            (0, Memory::Shared) => {
                let Some(mut buffer) = self.shared.take(len) else { return };
                buffer.view().write(0, &payload);
                buffer.set_len(len);
                self.accept(to, buffer, bytes, header, Vec::new(), kept);
            }
            (0, Memory::Owned) => {
                let owned = payload.into_boxed_slice();
                let places = vec![place(&owned)];
                self.accept(to, owned, bytes, header, places, kept);
            }
            (0, _) => {
                let buffer = self.buffer(&payload, memory);
                let places = vec![place(&buffer)];
                self.accept(to, buffer, bytes, header, places, kept);
            }
            _ => {
                let cuts: Vec<_> = (0..=pieces).map(|cut| len * cut / pieces).collect();
                let cut = |cut: &[usize]| self.buffer(&payload[cut[0]..cut[1]], memory);
                let buffers: Vec<_> = cuts.windows(2).map(cut).collect();
                let places = buffers.iter().map(|it| place(it)).collect();
                self.accept(to, buffers, bytes, header, places, kept);
            }
        }
    }

    pub(crate) fn send_span(&mut self, to: usize) {
        let Some(span) = self.take_span(to) else { return };
        let id = self.messages.len() + 1;
        let header = content(id, 4);
        let bytes = [&header, &span.received[..]].concat();
        let places = vec![place(&span.received)];
        self.accept(To::Stream(to % 2), span.received, bytes, 4, places, true);
    }

    pub(crate) fn accept<B: Payload + Into<Back> + 'static>(
        &mut self,
        to: To,
        buffer: B,
        bytes: Vec<u8>,
        header: usize,
        places: Vec<Place>,
        kept: bool,
    ) {
        let socket = match to {
            To::Stream(number) => self.outflows[number].socket.as_ref(),
            To::Datagram => self.datagrams.last(),
        };
        let message = Message { bytes, header, places, ending: Ending::Unknown, cancelled: false };
        let id = self.messages.len();
        let Some(socket) = socket.filter(|_| id < MESSAGES) else {
            return self.bring_home(buffer.into());
        };
        let lent = socket.message(buffer).header(&message.bytes[..header]);
        // An auto socket turns the driver to measure the cost of sends, and wakers may panic in that.
        match lent.send() {
            Ok(sending) => {
                self.out.lend(&message.places);
                self.note(to, message);
                if kept {
                    let (sent, loan) = sending.split();
                    self.handles.extend([Handle::sent(sent, id), Handle::loan(loan, id)]);
                } else {
                    self.handles.push(Handle::whole(sending, id));
                }
            }
            Err(refused) => self.refused(&message, refused),
        }
    }

    pub(crate) fn refused<B: Into<Back>>(&mut self, message: &Message, refused: Refused<B>) {
        match refused.error {
            Error::Busy { .. } | Error::StreamBroken { .. } => {}
            Error::DriverGone if self.is_gone() => {}
            error => panic!("a send is refused: {error}"),
        }
        let back = refused.buffer.into();
        message.check_back(&back);
        self.bring_home(back);
    }

    pub(crate) fn note(&mut self, to: To, message: Message) {
        if let To::Stream(number) = to {
            self.outflows[number].messages.push(self.messages.len());
        }
        self.to.push(to);
        self.messages.push(message);
    }

    /// Sends in a group.
    pub(crate) fn send_grouped(&mut self, to: usize, len: usize, memory: Memory) {
        let Some(driver) = self.driver.clone() else { return };
        let to = if to < 2 { To::Stream(to) } else { To::Datagram };
        let id = self.messages.len();
        let bytes = content(id + 1, if to == To::Datagram { len.clamp(1, 40_000) } else { len });
        let buffer = self.buffer(&bytes, memory);
        if self.groups.last().is_none_or(|last| last.group.is_none()) {
            self.groups.push(Gathered { group: Some(driver.group()), messages: Vec::new() });
        }
        let socket = match to {
            To::Stream(number) => self.outflows[number].socket.as_ref(),
            To::Datagram => self.datagrams.last(),
        };
        let Some(socket) = socket.filter(|_| id < MESSAGES) else {
            return self.bring_home(buffer.into());
        };
        let places = vec![place(&buffer)];
        let message =
            Message { bytes, header: 0, places, ending: Ending::Unknown, cancelled: false };
        let gathered = self.groups.last_mut().expect("there is one");
        let group = gathered.group.as_mut().expect("it is open");
        match socket.message(buffer).send_in(group) {
            Ok(sent) => {
                gathered.messages.push(id);
                self.out.lend(&message.places);
                self.note(to, message);
                self.handles.push(Handle::sent(sent, id));
            }
            Err(refused) => self.refused(&message, refused),
        }
    }

    pub(crate) fn flush(&mut self, forget: bool) {
        let Some(group) = self.groups.last_mut().and_then(|last| last.group.take()) else { return };
        if forget {
            self.forgotten.push(Box::new(group));
        } else {
            self.handles.push(Handle::group(group.flush(), self.groups.len() - 1));
        }
    }

    pub(crate) fn came_back(&mut self, about: usize, back: Back) {
        let message = &self.messages[about];
        message.check_back(&back);
        self.out.back(&message.places);
        self.bring_home(back);
    }

    pub(crate) fn ended(&mut self, about: usize, result: Result<usize, Error>) {
        let peer_gone = match self.to[about] {
            To::Stream(number) => self.outflows[number].closed,
            To::Datagram => false,
        };
        let message = &mut self.messages[about];
        match &result {
            Ok(_) | Err(Error::StreamBroken { .. }) => {}
            Err(Error::Canceled { .. }) if message.cancelled || self.driver.is_none() => {}
            Err(Error::DriverGone) if self.driver.is_none() => {}
            Err(Error::Io { .. }) if peer_gone => {}
            Err(error) => panic!("message {about} ends with: {error}"),
        }
        message.ending = Ending::Known(result);
    }
}
