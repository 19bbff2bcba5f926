//! `cp --lend`: what the kernel has of a file goes on without being read.

use std::fs;

use handoff_testbed::running::Running;

use crate::session::{cp, path, pattern};

#[test]
fn what_makes_no_sense_is_usage() {
    for (args, word) in [
        (&["/dev/null", "-"][..], "file"),
        (&["a", "b", "--verify"], "--verify"),
        (&["a", "tcp://127.0.0.1:1", "--engine", "msg-zerocopy"], "MSG_ZEROCOPY"),
    ] {
        let args = [args, &["--lend", "always"]].concat();
        Running::start(&mut cp(&args)).end().says(2, word);
    }
}

#[test]
fn a_file_that_is_to_be_read_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, pattern(100_000)).expect("writes");
    let args = [path(&source), path(&copy), "--json", "--lend", "never"];
    let report = Running::start(&mut cp(&args)).end().report();
    assert_eq!(report["hops"][0]["copied"], 100_000, "{report}");
    assert!(fs::read(&copy).expect("is there") == pattern(100_000));
}

mod guest {
    use std::fs;

    use handoff_testbed::running::Running;
    use handoff_testbed::{Pair, load};

    use crate::session::{cp, path, pattern, transfer};

    const LEN: usize = 8_000_001;

    #[test]
    fn a_file_goes_over_the_wire_and_nothing_is_copied() {
        load("getbuf", &[]).expect("the lab's kernel has it");
        let pair = Pair::wire(4_148).expect("a pair of NICs");
        let (left, right) = (pair.left.namespace(), pair.right.namespace());
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        for (streams, lend, engine) in [("1", "auto", "auto"), ("4", "always", "uring-zc")] {
            let sender = ["--json", "--lend", lend, "--engine", engine, "--streams", streams];
            let receiver = ["--json", "--force", "--streams", streams];
            let host = pair.right.v4().to_string();
            let (received, sent) =
                transfer(Some((left, right)), &host, &source, &copy, &receiver, &sender);
            received.report();
            let sent = sent.report();
            let (lent, out) = (&sent["hops"][0], &sent["hops"][1]);
            assert_eq!(
                (&lent["engine"], &lent["to"]),
                (&"get-buf".into(), &"ring".into()),
                "{sent}"
            );
            assert_eq!((&lent["zero_copy"], &lent["copied"]), (&LEN.into(), &0.into()), "{sent}");
            if engine == "uring-zc" {
                // Frames around the payload, and ends that joined the packet before.
                assert!(
                    out["copied"].as_u64().is_some_and(|it| it < 64 << 10) && out["unknown"] == 0,
                    "{sent}"
                );
            }
            assert!(fs::read(&copy).expect("is there") == pattern(LEN));
        }
    }

    #[test]
    fn a_file_goes_to_a_file_past_the_page_cache_and_through_it() {
        load("getbuf", &[]).expect("the lab's kernel has it");
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(LEN)).expect("writes");
        for (options, direct) in
            [(&["--lend", "always", "--direct"][..], true), (&["--lend", "always"], false)]
        {
            let args = [&[path(&source), path(&copy), "--json", "--force"], options].concat();
            let report = Running::start(&mut cp(&args)).end().report();
            assert_eq!(report["hops"][0]["zero_copy"], LEN, "{report}");
            let copied = report["hops"][1]["copied"].as_u64().expect("a number");
            // The end does not fill a page.
            assert_eq!(copied, if direct { LEN as u64 % 4_096 } else { LEN as u64 }, "{report}");
            assert!(fs::read(&copy).expect("is there") == pattern(LEN));
        }
    }

    #[test]
    fn a_checksum_is_over_bytes_that_are_read() {
        load("getbuf", &[]).expect("the lab's kernel has it");
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
        fs::write(&source, pattern(100_000)).expect("writes");
        let args = [path(&source), path(&copy), "--json", "--verify"];
        let report = Running::start(&mut cp(&args)).end().report();
        assert_eq!(report["hops"][0]["copied"], 100_000, "{report}");
        assert!(report["checksum"].is_string(), "{report}");
    }
}
