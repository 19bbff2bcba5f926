//! Names of functions by addresses: of the kernel, and of programs and their libraries.

use std::{collections::HashMap, fs, path::Path};

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};

use crate::samples::Sample;

/// Functions by address, sorted; each reaches to the next.
struct Table(Vec<(u64, String)>);

impl Table {
    fn new(mut functions: Vec<(u64, String)>) -> Self {
        functions.sort();
        Self(functions)
    }

    fn name(&self, address: u64) -> Option<&str> {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        self.0.get(after.checked_sub(1)?).map(|(_, name)| name.as_str())
    }
}

/// A file's code in a process.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: String,
}

/// A program or a library: its functions, and where its segments lie in the file.
struct Binary {
    functions: Table,
    /// Offset in the file, length, address.
    segments: Vec<(u64, u64, u64)>,
}

pub(super) struct Names {
    kernel: Table,
    mappings: HashMap<u32, Vec<Mapping>>,
    binaries: HashMap<String, Option<Binary>>,
}

impl Names {
    /// # Errors
    ///
    /// One line that says why the kernel's functions are not known.
    pub(super) fn new() -> Result<Self, String> {
        let listing = fs::read_to_string("/proc/kallsyms");
        let listing = listing.map_err(|error| format!("/proc/kallsyms: {error}"))?;
        let functions: Vec<_> = listing.lines().filter_map(kernel_function).collect();
        if functions.iter().all(|(address, _)| *address == 0) {
            return Err("/proc/kallsyms shows no addresses (kernel.kptr_restrict)".to_owned());
        }
        let (mappings, binaries) = (HashMap::new(), HashMap::new());
        Ok(Self { kernel: Table::new(functions), mappings, binaries })
    }

    /// The function of a sample; its library, if that has no names.
    pub(super) fn of(&mut self, sample: &Sample) -> String {
        const UNKNOWN: &str = "unknown";
        if !sample.user {
            return self.kernel.name(sample.address).unwrap_or(UNKNOWN).to_owned();
        }
        let mappings = self.mappings.entry(sample.process).or_insert_with(|| {
            let maps = fs::read_to_string(format!("/proc/{}/maps", sample.process));
            maps.unwrap_or_default().lines().filter_map(mapping).collect()
        });
        let within = |it: &&Mapping| (it.start..it.end).contains(&sample.address);
        let Some(mapping) = mappings.iter().find(within) else { return UNKNOWN.to_owned() };
        let binary = self.binaries.entry(mapping.path.clone()).or_insert_with_key(|path| {
            // The calling program may be a file without a name.
            let bytes = match sample.process == std::process::id() && !Path::new(path).exists() {
                true => fs::read("/proc/self/exe"),
                false => fs::read(path),
            };
            bytes.ok().and_then(|bytes| Binary::parse(&bytes))
        });
        let at = sample.address - mapping.start + mapping.offset;
        match binary.as_ref().and_then(|binary| binary.name(at)) {
            Some(name) => name.to_owned(),
            None => Path::new(&mapping.path)
                .file_name()
                .map_or(mapping.path.clone(), |name| name.to_string_lossy().into_owned()),
        }
    }
}

impl Binary {
    /// `None` for what is no program, or has no names: those that it exports say nothing of the code between them.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let file = object::File::parse(bytes).ok()?;
        let text = |it: &object::Symbol<'_, '_>| it.kind() == SymbolKind::Text && it.address() != 0;
        let functions: Vec<_> = file
            .symbols()
            .filter(text)
            .filter_map(|it| Some((it.address(), it.name().ok()?.to_owned())))
            .collect();
        let segments = file.segments().map(|it| {
            let (offset, len) = it.file_range();
            (offset, len, it.address())
        });
        let segments = segments.collect();
        (!functions.is_empty()).then(|| Self { functions: Table::new(functions), segments })
    }

    /// The function at this offset in the file.
    fn name(&self, offset: u64) -> Option<&str> {
        let within = |(start, len, _): &&(u64, u64, u64)| (*start..start + len).contains(&offset);
        let (start, _, address) = self.segments.iter().find(within)?;
        self.functions.name(offset - start + address)
    }
}

/// `ADDRESS TYPE NAME [MODULE]`, if it is code.
fn kernel_function(line: &str) -> Option<(u64, String)> {
    let mut fields = line.split_ascii_whitespace();
    let (address, kind, name) = (fields.next()?, fields.next()?, fields.next()?);
    if !matches!(kind, "t" | "T" | "w" | "W") {
        return None;
    }
    Some((u64::from_str_radix(address, 16).ok()?, name.to_owned()))
}

/// `START-END r-xp OFFSET DEVICE INODE PATH`, if it is code of a file.
fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (range, rights, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let path = fields.nth(2)?.to_owned();
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    rights.contains('x').then_some(())?;
    Some(Mapping { start: number(start)?, end: number(end)?, offset: number(offset)?, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_and_data_is_not() {
        let line = "ffffffffc0a01230 t aes_gcm_enc_update\t[aesni_intel]";
        assert_eq!(
            kernel_function(line),
            Some((0xffff_ffff_c0a0_1230, "aes_gcm_enc_update".into()))
        );
        assert_eq!(kernel_function("ffffffff82000000 D data"), None);
        let table = Table::new(vec![(30, "b".into()), (10, "a".into())]);
        assert_eq!((table.name(9), table.name(10), table.name(29)), (None, Some("a"), Some("a")));
        assert_eq!(table.name(31), Some("b"));
        assert!(mapping("55d0-55e0 rw-p 0000 fe:00 12 /bin/x").is_none());
        let code = mapping("1000-2000 r-xp 00300 fe:00 12      /bin/x").expect("is code");
        assert_eq!(
            (code.start, code.end, code.offset, &*code.path),
            (0x1000, 0x2000, 0x300, "/bin/x")
        );
    }

    /// This test's own function, by its address in this program.
    #[test]
    fn functions_of_this_program_have_names() {
        let Ok(mut names) = Names::new() else { return };
        let sample = Sample {
            user: true,
            address: (functions_of_this_program_have_names as fn() as usize + 1) as u64,
            process: std::process::id(),
            thread: 0,
        };
        let name = names.of(&sample);
        assert!(name.contains("functions_of_this_program_have_names"), "{name}");
    }
}
