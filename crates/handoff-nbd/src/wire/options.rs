//! The data of options that have some.

use super::{InfoType, NameError, Reader, check_name};

/// Why the data of an option or of a reply cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A length points beyond the end, or bytes are left over.
    #[error("its lengths do not fit")]
    Length,
    /// A name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// More than the limit allows.
    #[error("it asks for too much at once")]
    TooMany,
}

/// The data of [`OptionCode::Info`](super::OptionCode::Info) and [`OptionCode::Go`](super::OptionCode::Go).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoRequest {
    /// The export; empty for the default one.
    pub name: String,
    /// What the client wants to know.
    pub infos: Vec<InfoType>,
}

impl InfoRequest {
    /// Its form on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = counted(&self.name);
        bytes.extend(u16::try_from(self.infos.len()).unwrap_or(u16::MAX).to_be_bytes());
        for info in self.infos.iter().take(usize::from(u16::MAX)) {
            bytes.extend(u16::from(*info).to_be_bytes());
        }
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// Lengths that do not fit, a name that is none, or more than `most` infos.
    pub fn decode(data: &[u8], most: usize) -> Result<Self, Malformed> {
        let mut reader = Reader(data);
        let name = check_name(reader.counted().ok_or(Malformed::Length)?)?.to_owned();
        let count = usize::from(reader.u16().ok_or(Malformed::Length)?);
        if reader.0.len() != 2 * count {
            return Err(Malformed::Length);
        }
        if count > most {
            return Err(Malformed::TooMany);
        }
        let infos = std::iter::from_fn(|| reader.u16()).map(InfoType::from).collect();
        Ok(Self { name, infos })
    }
}

/// The data of [`OptionCode::ListMetaContext`](super::OptionCode::ListMetaContext) and
/// [`OptionCode::SetMetaContext`](super::OptionCode::SetMetaContext).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest {
    /// The export.
    pub name: String,
    /// Which contexts: names, or a namespace with its colon.
    pub queries: Vec<String>,
}

impl MetaRequest {
    /// Its form on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = counted(&self.name);
        bytes.extend(u32::try_from(self.queries.len()).unwrap_or(u32::MAX).to_be_bytes());
        for query in &self.queries {
            bytes.extend(counted(query));
        }
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// Lengths that do not fit, a name or query that is none, or more than `most` queries.
    pub fn decode(data: &[u8], most: usize) -> Result<Self, Malformed> {
        let mut reader = Reader(data);
        let name = check_name(reader.counted().ok_or(Malformed::Length)?)?.to_owned();
        let count = reader.u32().ok_or(Malformed::Length)?;
        // Each query has a length, so what came bounds the number before it is believed.
        if u64::from(count) * 4 > reader.0.len() as u64 {
            return Err(Malformed::Length);
        }
        if count as usize > most {
            return Err(Malformed::TooMany);
        }
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(check_name(reader.counted().ok_or(Malformed::Length)?)?.to_owned());
        }
        if reader.0.is_empty() { Ok(Self { name, queries }) } else { Err(Malformed::Length) }
    }
}

/// Who a client is, the data of [`OptionCode::Session`](super::OptionCode::Session).
///
/// Before a server accepts a newer turn of a token, it ends the connections of older turns and their requests. So
/// no request of an older turn is carried out after the client has sent it again. The connections of one turn live side by
/// side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Chosen at random by the client, once for a device.
    pub token: u128,
    /// Counts up each time the client begins anew.
    pub turn: u64,
}

impl Session {
    /// Bytes of its form on the wire.
    pub const LEN: usize = 24;

    /// Its form on the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.token.to_be_bytes());
        bytes[16..].copy_from_slice(&self.turn.to_be_bytes());
        bytes
    }

    /// Reads one; `None` where the length is another.
    pub fn decode(data: &[u8]) -> Option<Self> {
        let mut reader = Reader(data);
        let session = Self { token: reader.u128()?, turn: reader.u64()? };
        reader.0.is_empty().then_some(session)
    }
}

fn counted(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
