//! A driver and all its loans, beside what must be true of them.

use std::any::Any;
use std::collections::HashSet;
use std::io::{ErrorKind, Read};
use std::net::{TcpStream, UdpSocket};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use handoff::{
    Buffer, Driver, Engine, Error, Intake, MappedIntake, Pool, Region, RingUse, RxBinding, RxQueue,
    SharedRegion, Socket, Wait, Window,
};

use crate::alarm::{AT_HAND, Alarm, AtHand, guarded};
use crate::handles::{Event, Handle, Kind};
use crate::inflow::{AddressRange, Inflow};
use crate::lanes::Bulk;
#[cfg(feature = "getbuf")]
use crate::leases::Lends;
use crate::model::{Back, Ending, Message, Out, content, place};
use crate::sends::Gathered;
use crate::steps::{Memory, Step};
use crate::traffic::{narrow_tcp, udp_pair};
use crate::transfers::{Files, Job};

/// The driver's settings, and how its sockets send.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) ring: RingUse,
    pub(crate) registered: bool,
    /// The first is set; others of these follow in steps.
    pub(crate) engines: &'static [Engine],
    pub(crate) entries: u32,
    pub(crate) in_flight: usize,
    /// Whether to receive from an rx queue without a device, if the kernel has that.
    pub(crate) rx_queue: bool,
    /// Whether the kernel lends buffers of a file.
    #[cfg(feature = "getbuf")]
    pub(crate) lends: bool,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum To {
    Stream(usize),
    Datagram,
}

/// A stream and its peer.
pub(crate) struct Outflow {
    pub(crate) socket: Option<Socket>,
    /// Attached earlier, to the same socket.
    pub(crate) before: Vec<Socket>,
    pub(crate) messages: Vec<usize>,
    pub(crate) far: Option<TcpStream>,
    pub(crate) closed: bool,
    pub(crate) got: Vec<u8>,
}

pub(crate) struct World {
    pub(crate) engines: &'static [Engine],
    pub(crate) driver: Option<Driver>,
    pub(crate) region: Region,
    pub(crate) registered: bool,
    pub(crate) shared: SharedRegion,
    /// Where buffers of the region lie.
    pub(crate) cut: Range<usize>,
    /// Buffers that are here.
    pub(crate) home: Vec<Buffer>,
    /// What the end of the region says as long as it is mapped.
    pub(crate) marker: (usize, Vec<u8>),
    pub(crate) outflows: Vec<Outflow>,
    pub(crate) datagrams: Vec<Socket>,
    pub(crate) far: UdpSocket,
    pub(crate) to: Vec<To>,
    pub(crate) messages: Vec<Message>,
    pub(crate) out: Out,
    pub(crate) groups: Vec<Gathered>,
    /// On the datagram socket, and on a stream, if the engine sends this way.
    pub(crate) lanes: Vec<Bulk>,
    /// Messages in forgotten lanes.
    pub(crate) kept_in_lanes: usize,
    pub(crate) inflows: Vec<Inflow>,
    pub(crate) pool: Option<Pool>,
    pub(crate) window: Option<Window>,
    pub(crate) queue: Option<RxQueue>,
    pub(crate) spans: Vec<AddressRange>,
    pub(crate) files: Option<Files>,
    #[cfg(feature = "getbuf")]
    pub(crate) lends: Option<Lends>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) handles: Vec<Handle>,
    /// Waiters for finished operations.
    pub(crate) awaited: Vec<Arc<Alarm>>,
    /// Forgotten handles: nothing touches them before everything else is checked.
    pub(crate) forgotten: Vec<Box<dyn Any>>,
    /// Operations that those keep.
    pub(crate) kept: HashSet<(Kind, usize)>,
    /// Bytes that the kernel may keep, since the driver went too early.
    pub(crate) may_leak: bool,
}

/// So many messages differ by their first byte.
pub(crate) const MESSAGES: usize = 250;
/// The stream that only a lane uses.
const LANE_STREAM: usize = 2;

