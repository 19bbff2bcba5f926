//! Programs that break a rule of ownership do not compile, each for the intended reason.

#[test]
fn broken_rules_do_not_compile() {
    match crate::other_compiler() {
        Some(reason) => println!("HANDOFF-SKIP broken_rules_do_not_compile: {reason}"),
        None => trybuild::TestCases::new().compile_fail("tests/ui/*.rs"),
    }
}
