//! The protocol between two copies on a connection.
//!
//! Contracts:
//! - nothing is read or written here, and no memory is allocated because a peer says so: a decoder holds
//!   one frame header and, at most, one text of [`MAX_TEXT`] bytes;
//! - payload is not copied: the decoder says which of the given bytes are payload, and where in the
//!   transfer they belong;
//! - any bytes give frames, payload or a [`WireError`]; do not use a decoder after an error.
//!
//! A connection begins with a [`Hello`] of 40 bytes from the side that connected, answered by one
//! from the side that listened. Frames follow: from the sender [`Frame::Data`] with its payload, any
//! number, and [`Frame::Hole`] for bytes that are 0, on any of the transfer's connections, then [`Frame::End`] on each, or [`Frame::Abort`];
//! from the receiver one [`Frame::Answer`] on each, after any number of [`Frame::AtWork`]. All numbers are big-endian.

/// Begins each hello.
pub const MAGIC: [u8; 8] = *b"handoff\x01";
/// Bytes of a hello.
pub const HELLO_LEN: usize = 40;
/// Bytes of a frame without its payload or text.
pub const FRAME_LEN: usize = 24;
/// The longest text, in bytes.
pub const MAX_TEXT: usize = 512;
/// The most payload of one frame, in bytes.
pub const MAX_DATA: usize = 1 << 30;
/// The most connections of a transfer.
pub const MAX_STREAMS: u16 = 256;

/// The newest version of this protocol. 2 has holes and metadata; in 3 the receiver may say that it is at work. The side
/// that connects says which of the two it speaks, and the other answers in the same.
const VERSION: u8 = 3;
const OLDEST: u8 = 2;
const SENDS: u8 = 1;
const VERIFIES: u8 = 2;
const KNOWS_LENGTH: u8 = 4;
const SPARSE: u8 = 8;
const PRESERVES: u8 = 16;

const DATA: u8 = 1;
const END: u8 = 2;
const ABORT: u8 = 3;
const ANSWER: u8 = 4;
const HOLE: u8 = 5;
const ATTRIBUTES: u8 = 6;
const AT_WORK: u8 = 7;

/// What is wrong with a peer's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The first bytes are no hello.
    #[error(
        "what the peer sends does not come from `handoff cp` (with nc, socat and the like use --raw)"
    )]
    NotHandoff,
    /// The hello is of another version of this protocol.
    #[error(
        "the peer speaks version {0} of the protocol, and this is version {VERSION}: use the same handoff on both \
         sides"
    )]
    Version(u8),
    /// A field is out of its range; names it.
    #[error("the peer breaks the protocol: {0}")]
    Field(&'static str),
}

/// What each side says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Whether it will send; otherwise it receives.
    pub sends: bool,
    /// It wants the checksum. One side that does is enough.
    pub verifies: bool,
    /// Connections of the transfer, 1 to [`MAX_STREAMS`].
    pub streams: u16,
    /// Which of them this is, from 0.
    pub stream: u16,
    /// Chosen at random by the side that connects; the same on all connections of a transfer.
    pub transfer: u128,
    /// Bytes of the transfer, if the sender knows.
    pub length: Option<u64>,
    /// There are holes, so a copy needs less room than the length.
    pub sparse: bool,
    /// It wants a copy to keep the file's metadata. Both sides must.
    pub preserves: bool,
    /// It knows [`Frame::AtWork`].
    pub hears_work: bool,
}