impl World {
    pub(crate) fn new(setting: &Setting) -> Self {
        let builder = Driver::builder().ring(setting.ring).entries(setting.entries);
        let builder = builder.in_flight(setting.in_flight).zero_copy_receive(setting.rx_queue);
        let driver = builder.build().expect("a driver");
        let mut region = Region::anonymous(352 << 10).expect("memory");
        let lens = [[2 << 10; 6].as_slice(), &[20 << 10; 4], &[110 << 10; 2]].concat();
        let home: Vec<_> = lens.into_iter().map(|len| region.take(len).expect("room")).collect();
        let mut last = region.take(64).expect("room");
        last.copy_from_slice(&content(usize::from(u16::MAX), 64));
        let marker = (last.as_ptr().addr(), last.to_vec());
        if setting.registered {
            driver.register(&region).expect("registers");
        }
        let engine = setting.engines[0];
        let outflow = |_| {
            let (near, far) = narrow_tcp();
            far.set_nonblocking(true).expect("sets");
            let socket = driver.socket(near).expect("attaches");
            socket.set_engine(engine).expect("has the engine");
            Outflow {
                socket: Some(socket),
                before: Vec::new(),
                messages: Vec::new(),
                far: Some(far),
                closed: false,
                got: Vec::new(),
            }
        };
        let outflows: Vec<Outflow> = (0..=LANE_STREAM).map(outflow).collect();
        let (near, far) = udp_pair();
        far.set_nonblocking(true).expect("sets");
        let datagrams = driver.socket(near).expect("attaches");
        datagrams.set_engine(engine).expect("has the engine");
        let mut lanes = Vec::new();
        if matches!(engine, Engine::UringZc | Engine::Auto) && driver.ring_unavailable().is_none() {
            let stream = outflows[LANE_STREAM].socket.as_ref().expect("is new");
            lanes.push(Bulk::new(&datagrams, &region, To::Datagram));
            lanes.push(Bulk::new(stream, &region, To::Stream(LANE_STREAM)));
        }
        AT_HAND.set(AtHand {
            driver: Some(driver.clone()),
            socket: Some(datagrams.clone()),
            ..AtHand::default()
        });
        let memory = || Region::anonymous(16 << 10).expect("memory");
        let queue = setting.rx_queue.then(|| {
            let area = Region::anonymous(64 << 10).expect("memory");
            driver.rx_queue(area, &RxBinding::without_device()).expect("a queue")
        });
        let files = Files::new(&driver);
        Self {
            engines: setting.engines,
            region,
            registered: setting.registered,
            shared: SharedRegion::memfd(256 << 10).expect("memory"),
            cut: home[0].as_ptr().addr()..marker.0,
            home,
            marker,
            outflows,
            datagrams: vec![datagrams],
            far,
            to: Vec::new(),
            messages: Vec::new(),
            out: Out::default(),
            groups: Vec::new(),
            lanes,
            kept_in_lanes: 0,
            inflows: (0..2).map(|_| Inflow::new(&driver)).collect(),
            pool: Some(driver.pool(memory(), 4096).expect("a pool")),
            window: Some(driver.window(4, 8192).expect("a window")),
            queue,
            spans: Vec::new(),
            #[cfg(feature = "getbuf")]
            lends: setting.lends.then(|| Lends::new(&driver, &files)),
            files: Some(files),
            jobs: Vec::new(),
            handles: Vec::new(),
            awaited: Vec::new(),
            forgotten: Vec::new(),
            kept: HashSet::new(),
            may_leak: false,
            driver: Some(driver),
        }
    }

