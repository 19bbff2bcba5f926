//! The rx queues of an interface as the stack sees them: who serves them, and whose memory they fill.
//!
//! Kernel interface: the netdev family, Linux 6.8; bound memory of io_uring, Linux 6.15. The kernel
//! lists queues only while the interface is up.

use std::collections::BTreeSet;

use handoff_sys::netdev as abi;
use handoff_sys::netlink::{Attributes, Refusal};
use serde::Serialize;

use crate::kernel::Kernel;

/// Who has bound memory to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// An io_uring instance.
    IoUring,
    /// A dma-buf (TCP devmem).
    DmaBuf,
    /// An AF_XDP socket.
    AfXdp,
    /// A virtual interface that has leased the queue.
    Lease,
}

impl Bound {
    /// The holder's name in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::DmaBuf => "a dma-buf",
            Self::AfXdp => "an AF_XDP socket",
            Self::Lease => "a lease to a virtual interface",
        }
    }
}

/// One rx queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Its number.
    pub id: u32,
    /// The NAPI instance that serves it.
    pub napi: Option<u32>,
    /// The interrupt of that NAPI instance, where the driver tells.
    pub irq: Option<u32>,
    /// The thread of that NAPI instance, if it has one of its own.
    pub thread: Option<u32>,
    /// Whose memory the queue fills, if not the kernel's.
    pub bound: Option<Bound>,
}

impl Kernel {
    /// The rx queues; `None` where the kernel does not tell.
    pub(crate) fn queues(&self, index: u32) -> Result<Option<Vec<Queue>>, Refusal> {
        let of = |kind| Attributes::new().with(kind, &index.to_ne_bytes());
        let Some(queues) = self.netdev(abi::QUEUE_GET, of(abi::QUEUE_IFINDEX))? else {
            return Ok(None);
        };
        let instances = self.netdev(abi::NAPI_GET, of(abi::NAPI_IFINDEX))?.unwrap_or_default();
        let receives = |queue: &&Attributes| queue.number(abi::QUEUE_TYPE) == Some(0);
        let mut found: Vec<Queue> = queues
            .iter()
            .filter(receives)
            .filter_map(|queue| {
                let napi = queue.number(abi::QUEUE_NAPI_ID);
                let instance = instances
                    .iter()
                    .find(|instance| napi.is_some() && instance.number(abi::NAPI_ID) == napi);
                Some(Queue {
                    id: queue.number(abi::QUEUE_ID)?,
                    napi,
                    irq: instance.and_then(|instance| instance.number(abi::NAPI_IRQ)),
                    thread: instance.and_then(|instance| instance.number(abi::NAPI_PID)),
                    bound: bound(queue),
                })
            })
            .collect();
        found.sort_by_key(|queue| queue.id);
        Ok(Some(found))
    }
}

fn bound(queue: &Attributes) -> Option<Bound> {
    let signs = [
        (abi::QUEUE_IO_URING, Bound::IoUring),
        (abi::QUEUE_DMABUF, Bound::DmaBuf),
        (abi::QUEUE_XSK, Bound::AfXdp),
        (abi::QUEUE_LEASE, Bound::Lease),
    ];
    signs.into_iter().find(|(sign, _)| queue.get(*sign).is_some()).map(|(_, bound)| bound)
}

/// Lists queues in a sentence, each once.
pub(crate) fn list(queues: &[u32]) -> String {
    let queues: BTreeSet<_> = queues.iter().collect();
    let names: Vec<_> = queues.iter().map(ToString::to_string).collect();
    let noun = if names.len() == 1 { "queue" } else { "queues" };
    format!("{noun} {}", names.join(", "))
}
