//! Whose connections are counted together.

use std::net::IpAddr;

use handoff::Client;

/// Whose connections are counted together: those of an address, or of a user of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    Address(IpAddr),
    User(u32),
}

impl From<Client> for Who {
    fn from(client: Client) -> Self {
        match client {
            Client::Tcp(address) => Self::Address(address.ip().to_canonical()),
            Client::Unix(process) => Self::User(process.uid),
        }
    }
}
