//! The kernel's RDS, through the library's sockets.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use handoff::{Buffer, Tally};
use handoff_rds::{
    Completion, Error, Refused,
    kernel::{Mode, Socket},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    exchange::{Returned, Way},
    far::{Far, Post},
    job::{Job, Op, PORT, UNDER_WAY},
};
use crate::{
    measure::Reaped,
    network::{TIMEOUT, testbed::Testbed},
};

/// Bytes of a socket's receive buffer: as many as our own engine holds for a port.
const RECEIVE: usize = 4 << 20;

/// A socket, and the buffers that it can send.
struct Endpoint {
    socket: Socket<Buffer>,
    to: SocketAddr,
    free: Vec<Buffer>,
}

impl Endpoint {
    fn new(from: SocketAddr, to: SocketAddr, free: Vec<Buffer>) -> Result<Self, String> {
        let socket = Socket::bind(from).map_err(line)?;
        socket.set_send_buffer(UNDER_WAY).map_err(line)?;
        socket.set_receive_buffer(RECEIVE).map_err(line)?;
        Ok(Self { socket, to, free })
    }

    /// Sends one of the buffers. Returns false if no buffer is free, or if the kernel takes none now.
    fn send(&mut self, to: SocketAddr, mode: Mode) -> Result<bool, String> {
        let Some(buffer) = self.free.pop() else { return Ok(false) };
        match self.socket.send(to, buffer, 0, mode) {
            Ok(()) => Ok(true),
            Err(Refused { payload, error }) => {
                self.free.push(payload);
                if error.is_temporary() { Ok(false) } else { Err(line(error)) }
            }
        }
    }
}

fn line(error: Error) -> String {
    error.to_string()
}

/// Waits until a socket may have something to read, or has room if `room` is wanted. Without `end` the wait has
/// a limit, and returns false when it is over.
fn wait(endpoints: &[Endpoint], room: bool, end: Option<&Post>) -> Result<bool, String> {
    let what = if room { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let ends = end.map(|post| PollFd::new(&post.end, PollFlags::IN));
    let mut polled: Vec<_> =
        endpoints.iter().map(|it| PollFd::new(&it.socket, what)).chain(ends).collect();
    let timeout =
        end.is_none().then_some(Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        // The caller looks at the signal's flag.
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(errno) => Err(format!("poll: {errno}")),
    }
}

pub(super) struct Kernel {
    endpoints: Vec<Endpoint>,
    mode: Mode,
    buffers: usize,
    batch: Vec<Completion<Buffer>>,
    back: Tally,
    reaped: (u64, Duration),
}

impl Kernel {
    /// Makes the sockets at both ends.
    pub(super) fn new(testbed: &Testbed, job: Job, mode: Mode) -> Result<(Self, Far), String> {
        let [near, distant] = [testbed.connecting(), testbed.connected()].map(|end| end.v4());
        let answers = if job.op == Op::Ask { job.buffers() } else { 0 };
        let endpoint = move |from, to, port, buffers| {
            let (_region, free) = job.memory(buffers)?;
            Endpoint::new((from, port).into(), (to, port).into(), free)
        };
        let all = move |from, to, buffers| -> Result<Vec<Endpoint>, String> {
            job.ports().map(|port| endpoint(from, to, port, buffers)).collect()
        };
        let mut far = Far::new()?;
        let serve = move |mut endpoints: Vec<Endpoint>, post: &Post| {
            serve(&mut endpoints, post, mode, job.op)
        };
        far.start(testbed, move || all(distant, near, answers), serve)?;
        let endpoints = || all(near, distant, job.buffers());
        let namespace = testbed.connecting().namespace();
        let endpoints = namespace.run(endpoints).map_err(|error| error.to_string())??;
        let buffers = job.buffers();
        let (batch, back) = (Vec::new(), Tally::default());
        Ok((Self { endpoints, mode, buffers, batch, back, reaped: Default::default() }, far))
    }

    /// Takes returned buffers back. Returns whether there were any.
    fn reap(&mut self) -> Result<bool, String> {
        let begin = Instant::now();
        let mut any = false;
        for endpoint in &mut self.endpoints {
            endpoint.socket.completions(usize::MAX, &mut self.batch).map_err(line)?;
            any |= !self.batch.is_empty();
            self.reaped.0 += self.batch.len() as u64;
            for completion in self.batch.drain(..) {
                self.back += completion.tally;
                endpoint.free.push(completion.payload);
            }
        }
        self.reaped.1 += begin.elapsed();
        Ok(any)
    }
}

/// Receives messages, and answers them if asked, until the end.
fn serve(endpoints: &mut [Endpoint], post: &Post, mode: Mode, op: Op) -> Result<(), String> {
    let mut batch = Vec::new();
    // The answers that wait for a buffer, or for room in the socket.
    let mut owed = VecDeque::new();
    loop {
        let mut arrived = 0;
        for (at, endpoint) in endpoints.iter_mut().enumerate() {
            endpoint.socket.completions(usize::MAX, &mut batch).map_err(line)?;
            endpoint.free.extend(batch.drain(..).map(|back| back.payload));
            while let Some(received) = endpoint.socket.receive().map_err(line)? {
                arrived += received.payload.len() as u64;
                owed.extend((op == Op::Ask).then_some((at, received.from)));
            }
        }
        if arrived > 0 {
            post.arrivals.add(arrived);
        }
        while let Some(&(at, to)) = owed.front()
            && endpoints[at].send(to, mode)?
        {
            owed.pop_front();
        }
        if arrived > 0 {
            continue;
        }
        if post.is_over() {
            return settle(endpoints);
        }
        wait(endpoints, !owed.is_empty(), Some(post))?;
    }
}

/// Waits until lent buffers are back, so that the sockets can be closed.
fn settle(endpoints: &mut [Endpoint]) -> Result<(), String> {
    let begin = Instant::now();
    while endpoints.iter().any(|endpoint| endpoint.socket.lent() > 0) && begin.elapsed() < TIMEOUT {
        for endpoint in endpoints.iter_mut() {
            endpoint.socket.completions(usize::MAX, &mut Vec::new()).map_err(line)?;
            // Unread messages would keep the socket readable.
            while endpoint.socket.receive().map_err(line)?.is_some() {}
        }
        if endpoints.iter().any(|endpoint| endpoint.socket.lent() > 0) {
            wait(endpoints, false, None)?;
        }
    }
    Ok(())
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // A socket that cannot settle says so itself.
        let _ = settle(&mut self.endpoints);
    }
}