impl Hello {
    /// Its form on the wire.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = if self.hears_work { VERSION } else { OLDEST };
        bytes[9] = if self.sends { SENDS } else { 0 }
            | if self.verifies { VERIFIES } else { 0 }
            | if self.length.is_some() { KNOWS_LENGTH } else { 0 }
            | if self.sparse { SPARSE } else { 0 }
            | if self.preserves { PRESERVES } else { 0 };
        bytes[10..12].copy_from_slice(&self.streams.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.stream.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.transfer.to_be_bytes());
        bytes[32..].copy_from_slice(&self.length.unwrap_or(0).to_be_bytes());
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// Another program's bytes, another version, a field out of range.
    pub fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, WireError> {
        if bytes[..8] != MAGIC {
            return Err(WireError::NotHandoff);
        }
        if !(OLDEST..=VERSION).contains(&bytes[8]) {
            return Err(WireError::Version(bytes[8]));
        }
        let flags = bytes[9];
        let length = u64_at(bytes, 32);
        let hello = Self {
            sends: flags & SENDS != 0,
            verifies: flags & VERIFIES != 0,
            streams: u16_at(bytes, 10),
            stream: u16_at(bytes, 12),
            transfer: (u128::from(u64_at(bytes, 16)) << 64) | u128::from(u64_at(bytes, 24)),
            length: (flags & KNOWS_LENGTH != 0).then_some(length),
            sparse: flags & SPARSE != 0,
            preserves: flags & PRESERVES != 0,
            hears_work: bytes[8] > OLDEST,
        };
        if flags > SENDS | VERIFIES | KNOWS_LENGTH | SPARSE | PRESERVES || bytes[14..16] != [0, 0] {
            return Err(WireError::Field("unknown flags in its hello"));
        }
        if hello.streams == 0 || hello.streams > MAX_STREAMS || hello.stream >= hello.streams {
            return Err(WireError::Field("the number of its streams"));
        }
        if length > i64::MAX as u64 || (hello.length.is_none() && length != 0) {
            return Err(WireError::Field("the length of the transfer"));
        }
        Ok(hello)
    }
}

/// A file's metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// When it was last changed: seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds, below a second.
    pub nanoseconds: u32,
    /// Permission bits, without set-user-ID and the like.
    pub mode: u32,
}

/// What follows the hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// `len` bytes of payload follow, which belong at `offset`.
    Data {
        /// Where in the transfer, in bytes.
        offset: u64,
        /// How many bytes, 1 to [`MAX_DATA`].
        len: u32,
    },
    /// `len` bytes from `offset` on are 0, and the source has no room for them.
    Hole {
        /// Where in the transfer, in bytes.
        offset: u64,
        /// How many bytes, above 0.
        len: u64,
    },
    /// The source's metadata, before the end, if both sides want a copy to keep them.
    Attributes(Attributes),
    /// The sender has sent all.
    End {
        /// Bytes of the whole transfer.
        bytes: u64,
        /// Their checksum, if one side wants it.
        checksum: Option<u64>,
    },
    /// The sender gives up.
    Abort {
        /// Why.
        reason: String,
    },
    /// The receiver still writes what has come.
    AtWork,
    /// The receiver has everything in place, or failed.
    Answer {
        /// Bytes received.
        bytes: u64,
        /// Their checksum, or why the receiver failed.
        outcome: Result<Option<u64>, String>,
    },
}

impl Frame {
    /// Its form on the wire, without the payload of [`Frame::Data`]. Texts are cut to [`MAX_TEXT`].
    pub fn encode(&self) -> Vec<u8> {
        let (kind, flags, a, b, text) = match self {
            Self::Data { offset, len } => return Self::data(*offset, *len).to_vec(),
            Self::Hole { offset, len } => (HOLE, 0, *offset, *len, ""),
            Self::Attributes(Attributes { seconds, nanoseconds, mode }) => {
                let low = u64::from(*nanoseconds) << 32 | u64::from(*mode);
                (ATTRIBUTES, 0, *seconds as u64, low, "")
            }
            Self::End { bytes, checksum } => {
                (END, u8::from(checksum.is_some()), *bytes, checksum.unwrap_or(0), "")
            }
            Self::Abort { reason } => (ABORT, 0, 0, 0, reason.as_str()),
            Self::AtWork => (AT_WORK, 0, 0, 0, ""),
            Self::Answer { bytes, outcome: Ok(checksum) } => {
                (ANSWER, u8::from(checksum.is_some()), *bytes, checksum.unwrap_or(0), "")
            }
            Self::Answer { bytes, outcome: Err(reason) } => (ANSWER, 2, *bytes, 0, reason.as_str()),
        };
        let text = cut(text, MAX_TEXT);
        let mut all = header(kind, flags, text.len() as u32, a, b).to_vec();
        all.extend_from_slice(text.as_bytes());
        all
    }

