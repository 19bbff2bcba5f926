//! The text of a file is certificates or an error, and a private key or an error; each error is one line.
#![no_main]

use handoff_command::certificates::{chain, private_key, server_name};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match chain(bytes) {
        Ok(chain) => assert!(!chain.is_empty()),
        Err(why) => assert!(!why.is_empty() && !why.contains('\n')),
    }
    if let Err(why) = private_key(bytes) {
        assert!(!why.is_empty() && !why.contains('\n'));
    }
    if let Ok(name) = std::str::from_utf8(bytes)
        && let Err(failure) = server_name(name)
    {
        assert!(failure.line().is_some_and(|line| !line.contains('\n')));
    }
});
