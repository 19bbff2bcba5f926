//! What must come back of what was lent: the bytes, their place, and what the peer may have got.

use std::collections::HashSet;

use handoff::{Buffer, Error, SharedBuffer, Span};

use crate::traffic::pattern;

/// Where bytes lie.
pub(crate) type Place = (usize, usize);

/// The bytes of a message; the first byte tells messages apart.
pub(crate) fn content(id: usize, len: usize) -> Vec<u8> {
    let mut bytes = pattern(id, len);
    if let Some(first) = bytes.first_mut() {
        *first = id as u8;
    }
    bytes
}

/// The result of a message.
#[derive(Debug)]
pub(crate) enum Ending {
    /// Nobody has asked yet, or can: the handle was dropped.
    Unknown,
    Known(Result<usize, Error>),
}

/// One message and its buffers.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) bytes: Vec<u8>,
    /// Of the bytes, those copied from a header.
    pub(crate) header: usize,
    pub(crate) places: Vec<Place>,
    pub(crate) ending: Ending,
    pub(crate) cancelled: bool,
}

/// What is on loan, and must come back once.
#[derive(Debug, Default)]
pub(crate) struct Out(HashSet<Place>);

impl Out {
    pub(crate) fn lend(&mut self, places: &[Place]) {
        for place in places.iter().filter(|place| place.1 > 0) {
            assert!(self.0.insert(*place), "{place:x?} is on loan already");
        }
    }

    pub(crate) fn back(&mut self, places: &[Place]) {
        for place in places.iter().filter(|place| place.1 > 0) {
            assert!(self.0.remove(place), "{place:x?} is back and was not out");
        }
    }
}

/// Any buffers that came back.
#[derive(Debug)]
pub(crate) enum Back {
    Buffers(Vec<Buffer>),
    Owned(Box<[u8]>),
    Shared(SharedBuffer),
    AddressRange(Span),
    /// Of the kernel: nobody can look at it.
    #[cfg(feature = "getbuf")]
    Lease(handoff::Lease),
}

impl From<Buffer> for Back {
    fn from(buffer: Buffer) -> Self {
        Self::Buffers(vec![buffer])
    }
}

impl From<Vec<Buffer>> for Back {
    fn from(buffers: Vec<Buffer>) -> Self {
        Self::Buffers(buffers)
    }
}

impl From<Box<[u8]>> for Back {
    fn from(bytes: Box<[u8]>) -> Self {
        Self::Owned(bytes)
    }
}

impl From<SharedBuffer> for Back {
    fn from(buffer: SharedBuffer) -> Self {
        Self::Shared(buffer)
    }
}

impl From<Span> for Back {
    fn from(span: Span) -> Self {
        Self::AddressRange(span)
    }
}

#[cfg(feature = "getbuf")]
impl From<handoff::Lease> for Back {
    fn from(lease: handoff::Lease) -> Self {
        Self::Lease(lease)
    }
}

pub(crate) fn place(bytes: &[u8]) -> Place {
    (bytes.as_ptr().addr(), bytes.len())
}

impl Back {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Buffers(buffers) => buffers.iter().flat_map(|it| it.iter().copied()).collect(),
            Self::Owned(bytes) => bytes.to_vec(),
            Self::Shared(buffer) => {
                let mut bytes = vec![0; buffer.len()];
                buffer.view().read(0, &mut bytes);
                bytes
            }
            Self::AddressRange(span) => span.to_vec(),
            #[cfg(feature = "getbuf")]
            Self::Lease(lease) => panic!("the bytes of {lease:?} are the kernel's"),
        }
    }

    /// Shared memory and the kernel's do not show where they lie.
    pub(crate) fn places(&self) -> Vec<Place> {
        match self {
            Self::Buffers(buffers) => buffers.iter().map(|it| place(it)).collect(),
            Self::Owned(bytes) => vec![place(bytes)],
            Self::Shared(_) => Vec::new(),
            Self::AddressRange(span) => vec![place(span)],
            #[cfg(feature = "getbuf")]
            Self::Lease(_) => Vec::new(),
        }
    }
}

impl Message {
    /// What came back is what was lent, unchanged.
    pub(crate) fn check_back(&self, back: &Back) {
        assert_eq!(back.places(), self.places, "other buffers came back");
        #[cfg(feature = "getbuf")]
        if let Back::Lease(lease) = back {
            assert_eq!(lease.len(), self.bytes.len() - self.header, "another lease came back");
            return;
        }
        assert!(back.bytes() == self.bytes[self.header..], "a buffer was changed while on loan");
    }
}

/// What else is known of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    /// The last driver went while sends may have been under way.
    pub(crate) driver_gone: bool,
    /// The peer closed its end.
    pub(crate) peer_gone: bool,
    /// The peer has read all that will come.
    pub(crate) complete: bool,
}

/// The peer of a stream got the messages in order: whole, except those that were ended early.
pub(crate) fn check_stream<'a>(
    messages: impl IntoIterator<Item = &'a Message>,
    got: &[u8],
    circumstances: Circumstances,
) {
    let Circumstances { driver_gone, peer_gone, complete } = circumstances;
    let (mut at, mut broken) = (0, false);
    for (number, message) in messages.into_iter().enumerate() {
        let (rest, total) = (&got[at..], message.bytes.len());
        let same = rest.iter().zip(&message.bytes).take_while(|(got, sent)| got == sent).count();
        let unread = same == rest.len() && (!complete || peer_gone);
        let taken = match &message.ending {
            Ending::Known(Ok(taken)) => {
                assert_eq!(*taken, total, "message {number} is sent in part");
                assert!(same == total || unread, "message {number} differs at {same} of {total}");
                same
            }
            Ending::Known(Err(Error::Canceled { done })) => {
                assert!(message.cancelled || driver_gone, "message {number} ended unasked");
                assert!(same >= *done || unread, "message {number} has {same} of {done} bytes");
                same.min(*done)
            }
            Ending::Known(Err(Error::StreamBroken { .. })) => {
                assert!(broken || unread, "message {number} stands behind one that is whole");
                0
            }
            ending => {
                let early = message.cancelled || broken || driver_gone || peer_gone || unread;
                assert!(same == total || early, "message {number}, {ending:?}: {same} of {total}");
                same
            }
        };
        assert!(!broken || taken == 0, "message {number} follows one that stopped midway");
        broken |= taken > 0 && taken < total;
        at += taken;
    }
    assert_eq!(at, got.len(), "the peer got more than was sent");
}
