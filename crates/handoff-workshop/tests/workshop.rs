//! The other program, as users meet it: by way of `handoff`.

use std::process::{Command, Output};

use product::product;

#[path = "product/mod.rs"]
mod product;

/// `handoff`, which starts it.
fn handoff(args: &[&str]) -> Output {
    Command::new(product()).args(args).output().expect("handoff starts")
}

fn workshop(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_handoff-workshop")).args(args).output().expect("it starts")
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn the_product_starts_it_with_all_that_was_typed() {
    for args in
        [&["bench", "send", "--help"][..], &["lab", "run", "-h"], &["--json", "tour", "--help"]]
    {
        let output = handoff(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        let help = text(output.stdout);
        let command = args.iter().find(|word| !word.starts_with('-')).expect("one");
        assert!(help.contains(&format!("Usage: handoff {command}")), "{help}");
    }
    let output = handoff(&["--json", "bench", "send", "--no-such-option"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an object");
    assert!(object["error"].as_str().expect("a text").contains("--no-such-option"), "{object}");
}

#[test]
fn pages_and_completions_cover_both() {
    let page = text(handoff(&["man", "bench", "send"]).stdout);
    assert!(
        page.contains(".TH handoff-bench-send 1") && page.contains("handoff bench send"),
        "{page}"
    );
    assert!(page.contains("quick"), "{page}");
    assert!(text(workshop(&["man"]).stdout).contains(".TH handoff-workshop 1"));
    for shell in ["bash", "zsh", "fish"] {
        let ours = text(workshop(&["completions", shell]).stdout);
        let both = text(handoff(&["completions", shell]).stdout);
        for script in [&ours, &both] {
            // An option that only a bench has.
            assert!(script.contains("working-set"), "{shell}: {script}");
        }
        // A command that only the product has.
        assert!(both.contains("relay") && !ours.contains("relay "), "{shell}: {ours}");
    }

    let place = tempfile::tempdir().expect("a directory");
    let man = place.path().to_str().expect("UTF-8");
    assert!(workshop(&["man", "--all", man]).status.success());
    let count =
        |names: &[&str]| names.iter().filter(|name| place.path().join(name).exists()).count();
    assert_eq!(count(&["handoff-workshop.1", "handoff-bench-send.1", "handoff-tour.1"]), 3);
    assert_eq!(count(&["handoff.1", "handoff-workshop-bench.1"]), 0);
}

mod native {
    mod lab {
        use crate::{handoff, text};

        #[test]
        fn a_command_at_its_time_out_shows_where_it_stands() {
            let command = ["lab", "run", "--timeout", "3", "--", "sh", "-c", "echo up; sleep 1000"];
            let output = handoff(&command);
            let (code, text) = (output.status.code(), text(output.stderr));
            if code == Some(3) {
                handoff_testbed::skip!("{text}");
            }
            assert_eq!(code, Some(124), "{text}");
            assert_eq!(output.stdout, b"up\n");
            let lines: Vec<&str> = text.lines().collect();
            let told = "handoff lab: the command was ended at its time-out";
            let begin = lines.iter().position(|line| *line == told).expect(&text);
            let below = lines[begin + 1..].join("\n");
            assert!(below.contains(" sleep: state S") && below.contains("_nanosleep"), "{text}");
        }
    }
}
