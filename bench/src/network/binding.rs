//! Our memory, which a queue of the receiving NIC puts payload into.

use std::{
    thread,
    time::{Duration, Instant},
};

use handoff::{Driver, Region, RingUse, RxBinding, RxQueue};

use super::{TIMEOUT, far::Network, queues::OwnQueue};

const PAGE: usize = 4_096;
/// The time between two tries to take a queue whose last user has just gone.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

const CANNOT_GROW: &str =
    "this kernel can't give a queue more memory later (Linux 7.3 can): leave --grow out";

/// The memory of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Bytes of a chunk.
    pub(crate) chunk: usize,
    pub(crate) connections: usize,
    /// Whether the memory begins with only the NIC's own reserve.
    pub(crate) grows: bool,
}

/// Makes a driver, and gives a queue of the receiving NIC memory of it as soon as the kernel has taken the
/// queue from its last user. The memory goes with the driver.
///
/// # Errors
///
/// One line that says why the queue cannot have the memory.
pub(crate) fn bind(
    network: &impl Network,
    queue: &OwnQueue<'_>,
    memory: Memory,
) -> Result<(Driver, RxQueue), String> {
    let Memory { chunk, connections, grows } = memory;
    let bind = || {
        let driver = Driver::builder().ring(RingUse::Require).zero_copy_receive(true).build()?;
        let binding = RxBinding::new(network.device(), queue.number().into())?.chunk(chunk);
        let len = binding.area(connections);
        let area = match (chunk, grows) {
            (PAGE, false) => Region::anonymous(len)?,
            (PAGE, true) => Region::reserved(len)?,
            _ => Region::huge(len)?,
        };
        let binding = match grows {
            true => binding.grows_from(binding.area(0)),
            false => binding,
        };
        let queue = driver.rx_queue(area, &binding)?;
        Ok::<_, handoff::Error>((driver, queue))
    };
    let begin = Instant::now();
    loop {
        match network.inside(bind)? {
            Ok((_, queue)) if grows && queue.chunks() == queue.chunks_limit() => {
                return Err(CANNOT_GROW.to_owned());
            }
            Ok(bound) => return Ok(bound),
            Err(error) if begin.elapsed() > TIMEOUT => return Err(error.to_string()),
            Err(_) => thread::sleep(BETWEEN_TRIES),
        }
    }
}