    pub(crate) fn act(&mut self, step: &Step) {
        match *step {
            Step::Send { to, len, header, memory, pieces, kept } => {
                self.send(to, len, header, memory, pieces, kept)
            }
            Step::SendSpan { to } => self.send_span(to),
            Step::SendGrouped { to, len, memory } => self.send_grouped(to, len, memory),
            Step::Push { lane, len, whim } => self.push(lane, len, whim),
            Step::TakeBack { lane, whim } => {
                self.take_back(lane, whim);
            }
            Step::EndLane { lane, end } => self.end_lane(lane, end),
            Step::Flush { forget } => self.flush(forget),
            Step::Engine(number) => {
                let engine = self.engines[number % self.engines.len()];
                let sockets = self.outflows.iter().filter_map(|it| it.socket.as_ref());
                for socket in sockets.chain(&self.datagrams) {
                    // Only one attachment of a socket has MSG_ZEROCOPY.
                    let _ = socket.set_engine(engine);
                }
            }
            Step::Register => self.register(),
            Step::Turn(micros) => self.turn(Duration::from_micros(micros)),
            Step::Pause => thread::sleep(Duration::from_micros(500)),
            Step::Ask(number) => self.with_handle(number, |handle| handle.ask()),
            Step::Poll(number, whim) => self.with_handle(number, |handle| handle.poll(whim)),
            Step::Cancel(number) => self.cancel(number),
            Step::Drop(number) => {
                let handle = self.take_handle(number);
                guarded(|| drop(handle));
            }
            Step::Forget(number) => {
                if let Some(handle) = self.take_handle(number) {
                    self.kept.extend(handle.operation());
                    self.forgotten.push(Box::new(handle));
                }
            }
            Step::LeaveToWaker(number) => {
                let handle = self.take_handle(number);
                let victim = handle.map(|handle| Box::new(handle) as _);
                AT_HAND.with_borrow_mut(|at_hand| at_hand.victims.extend(victim));
            }
            Step::AttachAgain { stream, keep } => self.attach_again(stream, keep),
            Step::DropSocket(number) => match number {
                0..=LANE_STREAM => self.outflows[number].socket = None,
                3 => self.datagrams.clear(),
                _ => self.inflows[number % 2].drop_socket(),
            },
            Step::PeerReads { stream, most } => {
                self.peer_reads(stream, most);
            }
            Step::PeerCloses(stream) => {
                self.peer_reads(stream, usize::MAX);
                self.outflows[stream].far = None;
                self.outflows[stream].closed = true;
            }
            Step::Receive { stream, from } => self.receive(stream, from),
            Step::Write { stream, len } => self.inflows[stream].write(len),
            Step::EndInflow(number) => {
                // Few of them.
                if let Some(inflow) = self.inflows.get_mut(number) {
                    inflow.close();
                }
            }
            Step::Take { stream, whim } => {
                let inflow = &mut self.inflows[stream];
                let span = inflow.next(whim, &mut self.awaited);
                self.spans.extend(span);
            }
            Step::Visit { stream, every, whim } => {
                let kept = self.inflows[stream].visit(every, whim, &mut self.awaited);
                self.spans.extend(kept);
            }
            Step::DropSpan(number) => {
                let span = self.take_span(number);
                guarded(|| drop(span));
            }
            Step::ForgetSpan(number) => {
                let span = self.take_span(number);
                self.forgotten.extend(span.map(|span| Box::new(span) as _));
            }
            Step::SplitSpan(number) => {
                if let Some(mut span) = self.take_span(number) {
                    let head = span.split(span.received.len() / 3);
                    self.spans.extend([head, span]);
                }
            }
            Step::DropReceiver { stream, forget } => {
                let receiver = self.inflows[stream].take_receiver();
                if !forget {
                    guarded(|| drop(receiver));
                } else {
                    // Its socket lives on with it, and so has a receiver for good.
                    self.inflows[stream].drop_socket();
                    self.kept.extend(receiver.is_some().then_some((Kind::Receiver, stream)));
                    self.forgotten.extend(receiver.map(|receiver| Box::new(receiver) as _));
                }
            }
            Step::Transfer { way, len, memory } => self.transfer(way, len, memory),
            Step::Feed(len) => self.files.iter_mut().for_each(|files| files.feed(len)),
            Step::Drain => self.files.iter_mut().for_each(Files::drain),
            #[cfg(feature = "getbuf")]
            Step::Lend { at, len } => self.lend(at, len),
            #[cfg(feature = "getbuf")]
            Step::SendLease { to, whole } => self.send_lease(to, whole),
            #[cfg(feature = "getbuf")]
            Step::PartOfLease(number) => self.part_of_lease(number),
            #[cfg(feature = "getbuf")]
            Step::DropLease { number, forget } => self.drop_lease(number, forget),
            Step::DropDriver => self.drop_driver(),
        }
        self.spans.iter().for_each(AddressRange::check);
        self.adopt();
    }

