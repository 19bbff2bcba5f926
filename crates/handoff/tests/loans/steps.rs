//! What may happen to loans, one step at a time.

use proptest::prelude::*;

use crate::alarm::Whim;
use crate::transfers::Way;

/// Where a buffer comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Memory {
    Region,
    Heap,
    /// Of an owner of another kind.
    Owned,
    Shared,
}

/// What happens to a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LaneEnd {
    Cancel,
    Drop,
    Forget,
    LeaveToWaker,
}

/// Numbers name handles, streams and the like, modulo their count.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send {
        to: usize,
        len: usize,
        header: usize,
        memory: Memory,
        pieces: usize,
        kept: bool,
    },
    SendGrouped {
        to: usize,
        len: usize,
        memory: Memory,
    },
    /// A received span, lent on.
    SendSpan {
        to: usize,
    },
    Flush {
        forget: bool,
    },
    /// Into a lane; waits if there is no room.
    Push {
        lane: usize,
        len: usize,
        whim: Whim,
    },
    TakeBack {
        lane: usize,
        whim: Option<Whim>,
    },
    EndLane {
        lane: usize,
        end: LaneEnd,
    },
    Engine(usize),
    /// Takes the region out of the ring's table, or puts it in.
    Register,
    Turn(u64),
    /// Time passes, and nobody turns the driver.
    Pause,
    Ask(usize),
    Poll(usize, Whim),
    Cancel(usize),
    Drop(usize),
    Forget(usize),
    /// A waker drops it.
    LeaveToWaker(usize),
    AttachAgain {
        stream: usize,
        keep: bool,
    },
    DropSocket(usize),
    PeerReads {
        stream: usize,
        most: usize,
    },
    PeerCloses(usize),
    Receive {
        stream: usize,
        from: usize,
    },
    Write {
        stream: usize,
        len: usize,
    },
    EndInflow(usize),
    Take {
        stream: usize,
        whim: Option<Whim>,
    },
    Visit {
        stream: usize,
        every: usize,
        whim: Whim,
    },
    DropSpan(usize),
    ForgetSpan(usize),
    SplitSpan(usize),
    DropReceiver {
        stream: usize,
        forget: bool,
    },
    Transfer {
        way: Way,
        len: usize,
        memory: Memory,
    },
    Feed(usize),
    Drain,
    #[cfg(feature = "getbuf")]
    Lend {
        at: usize,
        len: usize,
    },
    /// All of it, or while it is held.
    #[cfg(feature = "getbuf")]
    SendLease {
        to: usize,
        whole: bool,
    },
    #[cfg(feature = "getbuf")]
    PartOfLease(usize),
    #[cfg(feature = "getbuf")]
    DropLease {
        number: usize,
        forget: bool,
    },
    DropDriver,
}

fn memory() -> impl Strategy<Value = Memory> {
    prop_oneof![
        4 => Just(Memory::Region),
        2 => Just(Memory::Heap),
        2 => Just(Memory::Owned),
        1 => Just(Memory::Shared)
    ]
}

