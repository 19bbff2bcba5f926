//! Extension headers: a type, and content whose length the type implies.

/// Bytes of a header for extensions.
pub const EXTENSIONS_LEN: usize = 16;

/// One extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Version of the protocol.
    Version(u32),
    /// Key of memory that RDMA has finished with.
    Rdma(u32),
    /// Key and offset of memory that RDMA may reach.
    RdmaDestination(u64),
    /// Bytes that RDMA moved, and padding.
    RdmaBytes(u64),
    /// How many lanes the sender can have.
    Paths(u16),
    /// Random number of this incarnation of the sender; another one means that it has restarted.
    Generation(u32),
    /// The sender chooses TCP source ports that encode the lane.
    SourcePortIndex(u8),
}

/// An extension that the header's end cuts off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an extension header of type {kind} is cut off by the end of the header")]
pub struct Truncated {
    /// Its type.
    pub kind: u8,
}

impl Extension {
    fn read(kind: u8, content: &[u8]) -> Option<Result<(Self, usize), Truncated>> {
        fn number<const N: usize>(content: &[u8]) -> Option<[u8; N]> {
            content.first_chunk().copied()
        }
        let u32 = || number(content).map(|bytes| (u32::from_be_bytes(bytes), 4));
        let u64 = || number(content).map(|bytes| (u64::from_be_bytes(bytes), 8));
        let found = match kind {
            1 => u32().map(|(value, len)| (Self::Version(value), len)),
            2 => u32().map(|(value, len)| (Self::Rdma(value), len)),
            3 => u64().map(|(value, len)| (Self::RdmaDestination(value), len)),
            4 => u64().map(|(value, len)| (Self::RdmaBytes(value), len)),
            5 => number(content).map(|bytes| (Self::Paths(u16::from_be_bytes(bytes)), 2)),
            6 => u32().map(|(value, len)| (Self::Generation(value), len)),
            8 => number(content).map(|[value]| (Self::SourcePortIndex(value), 1)),
            // The end, or a type of unknown length, behind which nothing can be found.
            _ => return None,
        };
        Some(found.ok_or(Truncated { kind }))
    }

    fn write(self, to: &mut [u8; EXTENSIONS_LEN], at: usize) -> usize {
        let mut put = |kind: u8, content: &[u8]| {
            to[at] = kind;
            to[at + 1..][..content.len()].copy_from_slice(content);
            at + 1 + content.len()
        };
        match self {
            Self::Version(value) => put(1, &value.to_be_bytes()),
            Self::Rdma(value) => put(2, &value.to_be_bytes()),
            Self::RdmaDestination(value) => put(3, &value.to_be_bytes()),
            Self::RdmaBytes(value) => put(4, &value.to_be_bytes()),
            Self::Paths(value) => put(5, &value.to_be_bytes()),
            Self::Generation(value) => put(6, &value.to_be_bytes()),
            Self::SourcePortIndex(value) => put(8, &[value]),
        }
    }
}

/// The extension headers of one header.
///
/// [`Header`](super::Header) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    bytes: [u8; EXTENSIONS_LEN],
}

impl Extensions {
    /// Any bytes from the wire; [`Extensions::iter`] judges them.
    pub fn from_bytes(bytes: [u8; EXTENSIONS_LEN]) -> Self {
        Self { bytes }
    }

    /// The given ones, in order.
    ///
    /// # Panics
    ///
    /// Where they take more than [`EXTENSIONS_LEN`] bytes.
    pub fn of(extensions: &[Extension]) -> Self {
        let mut bytes = [0; EXTENSIONS_LEN];
        extensions.iter().fold(0, |at, extension| extension.write(&mut bytes, at));
        Self { bytes }
    }

    /// As they are on the wire.
    pub fn as_bytes(&self) -> &[u8; EXTENSIONS_LEN] {
        &self.bytes
    }

    /// Each extension in order. Ends, as in the kernel, with type 0 and with an unknown type, whose length
    /// cannot be known; a cut-off one is an error and the last.
    pub fn iter(&self) -> impl Iterator<Item = Result<Extension, Truncated>> + '_ {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (&kind, content) = rest.split_first()?;
            let read = Extension::read(kind, content)?;
            rest = match read {
                Ok((_, len)) => &content[len..],
                Err(_) => &[],
            };
            Some(read.map(|(extension, _)| extension))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Vec<Result<Extension, Truncated>> {
        let mut whole = [0; EXTENSIONS_LEN];
        whole[..bytes.len()].copy_from_slice(bytes);
        Extensions::from_bytes(whole).iter().collect()
    }

    #[test]
    fn lengths_follow_from_types() {
        let extensions = read(&[1, 0, 0, 3, 1, 3, 0, 0, 0, 1, 0, 0, 0, 2]);
        let expected = [Extension::Version(0x301), Extension::RdmaDestination(0x1_0000_0002)];
        assert_eq!(extensions, expected.map(Ok));
        assert_eq!(read(&[2, 0, 0, 0, 9]), [Ok(Extension::Rdma(9))]);
        assert_eq!(read(&[4, 0, 0, 0, 9, 0, 0, 0, 0]), [Ok(Extension::RdmaBytes(9 << 32))]);
    }

    #[test]
    fn an_unknown_type_ends_them_and_a_cut_off_one_is_told() {
        assert_eq!(read(&[8, 3, 7, 5, 0, 8]), [Ok(Extension::SourcePortIndex(3))]);
        assert_eq!(read(&[0, 5, 0, 8]), []);
        let version = [1, 0, 0, 0, 0];
        let full = [&version[..], &version, &version, &[6]].concat();
        assert_eq!(read(&full)[3], Err(Truncated { kind: 6 }));
        assert_eq!(read(&full).len(), 4);
    }

    fn extension() -> impl Strategy<Value = Extension> {
        prop_oneof![
            any::<u32>().prop_map(Extension::Version),
            any::<u32>().prop_map(Extension::Rdma),
            any::<u64>().prop_map(Extension::RdmaDestination),
            any::<u64>().prop_map(Extension::RdmaBytes),
            any::<u16>().prop_map(Extension::Paths),
            any::<u32>().prop_map(Extension::Generation),
            any::<u8>().prop_map(Extension::SourcePortIndex),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(one in extension(), other in extension()) {
            let mut bytes = [0; EXTENSIONS_LEN];
            let written = if one.write(&mut bytes, 0) <= 7 { vec![one, other] } else { vec![one] };
            let read: Vec<_> = Extensions::of(&written).iter().map(Result::unwrap).collect();
            prop_assert_eq!(read, written);
        }

        #[test]
        fn any_bytes_end(bytes: [u8; EXTENSIONS_LEN]) {
            prop_assert!(Extensions::from_bytes(bytes).iter().count() <= EXTENSIONS_LEN);
        }
    }
}
