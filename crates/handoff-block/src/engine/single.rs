//! One command for each request: it returns the result of a tag's last request and brings the next.
//!
//! Minimum kernel: 6.16 where buffers are lent (`UBLK_F_AUTO_BUF_REG`), else 6.6. Capability:
//! CAP_SYS_ADMIN. The driver registers a request's buffer with our ring, under its tag, before it reports
//! the request. Without lending, the driver copies into and out of our memory. Return signal: the commit.

use std::io;

use handoff_sys::ublk;
use io_uring::cqueue;

use super::user_loop::Carrier;
use crate::queue::Queue;
use crate::request::Entries;

pub(super) struct Single {
    entries: Entries,
}

impl Single {
    pub(super) fn new() -> Self {
        Self { entries: Entries::new() }
    }
}

impl Carrier for Single {
    fn begin(&mut self, queue: &mut Queue) -> io::Result<()> {
        queue.fetch_all()
    }

    fn completed(
        &mut self,
        queue: &mut Queue,
        command: u32,
        completion: &cqueue::Entry,
        arrived: &mut Vec<u32>,
    ) -> io::Result<bool> {
        if completion.result() != 0 {
            return queue.count_gone(completion.result());
        }
        arrived.push(command);
        Ok(false)
    }

    fn answer(&mut self, queue: &mut Queue, tag: u32, result: i32) {
        let number = ublk::U_IO_COMMIT_AND_FETCH_REQ;
        queue.requests.command(number, tag, result, &mut self.entries);
        queue.push_all(&self.entries);
    }

    fn turned(&mut self, _queue: &mut Queue) {}
}
