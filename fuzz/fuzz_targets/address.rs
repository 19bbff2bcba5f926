//! An argument of `handoff cp` is an address, a path, or an error; a parsed one prints back unchanged.
#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use handoff_net::address::Address;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Address::parse(OsStr::from_bytes(bytes)) {
        Ok(Address::File(path)) => assert_eq!(path.as_os_str().as_bytes(), bytes),
        Ok(address) => {
            let shown = address.to_string();
            assert_eq!(Address::parse(OsStr::new(&shown)), Ok(address), "{shown}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
