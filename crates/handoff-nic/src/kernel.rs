//! The sockets that talk to the kernel about one network namespace.
//!
//! They stay in the namespace of the thread that opened them, so any thread can put back what was
//! prepared there. Interfaces are named by their index, which a renaming does not change.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use handoff_sys::ethtool as abi;
use handoff_sys::netdev;
use handoff_sys::netlink::{Attributes, Generic, Netlink, Refusal};
use handoff_sys::netns;
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::Error;
use crate::namespace::Namespace;

#[derive(Debug)]
struct Sockets {
    route: Netlink,
    generic: Netlink,
    ethtool: u16,
    /// `None` where the kernel lacks the family.
    netdev: Option<u16>,
}

/// One network namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    sockets: Mutex<Sockets>,
    plain: OwnedFd,
    pub(crate) namespace: Namespace,
    /// Identifies the namespace, also beside those that are gone.
    pub(crate) netns: u64,
}

impl Kernel {
    /// The calling thread's namespace.
    pub(crate) fn open() -> Result<Self, Error> {
        let mut generic = Netlink::generic().map_err(Error::doing("opening a netlink socket"))?;
        let ethtool = generic.family(abi::GENL_NAME).map_err(|refusal| {
            let reason = format!("the kernel has no ethtool over netlink: {refusal}");
            Error::NotPossible { reason, source: Some(refusal.error) }
        })?;
        let netdev = match generic.family(netdev::FAMILY) {
            Err(refusal) if refusal.is(Errno::NOENT.raw_os_error()) => None,
            id => Some(id.map_err(Error::doing("looking for the netdev family"))?),
        };
        let route = Netlink::route().map_err(Error::doing("opening a netlink socket"))?;
        let plain = socket(AddressFamily::INET, SocketType::DGRAM, None)
            .map_err(|errno| Error::doing("opening a socket")(std::io::Error::from(errno)))?;
        let namespace =
            Namespace::here().map_err(Error::doing("looking at the network namespace"))?;
        // Linux before 5.14 has none.
        let netns = netns::cookie(plain.as_fd()).unwrap_or(namespace.inode);
        let sockets = Mutex::new(Sockets { route, generic, ethtool, netdev });
        Ok(Self { sockets, plain, namespace, netns })
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        // A panicking holder left a question unanswered; that is harmless, since answers carry their
        // question's number.
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request over rtnetlink.
    pub(crate) fn route<T>(&self, ask: impl FnOnce(&mut Netlink) -> T) -> T {
        ask(&mut self.sockets().route)
    }

    /// Sends an ethtool command about one interface; `None` where the driver or the kernel lacks it.
    pub(crate) fn ethtool(
        &self,
        command: u8,
        attributes: Attributes,
    ) -> Result<Option<Vec<Attributes>>, Refusal> {
        self.ethtool_with(command, attributes, NLM_F_ACK)
    }

    /// As [`ethtool`](Self::ethtool), for commands that list.
    pub(crate) fn ethtool_dump(
        &self,
        command: u8,
        attributes: Attributes,
    ) -> Result<Option<Vec<Attributes>>, Refusal> {
        self.ethtool_with(command, attributes, NLM_F_DUMP)
    }

    fn ethtool_with(
        &self,
        command: u8,
        attributes: Attributes,
        flags: u16,
    ) -> Result<Option<Vec<Attributes>>, Refusal> {
        let mut sockets = self.sockets();
        let request = Generic::new(sockets.ethtool, command, attributes);
        match sockets.generic.ask(request, flags) {
            Err(refusal) if refusal.is(Errno::OPNOTSUPP.raw_os_error()) => Ok(None),
            answers => Ok(Some(answers?.into_iter().map(|answer| answer.attributes).collect())),
        }
    }

    /// Lists by a command of the netdev family; `None` where the kernel lacks that.
    pub(crate) fn netdev(
        &self,
        command: u8,
        attributes: Attributes,
    ) -> Result<Option<Vec<Attributes>>, Refusal> {
        let mut sockets = self.sockets();
        let Some(family) = sockets.netdev else { return Ok(None) };
        let request = Generic::new(family, command, attributes);
        let answers = sockets.generic.ask(request, NLM_F_DUMP)?;
        Ok(Some(answers.into_iter().map(|answer| answer.attributes).collect()))
    }

    /// Runs a command of the netdev family that changes something.
    pub(crate) fn netdev_do(
        &self,
        command: u8,
        attributes: Attributes,
    ) -> Result<Vec<Attributes>, Refusal> {
        let mut sockets = self.sockets();
        let family = sockets.netdev.ok_or_else(|| std::io::Error::from(Errno::OPNOTSUPP))?;
        let request = Generic::new(family, command, attributes);
        let answers = sockets.generic.ask(request, NLM_F_ACK)?;
        Ok(answers.into_iter().map(|answer| answer.attributes).collect())
    }

    /// Runs `work`, which changes programs at interfaces, in the namespace.
    pub(crate) fn within<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, Refusal> + Send,
    ) -> Result<T, Refusal> {
        self.namespace.run(work)?
    }

    /// Runs an ethtool ioctl.
    ///
    /// # Safety
    ///
    /// `argument` must be laid out as the command in its first word reads and writes it.
    pub(crate) unsafe fn ioctl<T>(&self, index: u32, argument: &mut T) -> Result<(), Refusal> {
        let name = netdevice::index_to_name(&self.plain, index)
            .map_err(|errno| Refusal::from(std::io::Error::from(errno)))?;
        // SAFETY: the caller vouches for the layout.
        Ok(unsafe { abi::ioctl(&self.plain, &name, argument) }?)
    }
}

/// The beginning of an ethtool message.
pub(crate) fn about(index: u32) -> Attributes {
    let device = Attributes::new().with(abi::A_HEADER_DEV_INDEX, &index.to_ne_bytes());
    Attributes::new().nest(abi::A_HEADER, &device)
}

impl Namespace {
    /// The addresses of its interfaces, except those of loopback and of a link only.
    ///
    /// # Errors
    ///
    /// If they cannot be listed.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, Error> {
        let kernel = self.kernel()?;
        let all = kernel.addresses().map_err(Error::doing("listing the addresses there"))?;
        let mut addresses: Vec<_> = all.into_iter().map(|(_, net)| net.addr()).collect();
        addresses.retain(|address| !address.is_loopback());
        addresses.sort();
        addresses.dedup();
        Ok(addresses)
    }

    /// Sockets to the kernel about it.
    pub(crate) fn kernel(&self) -> Result<Kernel, Error> {
        self.run(Kernel::open).map_err(Error::doing("entering the network namespace"))?
    }
}