    /// Takes over what wakers have sent.
    pub(crate) fn adopt(&mut self) {
        for sending in AT_HAND.with_borrow_mut(|at_hand| std::mem::take(&mut at_hand.sent)) {
            drop(sending);
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.driver.is_none()
    }

    pub(crate) fn turn(&mut self, time: Duration) {
        let Some(driver) = &self.driver else { return };
        guarded(|| driver.turn(Wait::AtMost(time)).expect("turns"));
        self.awaited.drain(..).for_each(|alarm| alarm.check());
    }

    fn register(&mut self) {
        let Some(driver) = &self.driver else { return };
        if driver.ring_unavailable().is_some() {
            return;
        }
        if self.registered {
            driver.unregister(&self.region).expect("unregisters");
        } else {
            driver.register(&self.region).expect("registers");
        }
        self.registered = !self.registered;
    }

    /// A buffer of the region, or of the heap.
    pub(crate) fn buffer(&mut self, bytes: &[u8], memory: Memory) -> Buffer {
        let fits = |it: &Buffer| it.capacity() >= bytes.len();
        match self.home.iter().position(fits) {
            Some(place) if memory == Memory::Region => {
                let mut buffer = self.home.swap_remove(place);
                buffer.set_len(bytes.len());
                buffer.copy_from_slice(bytes);
                buffer
            }
            _ => Buffer::from(bytes.to_vec()),
        }
    }

    pub(crate) fn is_of_region(&self, buffer: &Buffer) -> bool {
        self.cut.contains(&buffer.as_ptr().addr())
    }

    pub(crate) fn bring_home(&mut self, back: Back) {
        if let Back::Buffers(mut buffers) = back {
            // Heap memory goes back there.
            buffers.retain(|it| it.capacity() > 0 && self.is_of_region(it));
            self.home.extend(buffers);
        }
    }

    fn take_handle(&mut self, number: usize) -> Option<Handle> {
        (!self.handles.is_empty()).then(|| self.handles.swap_remove(number % self.handles.len()))
    }

    pub(crate) fn take_span(&mut self, number: usize) -> Option<AddressRange> {
        (!self.spans.is_empty()).then(|| self.spans.swap_remove(number % self.spans.len()))
    }

    fn cancel(&mut self, number: usize) {
        if self.handles.is_empty() {
            return;
        }
        let number = number % self.handles.len();
        let handle = &self.handles[number];
        // The request is made, even if a waker panics because of it.
        let about = handle.about;
        if guarded(|| handle.cancel()).unwrap_or(true) {
            self.messages[about].cancelled = true;
        }
    }

    pub(crate) fn with_handle(
        &mut self,
        number: usize,
        ask: impl FnOnce(&mut Handle) -> Option<Event>,
    ) {
        if self.handles.is_empty() {
            return;
        }
        let (number, gone) = (number % self.handles.len(), self.is_gone());
        let handle = &mut self.handles[number];
        let Some(event) = guarded(|| ask(handle)).flatten() else { return };
        if let Event::Kept(error) = event {
            assert!(gone && matches!(error, Error::DriverGone), "a loan ends with: {error}");
            return;
        }
        let mut handle = self.handles.swap_remove(number);
        self.awaited.extend(handle.alarm.take());
        self.take_in(&handle, event);
    }

    fn take_in(&mut self, handle: &Handle, event: Event) {
        let about = handle.about;
        match event {
            Event::Sent(result) => self.ended(about, result),
            Event::Back(back) => self.came_back(about, back),
            Event::Both(result, back) => {
                self.ended(about, result);
                self.came_back(about, back);
            }
            Event::Group(mut buffers) => {
                for id in self.groups[about].messages.clone() {
                    let wanted = self.messages[id].places[0];
                    let found = buffers.iter().position(|it| place(it) == wanted);
                    let back =
                        buffers.swap_remove(found.expect("a group gives all of its buffers"));
                    self.came_back(id, back.into());
                }
                assert!(buffers.is_empty(), "a group gives buffers that are not its own");
            }
            Event::Kept(_) => unreachable!("its handle stays"),
            #[cfg(feature = "getbuf")]
            Event::Lent(result) => self.lent(about, result),
            Event::Transferred(result, back) => {
                self.out.back(&self.jobs[about].places);
                let gone = self.is_gone();
                let files = self.files.as_mut().expect("files are there until the end");
                files.check(&self.jobs[about], result, &back, gone);
                self.bring_home(back);
            }
        }
    }

    /// Attaches a socket once more by another descriptor; later bytes go by that.
    fn attach_again(&mut self, stream: usize, keep: bool) {
        let Some(driver) = &self.driver else { return };
        let engine = self.engines[0];
        let again = |socket: &Socket| {
            let twin = socket.as_fd().try_clone_to_owned().expect("clones");
            let socket = driver.socket(twin).expect("attaches");
            let _ = socket.set_engine(engine);
            socket
        };
        let Some(outflow) = self.outflows[..LANE_STREAM].get_mut(stream) else {
            if let Some(socket) = self.datagrams.last() {
                let socket = again(socket);
                AT_HAND.with_borrow_mut(|at_hand| at_hand.socket = Some(socket.clone()));
                self.datagrams.push(socket);
                if !keep {
                    self.datagrams.remove(0);
                }
            }
            return;
        };
        // Attachments have no order between them, so everything before must be over.
        let over = |id: &usize| matches!(self.messages[*id].ending, Ending::Known(Ok(_)));
        if !outflow.messages.iter().all(over) {
            return;
        }
        if let Some(socket) = outflow.socket.take() {
            outflow.socket = Some(again(&socket));
            outflow.before.extend(keep.then_some(socket));
        }
    }

    pub(crate) fn peer_reads(&mut self, stream: usize, most: usize) -> bool {
        let outflow = &mut self.outflows[stream];
        let Some(far) = &mut outflow.far else { return false };
        let before = outflow.got.len();
        let mut space = [0; 16 << 10];
        while outflow.got.len() - before < most {
            match far.read(&mut space) {
                Ok(0) => break,
                Ok(got) => outflow.got.extend_from_slice(&space[..got]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("the peer reads: {error}"),
            }
        }
        outflow.got.len() > before
    }

    /// Each datagram that came is one that was sent.
    pub(crate) fn take_datagrams(&mut self) {
        let mut space = vec![0; 64 << 10];
        while let Ok(got) = self.far.recv(&mut space) {
            let bytes = &space[..got];
            if bytes.iter().all(|byte| *byte == 0) {
                continue; // of a waker
            }
            let id = usize::from(bytes[0]) - 1;
            assert!(self.to[id] == To::Datagram, "a datagram of a stream");
            assert!(bytes == self.messages[id].bytes, "datagram {id} differs");
        }
    }

    fn receive(&mut self, stream: usize, from: usize) {
        let (Some(pool), Some(window)) = (&self.pool, &self.window) else { return };
        // SAFETY: what the far end sends is in nobody else's memory.
        let trusted = |intake: MappedIntake| unsafe { intake.trust_peers() };
        let intake: Intake = match (from, &self.queue) {
            (0, _) => trusted(window.into()),
            (1, _) => trusted(window.or(pool)),
            (2, Some(queue)) => queue.into(),
            (3, Some(queue)) => queue.or(pool),
            _ => pool.into(),
        };
        self.inflows[stream].receive(intake);
    }

    /// The last handle that can turn the driver goes.
    fn drop_driver(&mut self) {
        let at_hand = AT_HAND.with_borrow_mut(|at_hand| at_hand.driver.take());
        let driver = self.driver.take();
        if driver.is_some() {
            self.may_leak = true;
            guarded(|| drop((driver, at_hand)));
        }
    }
}
