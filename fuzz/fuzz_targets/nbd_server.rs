//! Whatever an NBD client sends, in any pieces, is negotiated, read as requests or refused, within the limits and with the
//! same result for any pieces.
#![no_main]

use handoff_nbd::server::{
    Event, Expect, Export, Exports, Limits, Listed, Negotiation, Policy, Refused, Requests, Step,
    Tls,
};
use handoff_nbd::target::BlockSizes;
use handoff_nbd::wire::TransmissionFlags;
use libfuzzer_sys::fuzz_target;

const MAXIMUM: u32 = 4096;

struct Table;

impl Exports for Table {
    fn list(&self) -> Vec<Listed> {
        vec![Listed { name: "a".into(), description: "b".into() }]
    }

    fn find(&self, name: &str) -> Result<Export, Refused> {
        if name == "?" {
            return Err(Refused::Unknown);
        }
        Ok(Export {
            name: name.into(),
            description: String::new(),
            size: 1 << 40,
            flags: TransmissionFlags::all() - TransmissionFlags::READ_ONLY,
            block: BlockSizes { minimum: 1, preferred: 512, maximum: MAXIMUM },
            needs_block_sizes: name == "!",
            has_allocation: true,
        })
    }
}

/// All that comes of a stream, fed `cut` bytes at a time: what is sent, and what is read.
fn read(stream: &[u8], cut: usize) -> (Vec<u8>, Vec<String>) {
    let limits = Limits { option: 100, skipped: 200, options: 20, queries: 3 };
    let policy = Policy { tls: Tls::Offered, ..Policy::default() };
    let (mut negotiation, greeting) = Negotiation::new(policy, limits);
    let (mut sent, mut read) = (greeting.to_vec(), Vec::new());
    let mut rest = stream;
    let mut given = 0;
    let agreed = loop {
        let (taken, step) = match negotiation.next(&rest[..given], &Table) {
            Ok(next) => next,
            Err(violation) => return (sent, vec![violation.to_string()]),
        };
        (rest, given) = (&rest[taken..], given - taken);
        match step {
            Step::More if given == rest.len() => return (sent, read),
            Step::More => {
                assert_eq!(given, 0, "all was taken");
                given = rest.len().min(cut);
            }
            Step::Send(bytes) => sent.extend(bytes),
            Step::StartTls(bytes) => {
                sent.extend(bytes);
                negotiation.tls_started();
            }
            Step::Session(session) if session.turn % 2 == 0 => sent.extend(negotiation.admit(1)),
            Step::Session(_) => sent.extend(negotiation.reject("no")),
            Step::Abort(_) => return (sent, read),
            Step::Ready(bytes, agreed) => {
                sent.extend(bytes);
                break agreed;
            }
            Step::Waiting => unreachable!("all steps were answered"),
        }
    };
    let mut requests = Requests::new(agreed.target);
    for mut piece in rest.chunks(cut) {
        loop {
            let (taken, event) = match requests.next(piece) {
                Ok(next) => next,
                Err(violation) => {
                    read.push(violation.to_string());
                    return (sent, read);
                }
            };
            piece = &piece[taken..];
            match event {
                None => {
                    assert!(piece.is_empty());
                    break;
                }
                // Pieces of payload are the stream's; their sum is in the request.
                Some(Event::Payload(at)) => assert!(at < u64::from(MAXIMUM)),
                Some(Event::Request(request, answer)) => {
                    assert!(request.payload() <= u64::from(MAXIMUM));
                    assert!(request.length == 0 || request.offset + request.length <= 1 << 40);
                    if request.payload() > 0 {
                        assert_eq!(requests.expect(), Expect::Payload(request.payload()));
                    }
                    read.push(format!("{request:?} {:?}", answer.done()));
                }
                Some(Event::Refused(refusal, answer)) => {
                    sent.extend(answer.fail(refusal.error, refusal.text));
                }
                Some(Event::Disconnect) => read.push("disconnects".into()),
            }
        }
    }
    (sent, read)
}

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, 1), whole);
    assert_eq!(read(bytes, 7), whole);
});
