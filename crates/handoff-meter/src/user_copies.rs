//! Where the C library copies: the first instructions of its `memcpy`, `memmove` and `mempcpy`.
//!
//! A C library has a variant of each for every generation of processors, and picks one at run time; its
//! symbols lead to the code that picks. So this process, on the same processor, looks where its own
//! calls go.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_void};
use std::fs;
use std::path::PathBuf;

/// The copying functions, by their names in C.
const FUNCTIONS: [&CStr; 3] = [c"memcpy", c"memmove", c"mempcpy"];

/// A place in a library's file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProbePoint {
    pub(crate) library: PathBuf,
    /// Counted from the beginning of the file.
    pub(crate) offset: usize,
}

/// Where this process copies; functions with the same first instruction are one place.
///
/// # Errors
///
/// The cause in one line, if this program shares no C library with others.
pub(crate) fn probe_points() -> Result<BTreeSet<ProbePoint>, String> {
    let maps = fs::read_to_string("/proc/self/maps")
        .map_err(|error| format!("/proc/self/maps cannot be read: {error}"))?;
    let point = |name: &&CStr| {
        // SAFETY: the name is a string that ends in 0, and the address is only looked up.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let point = in_maps(&maps, address).filter(|_| !address.is_null());
        point.ok_or_else(|| format!("this program has no shared {}", name.to_string_lossy()))
    };
    FUNCTIONS.iter().map(point).collect()
}

/// The file mapped at an address, and the offset in it.
fn in_maps(maps: &str, address: *mut c_void) -> Option<ProbePoint> {
    let address = address.addr();
    maps.lines().find_map(|line| {
        // from-to permissions offset device inode path
        let mut fields = line.splitn(6, ' ').map(str::trim);
        let (from, to) = fields.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (from, to) = (number(from)?, number(to)?);
        let offset = number(fields.nth(1)?)?;
        let library = fields.nth(2)?;
        let inside = (from..to).contains(&address) && library.starts_with('/');
        inside.then(|| ProbePoint { library: library.into(), offset: address - from + offset })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0a00000-55d0c0a02000 r--p 00000000 fe:00 131 /usr/bin/a
7f2a10028000-7f2a101bd000 r-xp 00028000 fe:00 4242                       /usr/lib/a b/libc.so.6
7ffc3a1d0000-7ffc3a1f1000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn an_address_is_found_in_its_file() {
        let at = |address: usize| in_maps(MAPS, std::ptr::without_provenance_mut(address));
        let library = PathBuf::from("/usr/lib/a b/libc.so.6");
        assert_eq!(at(0x7f2a_1002_8010), Some(ProbePoint { library, offset: 0x28010 }));
        assert_eq!(at(0x7ffc_3a1d_0000), None, "no file");
        assert_eq!(at(0), None);
    }

    #[test]
    fn ours_are_in_one_library() {
        let probe_points = probe_points().expect("a shared C library");
        let libraries: BTreeSet<_> = probe_points.iter().map(|point| &point.library).collect();
        assert_eq!(libraries.len(), 1, "{probe_points:?}");
    }
}
