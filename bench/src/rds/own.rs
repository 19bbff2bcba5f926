//! Our own engine of RDS, in user space over TCP.

use std::{
    collections::VecDeque,
    net::IpAddr,
    pin::pin,
    time::{Duration, Instant},
};

use futures_util::future::{Either, select};
use handoff::{Buffer, Driver, Executor, Region, Tally};
use handoff_rds::{
    Completion, Refused,
    own::{Engine, Socket},
    protocol::Limits,
    wire::HEADER_LEN,
};
use handoff_sys::hangup;
use handoff_testbed::NamespaceGuard;

use super::{
    exchange::{Returned, Way},
    far::{Far, Post},
    job::{Job, Op, UNDER_WAY},
    timeout::Timeout,
};
use crate::{measure::Reaped, network::testbed::Testbed};

/// The engine at one end, with its sockets. Tasks are dropped before what they use.
struct Host {
    endpoints: Vec<Endpoint>,
    executor: Executor,
    engine: Engine,
    driver: Driver,
    _regions: Vec<Region>,
}

struct Endpoint {
    socket: Socket,
    free: Vec<Buffer>,
}

impl Host {
    /// Makes the engine in the thread's namespace, with `buffers` buffers for each socket.
    fn new(
        address: IpAddr,
        job: Job,
        sending: handoff::Engine,
        buffers: usize,
    ) -> Result<Self, String> {
        let driver = Driver::builder().entries(1_024).in_flight(4_096).build();
        let driver = driver.map_err(|error| error.to_string())?;
        let limits = Limits { queued: UNDER_WAY as u64, ..Limits::default() };
        let engine = Engine::new(&driver, address, limits, sending).map_err(line)?;
        let (mut endpoints, mut regions) = (Vec::new(), Vec::new());
        for port in job.ports() {
            let (region, free) = job.memory(buffers)?;
            if let Some(region) = region {
                driver.register(&region).map_err(|error| error.to_string())?;
                regions.push(region);
            }
            endpoints.push(Endpoint { socket: engine.bind(port).map_err(line)?, free });
        }
        let executor = Executor::new(&driver);
        let serving = engine.run();
        executor
            .spawn(async {
                hangup::say(format_args!("handoff: the engine has ended: {}", serving.await))
            })
            .detach();
        Ok(Self { endpoints, executor, engine, driver, _regions: regions })
    }
}

fn line(error: handoff_rds::Error) -> String {
    error.to_string()
}

impl Endpoint {
    /// Sends one of the buffers. Returns false if no buffer is free, or if the engine takes none now.
    fn send(&mut self, to: IpAddr) -> Result<bool, String> {
        let Some(buffer) = self.free.pop() else { return Ok(false) };
        let to = (to, self.socket.local_addr().port()).into();
        match self.socket.send(to, buffer, 0) {
            Ok(()) => Ok(true),
            Err(Refused { payload, error }) => {
                self.free.push(payload);
                if error.is_temporary() { Ok(false) } else { Err(line(error)) }
            }
        }
    }
}

pub(super) struct Own {
    timeout: Timeout,
    host: Host,
    to: IpAddr,
    buffers: usize,
    back: Back,
    /// The thread stays in this namespace, because the engine makes its connections in the thread's namespace.
    _inside: NamespaceGuard,
}

/// The number and the tally of returned buffers, and the time that it took to take them back.
#[derive(Default)]
struct Back {
    batch: Vec<Completion<Buffer>>,
    tally: Tally,
    completions: u64,
    time: Duration,
}

impl Back {
    /// Takes returned buffers back. Returns whether there were any.
    fn reap(&mut self, endpoints: &mut [Endpoint]) -> bool {
        let begin = Instant::now();
        let before = self.completions;
        for endpoint in endpoints {
            self.completions += endpoint.socket.try_completions(usize::MAX, &mut self.batch) as u64;
            for completion in self.batch.drain(..) {
                self.tally += completion.tally;
                endpoint.free.push(completion.payload);
            }
        }
        self.time += begin.elapsed();
        self.completions > before
    }
}

