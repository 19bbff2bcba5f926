//! Files lent from the page cache to software NICs, where nothing is copied; and files that the kernel ciphers.

use std::net::TcpStream;

use handoff_testbed::{Pair, load};

use crate::https::{Site, files_come};
use crate::session::Server;
use crate::session::{ask, command, content, directory};

#[test]
fn files_leave_without_a_copy() {
    const LENGTHS: [usize; 2] = [1 << 20, 3_000_001];
    load("getbuf", &[]).expect("the lab's kernel has it");
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let place = directory(&[("0", LENGTHS[0]), ("1", LENGTHS[1])]);
    let listen = format!("{}:0", pair.right.v4());
    let from = format!("{}/32", pair.left.v4());
    let mut command = command(place.path(), &["--json", "--listen", &listen, "--from", &from]);
    pair.right.namespace().attach(&mut command);
    let serving = Server::start_as(command);
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let stream = pair.left.namespace().run(|| TcpStream::connect(serving.address));
        let answer = ask(stream.expect("enters").expect("connects"), &format!("GET /{number}"), "");
        assert_eq!((answer.status, answer.body == content(len)), (200, true), "{number}");
    }
    let report = serving.stop();
    let all = LENGTHS.iter().sum::<usize>() as u64;
    assert_eq!(report["taken"]["zero_copy"], all, "{report}");
    let given = report["given"]["zero_copy"].as_u64().expect("a number");
    // Heads are copied, and what joins the packet of one before is called so.
    assert!(given > all / 10 * 9, "{report}");
    assert_eq!(report["notes"], serde_json::json!([]), "{report}");
}

#[test]
fn files_come_over_tls_that_the_kernel_ciphers() {
    load("tls", &[]).expect("the lab's kernel has it");
    let site = Site::new();
    files_come(&site, site.serve(&["--threads", "2"]), true);
}
