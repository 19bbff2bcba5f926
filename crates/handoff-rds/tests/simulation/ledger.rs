//! Who sent what, and what became of it.

use std::collections::BTreeMap;
use std::rc::Rc;

use handoff_rds::End;

/// A payload: its bytes and a count of its owners, so that it shows when it does not come back.
pub(crate) type Payload = Rc<Vec<u8>>;

/// What identifies a stream of messages whose order is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stream {
    pub(crate) from: usize,
    pub(crate) incarnation: u32,
    pub(crate) source: u16,
    pub(crate) to: usize,
    pub(crate) port: u16,
}

struct Sent {
    stream: Stream,
    number: u32,
    /// The receiver's incarnation that the sender knew of when it was accepted.
    known: u32,
    delivered: u32,
    end: Option<End>,
}

#[derive(Default)]
pub(crate) struct Ledger {
    sent: Vec<Sent>,
    numbers: BTreeMap<Stream, u32>,
    /// The last number that a incarnation of a receiver had from a stream.
    last: BTreeMap<(Stream, u32), u32>,
}

const HEAD: usize = 4;

impl Ledger {
    /// A payload that tells which message it is.
    pub(crate) fn payload(&self, len: usize) -> Payload {
        let index = self.sent.len() as u32;
        let mut bytes = index.to_le_bytes().to_vec();
        bytes.extend((HEAD..len.max(HEAD)).map(|at| pattern(index, at)));
        Rc::new(bytes)
    }

    /// The last payload was accepted.
    pub(crate) fn accepted(&mut self, stream: Stream, known: u32) {
        let number = self.numbers.entry(stream).or_default();
        *number += 1;
        self.sent.push(Sent { stream, number: *number, known, delivered: 0, end: None });
    }

    pub(crate) fn next_cookie(&self) -> u32 {
        self.sent.len() as u32
    }

    /// `incarnations`: the present ones. `strictly`: also not twice to different incarnations of the receiver, nor from
    /// a incarnation of the sender that is over.
    pub(crate) fn delivered(
        &mut self,
        at: (usize, u16),
        incarnations: &[u32],
        bytes: &[u8],
        strictly: bool,
    ) {
        let index = u32::from_le_bytes(bytes[..HEAD].try_into().expect("four bytes"));
        let intact =
            bytes.iter().enumerate().skip(HEAD).all(|(at, byte)| *byte == pattern(index, at));
        assert!(intact, "message {index} has other bytes than were sent");
        let sent = &mut self.sent[index as usize];
        let stream = sent.stream;
        assert_eq!((stream.to, stream.port), at, "message {index} went astray");
        sent.delivered += 1;
        assert!(
            !strictly || sent.delivered == 1,
            "message {index} of {stream:?} came to two incarnations"
        );
        let last = self.last.entry((stream, incarnations[at.0])).or_default();
        let number = sent.number;
        if !strictly && incarnations[stream.from] != stream.incarnation {
            return;
        }
        assert!(*last < number, "number {number} of {stream:?} came after {last}, message {index}");
        *last = number;
    }

    pub(crate) fn completed(&mut self, cookie: u32, payload: Payload, end: End) {
        assert_eq!(payload[..HEAD], cookie.to_le_bytes(), "a cookie came with another's payload");
        assert_eq!(Rc::strong_count(&payload), 1, "message {cookie} is still lent");
        let before = self.sent[cookie as usize].end.replace(end);
        assert!(before.is_none(), "message {cookie} came back twice");
    }

    pub(crate) fn settled(&self, incarnations: &[u32]) -> bool {
        self.sent.iter().all(|sent| {
            sent.stream.incarnation != incarnations[sent.stream.from] || sent.end.is_some()
        })
    }

    /// At the end: what had to arrive did, and everything came back.
    /// `strictly`: also what is sent after the sender learned of the receiver's last restart.
    pub(crate) fn audit(&self, incarnations: &[u32], strictly: bool) {
        for (index, sent) in self.sent.iter().enumerate() {
            if sent.stream.incarnation != incarnations[sent.stream.from] {
                continue;
            }
            let end = sent.end.unwrap_or_else(|| panic!("message {index} never came back"));
            let receiver = incarnations[sent.stream.to];
            if sent.known == receiver && (strictly || receiver == 1) {
                assert_eq!(end, End::Acknowledged, "message {index}: nobody restarted");
                assert_eq!(sent.delivered, 1, "message {index} of {:?} was lost", sent.stream);
            }
        }
    }
}

fn pattern(index: u32, at: usize) -> u8 {
    (index as usize).wrapping_mul(31).wrapping_add(at.wrapping_mul(7)) as u8
}