    /// The header of `len` bytes of payload for `offset`.
    pub fn data(offset: u64, len: u32) -> [u8; FRAME_LEN] {
        header(DATA, 0, len, offset, 0)
    }

    /// Reads a header; the text comes later.
    fn decode(bytes: &[u8; FRAME_LEN]) -> Result<(Self, usize), WireError> {
        let (kind, flags) = (bytes[0], bytes[1]);
        let len = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let (a, b) = (u64_at(bytes, 8), u64_at(bytes, 16));
        let most_flags = match kind {
            DATA | ABORT | HOLE | ATTRIBUTES | AT_WORK => 0,
            END => 1,
            ANSWER => 2,
            _ => return Err(WireError::Field("a frame of an unknown kind")),
        };
        if flags > most_flags || bytes[2..4] != [0, 0] {
            return Err(WireError::Field("unknown flags in a frame"));
        }
        let checksum = (flags == 1).then_some(b);
        let (frame, text) = match kind {
            DATA => {
                let in_range = (1..=MAX_DATA).contains(&(len as usize));
                if !in_range
                    || a.checked_add(u64::from(len)).is_none_or(|end| end > i64::MAX as u64)
                {
                    return Err(WireError::Field("the place of a piece"));
                }
                return Ok((Self::Data { offset: a, len }, 0));
            }
            HOLE => {
                if b == 0 || a.checked_add(b).is_none_or(|end| end > i64::MAX as u64) {
                    return Err(WireError::Field("the place of a hole"));
                }
                (Self::Hole { offset: a, len: b }, 0)
            }
            ATTRIBUTES => {
                let (nanoseconds, mode) = ((b >> 32) as u32, b as u32);
                if nanoseconds >= 1_000_000_000 || mode > 0o777 {
                    return Err(WireError::Field("the attributes of its file"));
                }
                (Self::Attributes(Attributes { seconds: a as i64, nanoseconds, mode }), 0)
            }
            END => (Self::End { bytes: a, checksum }, 0),
            ABORT => (Self::Abort { reason: String::new() }, MAX_TEXT),
            AT_WORK => (Self::AtWork, 0),
            _ if flags == 2 => (Self::Answer { bytes: a, outcome: Err(String::new()) }, MAX_TEXT),
            _ => (Self::Answer { bytes: a, outcome: Ok(checksum) }, 0),
        };
        if len as usize > text {
            return Err(WireError::Field("the length of a text"));
        }
        Ok((frame, len as usize))
    }

    fn set_text(&mut self, bytes: &[u8]) {
        // It is shown on a terminal, so it must not control one.
        let text = String::from_utf8_lossy(bytes).replace(char::is_control, " ");
        if let Self::Abort { reason } | Self::Answer { outcome: Err(reason), .. } = self {
            *reason = text;
        }
    }
}

/// The beginning of a text, of at most so many bytes.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn header(kind: u8, flags: u8, len: u32, a: u64, b: u64) -> [u8; FRAME_LEN] {
    let mut bytes = [0; FRAME_LEN];
    bytes[0] = kind;
    bytes[1] = flags;
    bytes[4..8].copy_from_slice(&len.to_be_bytes());
    bytes[8..16].copy_from_slice(&a.to_be_bytes());
    bytes[16..].copy_from_slice(&b.to_be_bytes());
    bytes
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |value, byte| (value << 8) | u64::from(*byte))
}

/// What the first of the given bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// They end a frame. After [`Frame::Data`] its payload follows.
    Frame(Frame),
    /// All of them are payload of one frame.
    Payload {
        /// Where the first of them belongs.
        offset: u64,
        /// Whether they complete the frame's payload.
        last: bool,
    },
}

