//! Names of kernel addresses.
//!
//! Kernel interface: `/proc/kallsyms`, which shows addresses to CAP_SYSLOG
//! (`kernel.kptr_restrict`). The meter needs them: for breakpoints, and to name call paths.

use std::fs;
use std::io;

/// The kernel's functions by address.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// Sorted; each function reaches to the next.
    functions: Vec<(u64, Box<str>)>,
}

impl Symbols {
    pub(crate) fn of_kernel() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/kallsyms")?))
    }

    fn parse(listing: &str) -> Self {
        let mut functions: Vec<(u64, Box<str>)> = listing.lines().filter_map(function).collect();
        functions.sort_unstable_by_key(|(address, _)| *address);
        Self { functions }
    }

    /// Where the function of this name begins, if there is just one.
    pub(crate) fn address(&self, name: &str) -> Option<u64> {
        let mut found = self.functions.iter().filter(|(_, function)| &**function == name);
        let (address, _) = found.next()?;
        found.next().is_none().then_some(*address)
    }

    /// The name of the function that `address` is in.
    pub(crate) fn name(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, _)| *start <= address);
        self.functions.get(after.checked_sub(1)?).map(|(_, name)| &**name)
    }
}

/// `ADDRESS TYPE NAME [MODULE]`, if it is code and the address is shown.
fn function(line: &str) -> Option<(u64, Box<str>)> {
    let mut fields = line.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    if address == 0 || !matches!(fields.next()?, "t" | "T" | "w" | "W") {
        return None;
    }
    Some((address, fields.next()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
ffffffff81000200 T second
ffffffff81000100 t first
ffffffff81000180 D not_code
0000000000000000 T hidden
ffffffffc0000000 t in_module\t[some]
";

    #[test]
    fn an_address_belongs_to_the_function_that_starts_before_it() {
        let symbols = Symbols::parse(LISTING);
        assert_eq!(symbols.name(0xffff_ffff_8100_0100), Some("first"));
        assert_eq!(symbols.name(0xffff_ffff_8100_01ff), Some("first"));
        assert_eq!(symbols.name(0xffff_ffff_8100_0200), Some("second"));
        assert_eq!(symbols.name(0xffff_ffff_c000_0010), Some("in_module"));
        assert_eq!(symbols.name(0xffff_ffff_8100_0000), None);
    }

    #[test]
    fn a_name_that_two_functions_have_is_no_address() {
        let twice = format!("{LISTING}ffffffff81000300 t first\n");
        assert_eq!(Symbols::parse(LISTING).address("first"), Some(0xffff_ffff_8100_0100));
        assert_eq!(Symbols::parse(&twice).address("first"), None);
        assert_eq!(Symbols::parse(&twice).address("not_code"), None);
    }

    #[test]
    fn hidden_addresses_give_no_names() {
        let symbols = Symbols::parse("0000000000000000 T hidden\n");
        assert_eq!(symbols.name(u64::MAX), None);
    }
}
