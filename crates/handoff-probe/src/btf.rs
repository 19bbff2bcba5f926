//! Finds a type or a function by name in the running kernel's description of its types.
//!
//! Kernel interface: `/sys/kernel/btf/vmlinux` (Linux 5.4), format in `include/uapi/linux/btf.h`.

use std::fs;
use std::io;

const MAGIC: u16 = 0xeb9f;

/// The kinds that a probe looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Struct = 4,
    Func = 12,
}

/// The kernel's type information.
pub(super) struct Btf {
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl Btf {
    /// Reads the running kernel's type information.
    pub(super) fn of_kernel() -> io::Result<Self> {
        let bytes = fs::read("/sys/kernel/btf/vmlinux")?;
        Self::parse(&bytes).ok_or_else(|| io::Error::other("/sys/kernel/btf/vmlinux is malformed"))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        if half(bytes, 0)? != MAGIC {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let section = |offset: usize| {
            let start = header.checked_add(word(bytes, offset)? as usize)?;
            let end = start.checked_add(word(bytes, offset + 4)? as usize)?;
            Some(bytes.get(start..end)?.to_vec())
        };
        Some(Self { types: section(8)?, strings: section(16)? })
    }

    /// The type id of this kind and name.
    pub(super) fn find(&self, kind: Kind, name: &str) -> Option<u32> {
        let mut offset = 0;
        let mut id = 1;
        while offset < self.types.len() {
            let info = word(&self.types, offset + 4)?;
            let (found, members) = (info >> 24 & 0x1f, info as usize & 0xffff);
            if found == kind as u32 && self.string(word(&self.types, offset)?) == name.as_bytes() {
                return Some(id);
            }
            offset += 12 + trailing(found, members)?;
            id += 1;
        }
        None
    }

    fn string(&self, offset: u32) -> &[u8] {
        let tail = self.strings.get(offset as usize..).unwrap_or_default();
        tail.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// How many bytes follow the 12 of a type; `None` for a kind of a later format.
fn trailing(kind: u32, members: usize) -> Option<usize> {
    Some(match kind {
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => 12 * members,
        // ENUM, FUNC_PROTO
        6 | 13 => 8 * members,
        _ => return None,
    })
}

fn half(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An int, a struct with one member, and a function.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0io_uring_bpf_ops\0loop_step\0";
        let (int, ops, step) = (1u32, 5u32, 22u32);
        let mut types = Vec::new();
        let mut put = |words: &[u32]| {
            types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        };
        put(&[int, 1 << 24, 4, 32]);
        put(&[ops, 4 << 24 | 1, 8, step, 1, 0]);
        put(&[step, 12 << 24, 1]);
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        for word in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn types_are_found_by_kind_and_name() {
        let btf = Btf::parse(&sample()).expect("well formed");
        assert_eq!(btf.find(Kind::Struct, "io_uring_bpf_ops"), Some(2));
        assert_eq!(btf.find(Kind::Func, "loop_step"), Some(3));
        assert_eq!(btf.find(Kind::Func, "io_uring_bpf_ops"), None);
        assert_eq!(btf.find(Kind::Struct, "nothing"), None);
    }

    #[test]
    fn damage_is_no_panic() {
        let whole = sample();
        for len in 0..whole.len() {
            if let Some(btf) = Btf::parse(&whole[..len]) {
                btf.find(Kind::Func, "loop_step");
            }
        }
        let mut wrong = whole;
        wrong[8..12].fill(0xff);
        assert!(Btf::parse(&wrong).is_none());
    }
}