/// Parses a connection's bytes, as they come in pieces of any size.
#[derive(Debug, Default)]
pub struct Decoder {
    header: Vec<u8>,
    /// A frame whose text is not complete.
    text: Option<(Frame, usize)>,
    /// Where the next byte of payload belongs, and how many are left.
    payload: (u64, u32),
}

impl Decoder {
    /// For a connection whose hellos are over.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the bytes so far end with a whole frame.
    pub fn is_between_frames(&self) -> bool {
        self.header.is_empty() && self.text.is_none() && self.payload.1 == 0
    }

    /// How many bytes complete the header, the text or the payload that is under way, and whether it is payload.
    pub fn wanted(&self) -> (usize, bool) {
        match (self.payload.1, &self.text) {
            (0, Some((_, len))) => (FRAME_LEN + len - self.header.len(), false),
            (0, None) => (FRAME_LEN - self.header.len(), false),
            (left, _) => (left as usize, true),
        }
    }

    /// Takes bytes from the front of `input`: returns how many, and what they are with those before. `None`
    /// if a frame is not complete yet; then all were taken.
    ///
    /// # Errors
    ///
    /// Bytes that are no frame.
    pub fn next(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), WireError> {
        if input.is_empty() {
            return Ok((0, None));
        }
        if self.payload.1 > 0 {
            let (offset, left) = self.payload;
            let taken = input.len().min(left as usize);
            self.payload = (offset + taken as u64, left - taken as u32);
            let last = self.payload.1 == 0;
            return Ok((taken, Some(Event::Payload { offset, last })));
        }
        let wanted = FRAME_LEN + self.text.as_ref().map_or(0, |(_, len)| *len);
        let mut taken = self.gather(input, wanted);
        if self.text.is_none() {
            let Some(header) = self.header.first_chunk() else { return Ok((taken, None)) };
            let (frame, text) = Frame::decode(header)?;
            if text == 0 {
                if let Frame::Data { offset, len } = frame {
                    self.payload = (offset, len);
                }
                self.header.clear();
                return Ok((taken, Some(Event::Frame(frame))));
            }
            self.text = Some((frame, text));
            taken += self.gather(&input[taken..], FRAME_LEN + text);
        }
        let Some((mut frame, len)) = self.text.take() else { return Ok((taken, None)) };
        if self.header.len() < FRAME_LEN + len {
            self.text = Some((frame, len));
            return Ok((taken, None));
        }
        frame.set_text(&self.header[FRAME_LEN..]);
        self.header.clear();
        Ok((taken, Some(Event::Frame(frame))))
    }

    /// Adds what is missing to `wanted` bytes; returns how many there were.
    fn gather(&mut self, input: &[u8], wanted: usize) -> usize {
        let taken = input.len().min(wanted - self.header.len());
        self.header.extend_from_slice(&input[..taken]);
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let text = "[a-z é]{0,300}";
        prop_oneof![
            (0..1u64 << 40, 1..2000u32).prop_map(|(offset, len)| Frame::Data { offset, len }),
            (0..1u64 << 40, 1..1u64 << 40).prop_map(|(offset, len)| Frame::Hole { offset, len }),
            (any::<i64>(), 0..1_000_000_000u32, 0..0o1000u32).prop_map(
                |(seconds, nanoseconds, mode)| {
                    Frame::Attributes(Attributes { seconds, nanoseconds, mode })
                }
            ),
            (any::<u64>(), any::<Option<u64>>())
                .prop_map(|(bytes, checksum)| Frame::End { bytes, checksum }),
            text.prop_map(|reason| Frame::Abort { reason }),
            Just(Frame::AtWork),
            (any::<u64>(), any::<Option<u64>>())
                .prop_map(|(bytes, sum)| Frame::Answer { bytes, outcome: Ok(sum) }),
            (any::<u64>(), text)
                .prop_map(|(bytes, text)| Frame::Answer { bytes, outcome: Err(text) }),
        ]
    }

    /// Frames, payload with its offsets, and whether the bytes end between frames.
    type Decoded = (Vec<Frame>, Vec<(u64, u8)>, bool);

