//! What the kernel copies, by the meter: nothing but the heads of records.

use std::fs::File;
use std::future::IntoFuture as _;
use std::time::{Duration, Instant};

use futures_lite::future::try_zip;
use handoff::tls::Ciphering;
use handoff::{Driver, Error, Region, Route, Socket};
use handoff_meter::{Meter, Options, Scope};

use crate::tls::fixture::pair;
use crate::traffic::{filled, within};

const LEN: usize = 4 << 20;
const RECORDS: u64 = (LEN as u64).div_ceil(16 << 10);
/// Bytes of a record that the kernel copies: its head.
const HEAD: u64 = 5;
/// Of heads that are looked at again, before all of their record has come, and for what others copy meanwhile.
const SLACK: u64 = LEN as u64 / 500;

/// Kernel threads copy for others too, and the meter cannot tell for whom. That only adds, and ends.
const QUIET_WITHIN: Duration = Duration::from_secs(10);

fn little_is_copied(what: &str, mut carry: impl FnMut()) {
    let scope = Scope::Tree(std::process::id());
    let meter = Meter::attach_with(Options { scope, paths: true, libc: false }).expect("counts");
    let most = RECORDS * HEAD + SLACK;
    let (begun, mut counts) = (Instant::now(), Vec::new());
    while begun.elapsed() < QUIET_WITHIN {
        let before = meter.totals().expect("counts");
        carry();
        let spent = meter.totals().expect("counts").since(before);
        let copied = spent.copied_bytes + spent.unattributed_bytes;
        if copied <= most {
            println!("{what}: {copied} of {LEN} bytes copied");
            return;
        }
        counts.push(copied);
    }
    let report = meter.read().expect("counts");
    panic!("{what}: copied {counts:?} bytes, where {most} were to be: {report:#?}");
}

fn ends(driver: &Driver) -> (Socket, Socket) {
    pair(driver, Ciphering::Kernel)
}

/// From registered memory into such.
#[test]
fn registered_memory_is_ciphered_and_nothing_else() {
    within(Duration::from_secs(60), || {
        let driver = Driver::new().expect("a driver");
        let (near, far) = ends(&driver);
        let mut region = Region::anonymous(2 * LEN).expect("memory");
        driver.register(&region).expect("registered");
        let mut buffers =
            Some((filled(&mut region, 1, LEN), region.take(LEN).expect("there is room")));
        little_is_copied("by slots", || {
            let (from, into) = buffers.take().expect("they came back");
            let sending = near.send(from).expect("accepted").into_future();
            let receiving = far.receive_exact(into).expect("accepted");
            let done = driver.block_on(try_zip(sending, receiving));
            let (sent, received) = done.expect("driven").expect("done");
            assert_eq!((sent.sent.unwrap(), received.result.unwrap()), (LEN, LEN));
            assert!(sent.buffer[..] == received.buffer[..], "what arrived differs");
            buffers = Some((sent.buffer, received.buffer));
        });
    });
}

/// A file from the page cache, into the chunks of a pool.
#[test]
fn a_file_goes_to_spans_and_is_ciphered_only() {
    within(Duration::from_secs(60), || {
        let driver = Driver::new().expect("a driver");
        let (near, far) = ends(&driver);
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, crate::traffic::pattern(1, LEN)).expect("written");
        let file = driver.file(File::open(&path).expect("opened")).expect("attached");
        let region = Region::anonymous(32 << 16).expect("memory");
        let pool = driver.pool(region, 1 << 16).expect("a pool");
        let mut receiver = far.receive(&pool).expect("received");
        little_is_copied("a file to spans", || {
            let mut route = Route::new(&driver, (&file, 0..u64::MAX), &near);
            let taking = async {
                let mut got = 0;
                while got < LEN {
                    got += receiver.next_span().await.expect("it goes on")?.len();
                }
                Ok::<_, Error>(got)
            };
            let carrying = async {
                let carried = route.run().await;
                carried.result.map(|()| carried.bytes)
            };
            let done = driver.block_on(try_zip(carrying, taking));
            assert_eq!(done.expect("driven").expect("done"), (LEN as u64, LEN));
        });
    });
}
