//! What the command says, in words, JSON and exit codes.

use super::host::{Host, nothing_is_left};

#[test]
fn show_tells_programs_and_people() {
    let host = Host::new();
    let device = host.device();
    let all = host.answer(&["show"]);
    let names: Vec<_> = all.as_array().expect("a list").iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["lo", device]);
    assert_eq!(all[0]["obstacles"][0]["weight"], "blocks");
    let one = host.answer(&["show", device]);
    assert_eq!(one["driver"], "wire");
    assert_eq!(one["channels"], serde_json::json!({ "kind": "combined", "now": 4, "max": 8 }));
    assert_eq!(one["queues"].as_array().expect("a list").len(), 4);
    assert_eq!(one["prepared"], serde_json::Value::Null);
    let weights: Vec<_> =
        one["obstacles"].as_array().expect("a list").iter().map(|one| &one["weight"]).collect();
    assert_eq!(weights, ["prepared", "prepared"]);

    let text = |arguments: &[&str]| {
        let output = host.nic(arguments);
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let overview = text(&["show"]);
    assert_eq!(overview.lines().count(), 2, "{overview}");
    assert!(overview.contains("no: it is the loopback interface"), "{overview}");
    assert!(overview.contains("4 queues  can be prepared"), "{overview}");
    let full = text(&["show", device]);
    for line in ["driver       wire", "split        off", "RSS          128 entries to 0,1,2,3"] {
        assert!(full.contains(line), "{full}");
    }
}

#[test]
fn a_dry_run_says_all_and_does_nothing() {
    let host = Host::new();
    let before = host.settings();
    let arguments = ["prepare", host.device(), "--queues", "2", "--port", "8000", "--dry-run"];
    let answer = host.answer(&arguments);
    assert_eq!(answer["queues"], serde_json::json!([2, 3]));
    let steps: Vec<_> = answer["steps"].as_array().expect("a list").iter().collect();
    assert_eq!(steps.len(), 4);
    assert!(steps[1]["change"]["table"].is_object(), "{steps:?}");
    let output = host.nic(&arguments);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("queues 2, 3 get only what rules send there"), "{text}");
    assert!(text.ends_with("queues 2,3 would be set aside\n"), "{text}");
    let spread = host.answer(&[&arguments[..], &["--spread"]].concat());
    let steps = spread["steps"].as_array().expect("a list");
    assert_eq!(steps[2]["text"], "RSS context 1: spreads over queues 2, 3");
    assert_eq!(steps[3]["change"]["rule"]["context"], 1, "{steps:?}");
    assert_eq!(host.settings(), before);
    nothing_is_left();
}

#[test]
fn what_is_kept_is_shown_and_restored() {
    let host = Host::new();
    let device = host.device();
    let before = host.settings();
    let kept = host.answer(&["prepare", device, "--port", "8000", "--port", "8001", "--hw-gro"]);
    assert_eq!(kept["undo"], format!("handoff nic restore {device}"));
    let shown = host.answer(&["show", device]);
    assert_eq!(shown["prepared"]["queues"], kept["queues"]);
    assert_eq!(shown["rules"]["rules"].as_array().expect("a list").len(), 4);
    assert_eq!(shown["rules"]["rules"][0]["target"], serde_json::json!({ "queue": 3 }));
    for again in [&["prepare", device][..], &["prepare", device, "--dry-run"]] {
        let line = host.refused(again, 1);
        assert!(line.contains("is prepared until it is restored"), "{line}");
    }
    let undone = host.answer(&["restore", "--all"]);
    assert_eq!(undone[0]["put_back"].as_array().expect("a list").len(), 7);
    assert_eq!(host.settings(), before);
    nothing_is_left();
    assert_eq!(host.answer(&["restore", "--all"]), serde_json::json!([]));
}

#[test]
fn refusals_are_one_line_with_their_code() {
    let host = Host::new();
    let device = host.device();
    for (arguments, code, expected) in [
        (&["prepare", "lo"][..], 3, "it is the loopback interface"),
        (&["prepare", "eth77"], 2, "no network interface"),
        (&["show", "eth77"], 2, "here are: lo"),
        (&["restore", device], 2, "is not prepared"),
        (&["restore", "eth77"], 2, "none was prepared"),
        (&["prepare", device, "--queues", "8"], 3, "can set aside 7"),
        (&["prepare", device, "--queue", "0"], 3, "own traffic"),
        (&["prepare", device, "--queue", "8"], 2, "has no queue 8"),
        (&["prepare", device, "--rx-buf-len", "8192"], 3, "length of rx buffers"),
        (&["prepare", device, "--", "/no/such/program"], 2, "cannot be started"),
    ] {
        let line = host.nic(arguments);
        assert_eq!(line.status.code(), Some(code), "{arguments:?}");
        let line = String::from_utf8(line.stderr).expect("UTF-8");
        assert!(line.lines().last().is_some_and(|line| line.contains(expected)), "{line}");
    }
    for nonsense in [&["prepare"][..], &["restore"], &["prepare", device, "--queues", "0"]] {
        assert_eq!(host.nic(nonsense).status.code(), Some(2), "{nonsense:?}");
    }
    nothing_is_left();
}