    /// Feeds `stream` in pieces that end at `cuts`.
    fn decode(stream: &[u8], cuts: &[usize]) -> Result<Decoded, WireError> {
        let mut decoder = Decoder::new();
        let (mut frames, mut payload) = (Vec::new(), Vec::new());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        for ends in cuts.windows(2) {
            let mut piece = &stream[ends[0]..ends[1]];
            while !piece.is_empty() {
                let (wanted, is_payload) = decoder.wanted();
                let (taken, event) = decoder.next(piece)?;
                assert!(taken > 0, "it goes forward");
                assert_eq!(matches!(event, Some(Event::Payload { .. })), is_payload);
                if taken <= wanted {
                    let ends = matches!(event, Some(Event::Payload { last: true, .. }));
                    assert_eq!(ends, is_payload && taken == wanted);
                }
                match event {
                    Some(Event::Frame(frame)) => frames.push(frame),
                    Some(Event::Payload { offset, .. }) => {
                        payload.extend((offset..).zip(piece[..taken].iter().copied()));
                    }
                    None => assert_eq!(taken, piece.len()),
                }
                piece = &piece[taken..];
            }
        }
        Ok((frames, payload, decoder.is_between_frames()))
    }

    proptest! {
        #[test]
        fn hellos_come_back(
            sends: bool, verifies: bool, streams in 1..=MAX_STREAMS, stream: prop::sample::Index,
            transfer: u128, length in prop::option::of(0..=i64::MAX as u64), sparse: bool,
            preserves: bool, hears_work: bool,
        ) {
            let stream = stream.index(usize::from(streams)) as u16;
            let hello = Hello {
                sends, verifies, streams, stream, transfer, length, sparse, preserves, hears_work,
            };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }

        #[test]
        fn any_hello_is_read_or_refused(mut bytes: [u8; HELLO_LEN], ours: bool) {
            if ours {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8] = VERSION;
            }
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(hello.encode(), bytes);
            }
        }

        #[test]
        fn frames_come_back_however_they_are_cut(
            sent in prop::collection::vec(frames(), 0..20),
            cuts in prop::collection::vec(any::<usize>(), 0..20),
        ) {
            let (mut stream, mut payload) = (Vec::new(), Vec::new());
            for frame in &sent {
                stream.extend(frame.encode());
                if let Frame::Data { offset, len } = frame {
                    for place in *offset..*offset + u64::from(*len) {
                        stream.push(place as u8);
                        payload.push((place, place as u8));
                    }
                }
            }
            let (frames, got, whole) = decode(&stream, &cuts).unwrap();
            prop_assert_eq!(frames, sent);
            prop_assert_eq!(got, payload);
            prop_assert!(whole);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(
            kind in 0u8..8,
            mut stream in prop::collection::vec(any::<u8>(), 0..200),
            cuts in prop::collection::vec(any::<usize>(), 0..5),
        ) {
            // The first header may be one.
            if let Some(header) = stream.first_chunk_mut::<7>() {
                *header = [kind, 0, 0, 0, 0, 0, 0];
            }
            let whole = decode(&stream, &[]);
            prop_assert_eq!(decode(&stream, &cuts), whole, "the cuts do not matter");
        }
    }

    #[test]
    fn a_text_does_not_steer_the_terminal_and_has_an_end() {
        let frame = Frame::Abort { reason: format!("\x1b[2J\n{}", "é".repeat(400)) };
        let (frames, ..) = decode(&frame.encode(), &[30]).unwrap();
        let Frame::Abort { reason } = &frames[0] else { panic!("{frames:?}") };
        assert!(reason.len() <= MAX_TEXT && !reason.contains(char::is_control), "{reason:?}");
        let mut long = frame.encode();
        long[4..8].copy_from_slice(&(MAX_TEXT as u32 + 1).to_be_bytes());
        assert_eq!(decode(&long, &[]), Err(WireError::Field("the length of a text")));
    }
}