impl Way for Kernel {
    fn stream(&mut self, over: &dyn Fn() -> bool) -> Result<u64, String> {
        /// The number of messages of a socket between two looks at the clock and at completions.
        const LOOK: usize = 16;

        let mut sent = 0;
        loop {
            let mut busy = self.reap()?;
            let ending = over();
            let mut refused = false;
            for endpoint in self.endpoints.iter_mut().filter(|_| !ending) {
                for _ in 0..LOOK {
                    let to = endpoint.to;
                    if !endpoint.send(to, self.mode)? {
                        refused |= !endpoint.free.is_empty();
                        break;
                    }
                    sent += 1;
                    busy = true;
                }
            }
            if ending && self.endpoints.iter().all(|endpoint| endpoint.free.len() == self.buffers) {
                return Ok(sent);
            }
            if !busy && !wait(&self.endpoints, refused, None)? {
                return Err(format!("nothing came back for {TIMEOUT:?}"));
            }
        }
    }

    fn ask(&mut self) -> Result<(), String> {
        let to = (self.endpoints[0].to.ip(), PORT).into();
        while !self.endpoints[0].send(to, self.mode)? {
            if !self.reap()? && !wait(&self.endpoints, true, None)? {
                return Err(format!("nothing came back for {TIMEOUT:?}"));
            }
        }
        loop {
            if self.endpoints[0].socket.receive().map_err(line)?.is_some() {
                self.reap()?;
                return Ok(());
            }
            if !self.reap()? && !wait(&self.endpoints, false, None)? {
                return Err(format!("no answer for {TIMEOUT:?}"));
            }
        }
    }

    fn returned(&self) -> Returned {
        let calls = self.endpoints.iter().map(|endpoint| endpoint.socket.statistics().reaps).sum();
        let (completions, time) = self.reaped;
        Returned {
            copied: (self.back.unknown == 0).then_some(self.back.copied),
            reaped: Some(Reaped { completions, calls, time }),
        }
    }
}
