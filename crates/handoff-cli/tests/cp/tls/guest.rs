//! On a kernel that has TLS.

use std::fs;

use handoff_testbed::load;

use super::{ADDRESS, Listens, files, network_hop, run_with_key};
use crate::session::pattern;

#[test]
fn the_kernel_ciphers_and_nothing_is_copied_on_the_way() {
    const LEN: usize = 3_000_001;
    load("tls", &[]).expect("the lab's kernel has it");
    for (streams, listener_sends) in [("1", false), ("4", true)] {
        let (directory, source, copy) = files(LEN);
        let file = directory.path().join("key");
        let own = if listener_sends { [&source, ADDRESS] } else { [ADDRESS, &copy] };
        // Handshakes may take long under emulation.
        let patient = ["--json", "--connect-timeout", "60"];
        let args = [&patient[..], &["--key-file", file.to_str().unwrap()], &own].concat();
        let listener = Listens::by_file(&args, &file);
        let other = if listener_sends {
            [&listener.address, &*copy]
        } else {
            [&*source, &listener.address]
        };
        let args = [&patient[..], &["--streams", streams, "--verify"], &other].concat();
        let sent = run_with_key(&args, &listener.key).report();
        let received = listener.running.end().report();
        assert!(fs::read(&copy).unwrap() == pattern(LEN), "{streams}");
        for report in [sent, received] {
            let hop = network_hop(&report);
            let engines = (&hop["engine"], &report["tls"]["engine"]);
            assert_eq!(engines, (&"kernel-tls".into(), &"kernel-tls".into()), "{report}");
            assert_eq!((&hop["copied"], &hop["unknown"]), (&0.into(), &0.into()), "{hop}");
            assert!(hop["ciphered"].as_u64().unwrap() >= LEN as u64, "{hop}");
        }
    }
}
