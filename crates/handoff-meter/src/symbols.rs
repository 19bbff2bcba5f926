//! Names of kernel addresses.
//!
//! Kernel interface: `/proc/modules`, and `/proc/kallsyms`, which shows addresses to CAP_SYSLOG
//! (`kernel.kptr_restrict`). The meter needs them: for breakpoints, and to name call paths.

use std::fs;
use std::io;
use std::ops::Range;

/// No function is larger than this. Older kernels do not list the trampolines of BPF; the limit keeps
/// such code from passing for the function before it.
const LARGEST: u64 = 64 << 10;

/// The kernel's functions by address.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// The kernel's text; it has some 200,000 names, so they stay where they are.
    listing: String,
    /// Addresses and names, sorted; each function reaches to the next.
    functions: Vec<(u64, Range<usize>)>,
    /// The modules at that time, and their addresses.
    modules: Vec<(String, String)>,
}

impl Symbols {
    pub(crate) fn of_kernel() -> io::Result<Self> {
        // Modules first: one that is loaded meanwhile is then noticed.
        let modules = modules(&fs::read_to_string("/proc/modules").unwrap_or_default());
        Ok(Self { modules, ..Self::parse(fs::read_to_string("/proc/kallsyms")?) })
    }

    /// Reads the symbols again if other modules are loaded now: otherwise their functions would pass for
    /// those of old modules.
    pub(crate) fn refresh(&mut self) -> io::Result<()> {
        if modules(&fs::read_to_string("/proc/modules")?) != self.modules {
            *self = Self::of_kernel()?;
        }
        Ok(())
    }

    fn parse(listing: String) -> Self {
        let mut functions = Vec::new();
        let mut begin = 0;
        for line in listing.split_inclusive('\n') {
            if let Some((address, name)) = function(line) {
                functions.push((address, begin + name.start..begin + name.end));
            }
            begin += line.len();
        }
        functions.sort_unstable_by_key(|(address, _)| *address);
        Self { listing, functions, modules: Vec::new() }
    }

    /// The start of the function with this name, if there is exactly one.
    pub(crate) fn address(&self, name: &str) -> Option<u64> {
        let named = |range: &Range<usize>| &self.listing[range.clone()] == name;
        let mut found = self.functions.iter().filter(|(_, range)| named(range));
        let (address, _) = found.next()?;
        found.next().is_none().then_some(*address)
    }

    /// The name of the function that `address` is in.
    pub(crate) fn name(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, _)| *start <= address);
        let (start, range) = self.functions.get(after.checked_sub(1)?)?;
        (address - start < LARGEST).then(|| &self.listing[range.clone()])
    }
}

/// `NAME SIZE USERS USED-BY STATE ADDRESS`: names and addresses, which stay the same while the module is
/// loaded.
fn modules(listing: &str) -> Vec<(String, String)> {
    let module = |line: &str| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?.to_owned(), fields.nth(4)?.to_owned()))
    };
    listing.lines().filter_map(module).collect()
}

/// `ADDRESS TYPE NAME [MODULE]`, if it is code and the address is shown: the address, and where in the
/// line the name is.
fn function(line: &str) -> Option<(u64, Range<usize>)> {
    let (address, rest) = line.split_once(' ')?;
    let (kind, rest) = rest.split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    if address == 0 || !matches!(kind, "t" | "T" | "w" | "W") {
        return None;
    }
    let begin = line.len() - rest.len();
    let name = rest.split_ascii_whitespace().next()?;
    Some((address, begin..begin + name.len()))
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
        let symbols = Symbols::parse(LISTING.to_owned());
        assert_eq!(symbols.name(0xffff_ffff_8100_0100), Some("first"));
        assert_eq!(symbols.name(0xffff_ffff_8100_01ff), Some("first"));
        assert_eq!(symbols.name(0xffff_ffff_8100_0200), Some("second"));
        assert_eq!(symbols.name(0xffff_ffff_c000_0010), Some("in_module"));
        assert_eq!(symbols.name(0xffff_ffff_8100_0000), None);
        assert_eq!(symbols.name(0xffff_ffff_8100_0200 + LARGEST), None);
    }

    #[test]
    fn a_name_that_two_functions_have_is_no_address() {
        let twice = format!("{LISTING}ffffffff81000300 t first\n");
        assert_eq!(
            Symbols::parse(LISTING.to_owned()).address("first"),
            Some(0xffff_ffff_8100_0100)
        );
        assert_eq!(Symbols::parse(twice.clone()).address("first"), None);
        assert_eq!(Symbols::parse(twice.clone()).address("not_code"), None);
    }

    #[test]
    fn a_module_is_the_same_whoever_uses_it() {
        let one =
            "loop 49152 0 - Live 0xffffffffc0123000\nwire 1 0 - Live 0xffffffffc0200000 (OE)\n";
        let found = modules(one);
        assert_eq!(found[0], ("loop".to_owned(), "0xffffffffc0123000".to_owned()));
        assert_eq!(found[1].1, "0xffffffffc0200000");
        assert_eq!(modules(&one.replace("loop 49152 0 -", "loop 49152 2 a,b,")), found);
        assert_ne!(modules(&one.replace("c0123000", "c0456000")), found);
    }

    #[test]
    fn hidden_addresses_give_no_names() {
        let symbols = Symbols::parse("0000000000000000 T hidden\n".to_owned());
        assert_eq!(symbols.name(u64::MAX), None);
    }
}
