//! Which requests a target allows.

use handoff_nbd::request::{Operation, Request};
use handoff_nbd::target::Target;
use handoff_nbd::wire::{
    Command, CommandFlags, ErrorCode, Framing, RequestHeader, TransmissionFlags,
};

use super::table::{SIZE, target};

const READ: Operation = Operation::Read { unfragmented: false };
const ZEROES: Operation = Operation::WriteZeroes { no_hole: true, fast: false };
const STATUS: Operation = Operation::BlockStatus { one: false };

fn check(target: &Target, operation: Operation, offset: u64, length: u64) -> Result<(), ErrorCode> {
    let request = Request { operation, offset, length, fua: false };
    request.check(target).map_err(|refusal| refusal.error)
}

#[test]
fn ranges_are_inside_aligned_and_small_enough() {
    use ErrorCode::{Inval, NoSpc, Overflow};
    let extended = target(Framing::Extended);
    let table = [
        (READ, 0, 512, Ok(())),
        (READ, SIZE - 512, 512, Ok(())),
        (READ, SIZE, 512, Err(Inval)),
        (READ, SIZE - 512, 1024, Err(Inval)),
        (READ, u64::MAX - 511, 512, Err(Inval)),
        (READ, 0, 0, Err(Inval)),
        (READ, 1, 512, Err(Inval)),
        (READ, 0, 513, Err(Inval)),
        (READ, 0, 1 << 16, Ok(())),
        (READ, 0, (1 << 16) + 512, Err(Overflow)),
        (Operation::Write, 0, 1 << 16, Ok(())),
        (Operation::Write, 0, (1 << 16) + 512, Err(Inval)),
        (Operation::Write, SIZE, 512, Err(NoSpc)),
        (ZEROES, SIZE - 512, 1024, Err(NoSpc)),
        (ZEROES, 0, SIZE, Ok(())),
        (Operation::Trim, 0, SIZE, Ok(())),
        (Operation::Trim, 512, SIZE, Err(Inval)),
        (STATUS, 0, SIZE, Ok(())),
        (STATUS, SIZE, 512, Err(Inval)),
        (Operation::Flush, 0, 0, Ok(())),
        (Operation::Flush, 0, 512, Err(Inval)),
        (Operation::Flush, 512, 0, Err(Inval)),
    ];
    for (operation, offset, length, expected) in table {
        let result = check(&extended, operation, offset, length);
        assert_eq!(result, expected, "{operation:?} of {length} at {offset}");
    }
    let simple = target(Framing::Simple);
    assert_eq!(check(&simple, READ, 0, (1 << 16) + 512), Err(Inval), "no reply could have it");
}

#[test]
fn only_what_was_announced_is_allowed() {
    let all = target(Framing::Structured);
    let fast = Operation::WriteZeroes { no_hole: false, fast: true };
    for (flag, operation) in [
        (TransmissionFlags::SEND_DF, Operation::Read { unfragmented: true }),
        (TransmissionFlags::SEND_FLUSH, Operation::Flush),
        (TransmissionFlags::SEND_TRIM, Operation::Trim),
        (TransmissionFlags::SEND_CACHE, Operation::Cache),
        (TransmissionFlags::SEND_WRITE_ZEROES, ZEROES),
        (TransmissionFlags::SEND_FAST_ZERO, fast),
    ] {
        let length = if operation == Operation::Flush { 0 } else { 512 };
        let with = Target { flags: all.flags | flag, ..all };
        let without = Target { flags: all.flags - flag, ..all };
        assert_eq!(check(&with, operation, 0, length), Ok(()), "{operation:?}");
        assert_eq!(check(&without, operation, 0, length), Err(ErrorCode::Inval), "{operation:?}");
    }
    let without = Target { has_contexts: false, ..all };
    assert_eq!(check(&without, STATUS, 0, 512), Err(ErrorCode::Inval));
    let without = Target { flags: all.flags - TransmissionFlags::SEND_FUA, ..all };
    let durable = Request { operation: Operation::Write, offset: 0, length: 512, fua: true };
    assert_eq!(durable.check(&all), Ok(()));
    assert!(durable.check(&without).is_err());
    let read_only = Target { flags: all.flags | TransmissionFlags::READ_ONLY, ..all };
    for operation in [Operation::Write, Operation::Trim, ZEROES] {
        assert_eq!(check(&read_only, operation, 0, 512), Err(ErrorCode::Perm));
    }
    assert_eq!(check(&read_only, READ, 0, 512), Ok(()));
}

#[test]
fn flags_belong_to_their_commands() {
    let structured = target(Framing::Structured);
    let extended = target(Framing::Extended);
    let parse = |target: &Target, command, flags| {
        let length = if command == Command::Flush { 0 } else { 512 };
        let header = RequestHeader { flags, command, cookie: 1, offset: 0, length };
        Request::parse(&header, target).is_ok()
    };
    let (none, payload) = (CommandFlags::empty(), CommandFlags::PAYLOAD_LEN);
    assert!(parse(&structured, Command::Read, CommandFlags::DF | CommandFlags::FUA));
    assert!(!parse(&structured, Command::Write, CommandFlags::DF));
    assert!(parse(&structured, Command::WriteZeroes, CommandFlags::NO_HOLE));
    assert!(!parse(&structured, Command::Trim, CommandFlags::NO_HOLE));
    assert!(parse(&structured, Command::BlockStatus, CommandFlags::REQ_ONE));
    assert!(!parse(&structured, Command::Read, CommandFlags::REQ_ONE));
    assert!(!parse(&structured, Command::Read, CommandFlags::from_bits_retain(1 << 9)));
    assert!(!parse(&structured, Command::Other(77), none));
    assert!(
        parse(&structured, Command::Write, none) && !parse(&structured, Command::Write, payload)
    );
    assert!(parse(&extended, Command::Write, none) && parse(&extended, Command::Write, payload));
    assert!(!parse(&extended, Command::Read, payload));
}
