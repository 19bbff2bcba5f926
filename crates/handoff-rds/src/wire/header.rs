//! The header of a frame.

use super::{EXTENSIONS_LEN, Extensions};

/// Bytes of a header on the wire.
pub const HEADER_LEN: usize = 48;

/// A header, parsed.
///
/// Over TCP `ack`, `credit` and `checksum` are 0 and mean nothing.
///
/// ```
/// use handoff_rds::wire::{Extension, Extensions, Header};
///
/// let header = Header {
///     sequence: 1,
///     ack: 0,
///     len: 5,
///     source: 4000,
///     destination: 4000,
///     flags: 0,
///     credit: 0,
///     checksum: 0,
///     extensions: Extensions::of(&[Extension::Generation(7)]),
/// };
/// assert_eq!(Header::parse(&header.to_bytes()), header);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Number of the message on its lane, from 1; 0 for congestion maps.
    pub sequence: u64,
    /// Unused over TCP.
    pub ack: u64,
    /// Bytes of payload that follow, as the sender says.
    pub len: u32,
    /// Port of the sending socket; 0 in a pong.
    pub source: u16,
    /// Port of the receiving socket; 0 in a ping.
    pub destination: u16,
    /// Flags; unknown ones are kept.
    pub flags: u8,
    /// Unused over TCP.
    pub credit: u8,
    /// Unused over TCP.
    pub checksum: u16,
    /// Extension headers.
    pub extensions: Extensions,
}

/// Takes the next bytes, as many as the caller's type has.
fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let (head, rest) = bytes.split_first_chunk().expect("the fields add up to the header's length");
    *bytes = rest;
    *head
}

impl Header {
    /// Reads a header; any bytes are one.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Self {
        let mut rest = &bytes[..];
        let sequence = u64::from_be_bytes(take(&mut rest));
        let ack = u64::from_be_bytes(take(&mut rest));
        let len = u32::from_be_bytes(take(&mut rest));
        let source = u16::from_be_bytes(take(&mut rest));
        let destination = u16::from_be_bytes(take(&mut rest));
        let [flags, credit] = take(&mut rest);
        let _padding: [u8; 4] = take(&mut rest);
        let checksum = u16::from_be_bytes(take(&mut rest));
        let extensions = Extensions::from_bytes(take::<EXTENSIONS_LEN>(&mut rest));
        Self { sequence, ack, len, source, destination, flags, credit, checksum, extensions }
    }

    /// The header's bytes; padding is 0.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.ack.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.source.to_be_bytes());
        bytes[22..24].copy_from_slice(&self.destination.to_be_bytes());
        bytes[24] = self.flags;
        bytes[25] = self.credit;
        bytes[30..32].copy_from_slice(&self.checksum.to_be_bytes());
        bytes[32..].copy_from_slice(self.extensions.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Extension, FLAG_RETRANSMITTED};

    /// A probe with its three extensions, byte by byte as the kernel lays it out.
    const PROBE: [u8; HEADER_LEN] = [
        0, 0, 0, 0, 0, 0, 0, 0x2a, // sequence
        0, 0, 0, 0, 0, 0, 0, 0, // ack
        0, 0, 0, 0, // len
        0, 1, 0, 0, // source, destination
        4, 0, 0, 0, 0, 0, 0, 0, // flags, credit, padding, checksum
        5, 0, 8, // NPATHS
        6, 0xde, 0xad, 0xbe, 0xef, // GEN_NUM
        8, 0, // SPORT_IDX
        0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn a_probe_is_read_and_written_as_the_kernel_lays_it_out() {
        let header = Header::parse(&PROBE);
        assert_eq!((header.sequence, header.len), (42, 0));
        assert_eq!((header.source, header.destination), (1, 0));
        assert_eq!(header.flags, FLAG_RETRANSMITTED);
        let extensions: Vec<_> = header.extensions.iter().map(Result::unwrap).collect();
        let expected = [
            Extension::Paths(8),
            Extension::Generation(0xdead_beef),
            Extension::SourcePortIndex(0),
        ];
        assert_eq!(extensions, expected);
        let written = Header {
            sequence: 42,
            source: 1,
            flags: FLAG_RETRANSMITTED,
            extensions: Extensions::of(&expected),
            ..Header::default()
        };
        assert_eq!(written.to_bytes(), PROBE);
    }

    #[test]
    fn each_field_has_its_place() {
        let mut bytes = [0; HEADER_LEN];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let header = Header::parse(&bytes);
        assert_eq!(header.sequence, 0x0001_0203_0405_0607);
        assert_eq!(header.ack, 0x0809_0a0b_0c0d_0e0f);
        assert_eq!(header.len, 0x1011_1213);
        assert_eq!((header.source, header.destination), (0x1415, 0x1617));
        assert_eq!((header.flags, header.credit, header.checksum), (0x18, 0x19, 0x1e1f));
        assert_eq!(header.extensions.as_bytes()[..2], [0x20, 0x21]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            numbers: (u64, u64, u32, u16, u16, u8, u8, u16),
            extensions: [u8; EXTENSIONS_LEN],
        ) {
            let (sequence, ack, len, source, destination, flags, credit, checksum) = numbers;
            let extensions = Extensions::from_bytes(extensions);
            let header = Header {
                sequence, ack, len, source, destination, flags, credit, checksum, extensions,
            };
            prop_assert_eq!(Header::parse(&header.to_bytes()), header);
        }

        #[test]
        fn any_bytes_are_a_header(halves: ([u8; 32], [u8; 16])) {
            let mut bytes = [0; HEADER_LEN];
            bytes[..32].copy_from_slice(&halves.0);
            bytes[32..].copy_from_slice(&halves.1);
            let header = Header::parse(&bytes);
            // One byte each for the type, so there cannot be more.
            prop_assert!(header.extensions.iter().count() <= EXTENSIONS_LEN);
            bytes[26..30].fill(0);
            prop_assert_eq!(header.to_bytes(), bytes);
        }
    }
}