impl Own {
    /// Makes an engine at each end.
    pub(super) fn new(
        testbed: &Testbed,
        job: Job,
        sending: handoff::Engine,
    ) -> Result<(Self, Far), String> {
        let [near, distant] =
            [testbed.connecting(), testbed.connected()].map(|end| end.v4().into());
        let answers = if job.op == Op::Ask { job.buffers() } else { 0 };
        let mut far = Far::new()?;
        let make = move || {
            let host = Host::new(distant, job, sending, answers)?;
            // The near end has the smaller address, and connects.
            match host.engine.not_listening() {
                Some(reason) => Err(reason.to_owned()),
                None => Ok(host),
            }
        };
        far.start(testbed, make, move |host, post| serve(host, post, job.op))?;
        let inside = testbed.connecting().namespace().enter_thread();
        let inside = inside.map_err(|error| error.to_string())?;
        let host = Host::new(near, job, sending, job.buffers())?;
        let (timeout, buffers) = (Timeout::new(&host.driver)?, job.buffers());
        Ok((
            Self { timeout, host, to: distant, buffers, back: Back::default(), _inside: inside },
            far,
        ))
    }
}

/// Receives messages, and answers them if asked, until the end.
fn serve(mut host: Host, post: &Post, op: Op) -> Result<(), String> {
    let failed = |error: handoff::Error| error.to_string();
    let end = post.end.try_clone().map_err(|error| error.to_string())?;
    let end = host.driver.file(end).map_err(failed)?;
    let endpoints = &mut host.endpoints;
    let work = async {
        let mut end = end.readable().map_err(failed)?;
        let mut batch = Vec::new();
        // The answers that wait for a buffer, or for room in the socket.
        let mut owed = VecDeque::new();
        loop {
            let mut arrived = 0;
            for (at, endpoint) in endpoints.iter_mut().enumerate() {
                endpoint.socket.try_completions(usize::MAX, &mut batch);
                endpoint.free.extend(batch.drain(..).map(|back| back.payload));
                while let Some(received) = endpoint.socket.try_receive() {
                    arrived += received.payload.len() as u64;
                    owed.extend((op == Op::Ask).then_some((at, received.from.ip())));
                }
            }
            if arrived > 0 {
                post.arrivals.add(arrived);
            }
            while let Some(&(at, to)) = owed.front()
                && endpoints[at].send(to)?
            {
                owed.pop_front();
            }
            let changed = pin!(endpoints[0].socket.changed());
            if let Either::Right(_) = select(changed, &mut end).await {
                return Ok(());
            }
        }
    };
    host.executor.run(work).map_err(failed)?
}

impl Way for Own {
    fn stream(&mut self, over: &dyn Fn() -> bool) -> Result<u64, String> {
        /// The number of messages of a socket between two looks at the clock and at completions.
        const LOOK: usize = 16;

        let Self { host: Host { endpoints, executor, .. }, to, buffers, timeout, back, .. } = self;
        let work = async {
            let mut sent = 0;
            timeout.renew();
            loop {
                let mut busy = back.reap(endpoints);
                let ending = over();
                for endpoint in endpoints.iter_mut().filter(|_| !ending) {
                    for _ in 0..LOOK {
                        if !endpoint.send(*to)? {
                            break;
                        }
                        sent += 1;
                        busy = true;
                    }
                }
                if ending && endpoints.iter().all(|endpoint| endpoint.free.len() == *buffers) {
                    return Ok(sent);
                }
                if busy {
                    timeout.renew();
                }
                // A change at one socket wakes whoever waits at any of them.
                timeout.until(endpoints[0].socket.changed()).await?;
            }
        };
        executor.run(work).map_err(|error| error.to_string())?
    }

    fn ask(&mut self) -> Result<(), String> {
        let Self { host: Host { endpoints, executor, .. }, to, timeout, back, .. } = self;
        let work = async {
            timeout.renew();
            let mut waits = false;
            loop {
                back.reap(endpoints);
                waits = waits || endpoints[0].send(*to)?;
                if waits && endpoints[0].socket.try_receive().is_some() {
                    return Ok(());
                }
                timeout.until(endpoints[0].socket.changed()).await?;
            }
        };
        executor.run(work).map_err(|error| error.to_string())?
    }

    fn returned(&self) -> Returned {
        let Back { tally, completions, time, .. } = self.back;
        // The count of copied bytes includes the header of each message, which is no payload.
        let payload = tally.copied.saturating_sub(completions * HEADER_LEN as u64);
        Returned {
            copied: (tally.unknown == 0).then_some(payload),
            reaped: Some(Reaped { completions, calls: self.host.engine.inquiries(), time }),
        }
    }
}