fn whim() -> impl Strategy<Value = Whim> {
    prop_oneof![
        3 => Just(Whim::Nothing),
        1 => Just(Whim::Panic),
        1 => Just(Whim::Send),
        1 => Just(Whim::Turn),
        1 => Just(Whim::DropHandles),
    ]
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![1 => Just(0usize), 3 => 1usize..200, 3 => 1000usize..20_000, 2 => 50_000usize..110_000];
    let some = || 0usize..64;
    let way = prop_oneof![
        (0usize..40_000).prop_map(Way::ReadAt),
        Just(Way::WriteAt(0)),
        Just(Way::ReadPipe),
        Just(Way::WritePipe),
    ];
    let header = prop_oneof![Just(0usize), 1usize..=64];
    let pieces = prop_oneof![3 => Just(0usize), 1 => 1usize..5];
    let send = (0usize..3, len(), header, memory(), pieces, prop::bool::weighted(0.8)).prop_map(
        |(to, len, header, memory, pieces, kept)| Step::Send {
            to,
            len,
            header,
            memory,
            pieces,
            kept,
        },
    );
    let grouped = (0usize..3, len(), memory()).prop_map(|(to, len, memory)| Step::SendGrouped {
        to,
        len,
        memory,
    });
    let transfer = (way, 0usize..20_000, memory()).prop_map(|(way, len, memory)| Step::Transfer {
        way,
        len,
        memory,
    });
    let sends = prop_oneof![
        10 => send,
        4 => grouped,
        2 => some().prop_map(|to| Step::SendSpan { to }),
        2 => prop::bool::weighted(0.1).prop_map(|forget| Step::Flush { forget }),
        1 => (0usize..4).prop_map(Step::Engine),
        1 => Just(Step::Register),
        1 => (0usize..3, any::<bool>())
            .prop_map(|(stream, keep)| Step::AttachAgain { stream, keep }),
    ];
    let lane_end = prop_oneof![
        2 => Just(LaneEnd::Cancel),
        2 => Just(LaneEnd::Drop),
        1 => Just(LaneEnd::Forget),
        2 => Just(LaneEnd::LeaveToWaker),
    ];
    let lanes = prop_oneof![
        8 => (0usize..2, len(), whim()).prop_map(|(lane, len, whim)| Step::Push { lane, len, whim }),
        8 => (0usize..2, prop::option::of(whim()))
            .prop_map(|(lane, whim)| Step::TakeBack { lane, whim }),
        1 => (0usize..2, lane_end).prop_map(|(lane, end)| Step::EndLane { lane, end }),
    ];
    let handles = prop_oneof![
        6 => some().prop_map(Step::Ask),
        8 => (some(), whim()).prop_map(|(number, whim)| Step::Poll(number, whim)),
        2 => some().prop_map(Step::Cancel),
        3 => some().prop_map(Step::Drop),
        1 => some().prop_map(Step::Forget),
        2 => some().prop_map(Step::LeaveToWaker),
    ];
    let peers = prop_oneof![
        5 => (0usize..3, 1usize..100_000)
            .prop_map(|(stream, most)| Step::PeerReads { stream, most }),
        1 => (0usize..3).prop_map(Step::PeerCloses),
    ];
    let receiving = prop_oneof![
        4 => (0usize..2, 0usize..6).prop_map(|(stream, from)| Step::Receive { stream, from }),
        6 => (0usize..2, 1usize..30_000).prop_map(|(stream, len)| Step::Write { stream, len }),
        8 => (0usize..2, prop::option::of(whim()))
            .prop_map(|(stream, whim)| Step::Take { stream, whim }),
        4 => (0usize..2, 1usize..5, whim())
            .prop_map(|(stream, every, whim)| Step::Visit { stream, every, whim }),
        1 => (0usize..4).prop_map(Step::EndInflow),
        3 => some().prop_map(Step::DropSpan),
        1 => some().prop_map(Step::ForgetSpan),
        2 => some().prop_map(Step::SplitSpan),
        2 => (0usize..2, prop::bool::weighted(0.1))
            .prop_map(|(stream, forget)| Step::DropReceiver { stream, forget }),
    ];
    let files = prop_oneof![
        6 => transfer,
        2 => (1usize..5000).prop_map(Step::Feed),
        2 => Just(Step::Drain),
    ];
    let base = prop_oneof![
        30 => sends,
        15 => lanes,
        40 => handles,
        12 => prop_oneof![3 => (0u64..400).prop_map(Step::Turn), 1 => Just(Step::Pause)],
        10 => peers,
        25 => receiving,
        10 => files,
        2 => (0usize..6).prop_map(Step::DropSocket),
        1 => Just(Step::DropDriver),
    ];
    #[cfg(feature = "getbuf")]
    let base = prop_oneof![10 => base, 1 => lease()];
    base
}

#[cfg(feature = "getbuf")]
fn lease() -> impl Strategy<Value = Step> {
    use crate::transfers::KNOWN;

    let number = || 0usize..64;
    prop_oneof![
        4 => (0..KNOWN, 1usize..40_000).prop_map(|(at, len)| Step::Lend { at, len }),
        4 => (number(), any::<bool>()).prop_map(|(to, whole)| Step::SendLease { to, whole }),
        1 => number().prop_map(Step::PartOfLease),
        2 => (number(), prop::bool::weighted(0.1))
            .prop_map(|(number, forget)| Step::DropLease { number, forget }),
    ]
}
