//! What lies on a disk that becomes a leg: file systems, partition tables, members of a RAID or volume group, swap.
//!
//! A mirror takes the end of each leg. So what says how long it is may stay if it ends before; everything else is
//! refused. A look at a few magic numbers, not a check of what they stand for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::page::PAGE;

/// Bytes at the beginning and at the end that have all magic numbers.
const HEAD: usize = 320 << 10;
const TAIL: u64 = 192 << 10;

/// Something that uses a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) what: &'static str,
    /// The bytes that it uses from the beginning on, if it says so.
    pub(super) size: Option<u64>,
}

/// The beginning of a disk, and its end.
struct Disk {
    head: Vec<u8>,
    tail: Vec<u8>,
    len: u64,
}

/// Signatures with a magic number at the beginning that tells no length that we read: they are refused.
const STRICT: [(usize, &[u8], &str); 14] = [
    (0, b"LUKS\xba\xbe", "a LUKS header"),
    (3, b"-FVE-FS-", "a BitLocker volume"),
    (0, b"dmvdo001", "a VDO volume"),
    (0, b"bluestore block device", "a Ceph OSD"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (0x8001, b"BEA01", "a UDF file system"),
    (0x400, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    (0x400, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS file system"),
    (0x400, b"H+\0\x04", "an HFS+ file system"),
    (
        0x1018,
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba,
            0x6d, 0x81,
        ],
        "a bcache or bcachefs device",
    ),
    (0x10034, b"ReIsErFs", "a ReiserFS file system"),
    (0x10034, b"ReIsEr2Fs", "a ReiserFS file system"),
    (0x10034, b"ReIsEr3Fs", "a ReiserFS file system"),
    (0x8000, b"JFS1", "a JFS file system"),
];

/// Magic numbers that lie so far before the end of a disk.
const AT_END: [(u64, &[u8], &str); 4] = [
    (512, b"EFI PART", "the second copy of a GPT"),
    (4096, b"EFI PART", "the second copy of a GPT"),
    (512, &[0xde, 0x11, 0xde, 0x11], "a DDF RAID"),
    (1024, b"Intel Raid ISM Cfg Sig. ", "an Intel RAID"),
];
const MD: [u8; 4] = 0xa92b_4efcu32.to_le_bytes();

/// What uses a disk of so many bytes.
pub(super) fn find(disk: &File, len: u64) -> io::Result<Vec<Signature>> {
    let mut head = vec![0; HEAD.min((len - len % PAGE) as usize)];
    read(disk, 0, &mut head)?;
    let end = len - len % PAGE;
    let start = end.saturating_sub(TAIL);
    let mut tail = vec![0; (end - start) as usize];
    read(disk, start, &mut tail)?;
    Ok(Disk { head, tail, len: end }.signatures())
}

/// Reads whole pages, by memory that O_DIRECT takes.
fn read(disk: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
    let mut own = vec![0; bytes.len() + PAGE as usize];
    let start = own.as_ptr().align_offset(PAGE as usize);
    let piece = &mut own[start..][..bytes.len()];
    disk.read_exact_at(piece, at)?;
    bytes.copy_from_slice(piece);
    Ok(())
}

impl Disk {
    fn has(&self, at: usize, magic: &[u8]) -> bool {
        self.head.get(at..at + magic.len()) == Some(magic)
    }

    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.head.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().unwrap_or([0; N])
    }

    fn le16(&self, at: usize) -> u64 {
        u16::from_le_bytes(self.number(at)).into()
    }

    fn le32(&self, at: usize) -> u64 {
        u32::from_le_bytes(self.number(at)).into()
    }

    fn le64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.number(at))
    }

    fn signatures(&self) -> Vec<Signature> {
        let strict = STRICT.iter().filter(|(at, magic, _)| self.has(*at, magic));
        let strict = strict.map(|(.., what)| Signature { what, size: None });
        let at_end = AT_END.iter().filter(|(before, magic, _)| {
            self.len.checked_sub(*before).is_some_and(|at| self.tail_has(at, magic))
        });
        let at_end = at_end.map(|(.., what)| Signature { what, size: None });
        let mut found: Vec<_> = strict.chain(at_end).chain(self.md_at_end()).collect();
        if (128 << 10..256 << 10).step_by(1024).any(|at| self.le64(at) == 0x00ba_b10c) {
            found.push(Signature { what: "a member of a ZFS pool", size: None });
        }
        found.extend(self.sized());
        found
    }

    fn tail_has(&self, at: u64, magic: &[u8]) -> bool {
        let start = self.len - self.tail.len() as u64;
        let at = at.checked_sub(start).map(|at| at as usize);
        at.is_some_and(|at| self.tail.get(at..at + magic.len()) == Some(magic))
    }

    /// md's superblocks of the layouts 0.90 and 1.0.
    fn md_at_end(&self) -> Option<Signature> {
        let old = (self.len & !0xffff).checked_sub(0x10000);
        let sectors = (self.len >> 9).checked_sub(16).map(|sectors| sectors & !7);
        let places = [old, sectors.map(|sectors| sectors << 9)];
        let is_there = places.into_iter().flatten().any(|at| self.tail_has(at, &MD));
        is_there.then_some(Signature { what: "a member of an md array", size: None })
    }

    /// Those that say how much of the disk they use.
    fn sized(&self) -> Vec<Signature> {
        let all = [
            self.ext(),
            self.xfs(),
            self.btrfs(),
            self.swap(),
            self.fat_or_table(),
            self.gpt(),
            self.squashfs(),
            self.md(),
            self.lvm(),
        ];
        all.into_iter()
            .flatten()
            .map(|(what, size)| Signature { what, size: size.filter(|size| *size > 0) })
            .collect()
    }

    fn ext(&self) -> Option<(&'static str, Option<u64>)> {
        self.has(0x438, &[0x53, 0xef]).then(|| {
            let is_64bit = self.le32(0x460) & 0x80 != 0;
            let blocks = self.le32(0x404) | if is_64bit { self.le32(0x550) << 32 } else { 0 };
            let size = 1024u64.checked_shl(self.le32(0x418) as u32);
            ("an ext2, ext3 or ext4 file system", size.and_then(|size| blocks.checked_mul(size)))
        })
    }

    fn xfs(&self) -> Option<(&'static str, Option<u64>)> {
        self.has(0, b"XFSB").then(|| {
            let (block, blocks) =
                (u32::from_be_bytes(self.number(4)), u64::from_be_bytes(self.number(8)));
            ("an XFS file system", blocks.checked_mul(block.into()))
        })
    }

    fn btrfs(&self) -> Option<(&'static str, Option<u64>)> {
        // Of its own description as a device.
        self.has(0x10040, b"_BHRfS_M")
            .then(|| ("a btrfs file system", Some(self.le64(0x10000 + 0xd1))))
    }

    fn swap(&self) -> Option<(&'static str, Option<u64>)> {
        let pages = [4096usize, 8192, 16384, 65536];
        let page = pages.into_iter().find(|page| self.has(page - 10, b"SWAPSPACE2"))?;
        Some(("swap", (self.le32(0x404) + 1).checked_mul(page as u64)))
    }

    fn squashfs(&self) -> Option<(&'static str, Option<u64>)> {
        self.has(0, b"hsqs").then(|| ("a SquashFS file system", Some(self.le64(0x28))))
    }

    /// md's superblocks of the layouts 1.1 and 1.2.
    fn md(&self) -> Option<(&'static str, Option<u64>)> {
        let at = [0, 4096].into_iter().find(|at| self.has(*at, &MD))?;
        let sectors = self.le64(at + 128).checked_add(self.le64(at + 136));
        Some(("a member of an md array", sectors.and_then(|sectors| sectors.checked_mul(512))))
    }

    fn lvm(&self) -> Option<(&'static str, Option<u64>)> {
        let at = (0..4).map(|sector| sector * 512).find(|at| self.has(*at, b"LABELONE"))?;
        let volume = at + self.le32(at + 20) as usize;
        Some(("an LVM volume", Some(self.le64(volume + 32))))
    }

    /// What begins with a boot sector.
    fn fat_or_table(&self) -> Option<(&'static str, Option<u64>)> {
        if self.has(3, b"NTFS    ") {
            let sector = self.le16(0x0b).max(512);
            // The last sector is a copy of the first.
            let sectors = self.le64(0x28).checked_add(1);
            return Some(("an NTFS file system", sectors.and_then(|it| it.checked_mul(sector))));
        }
        if self.has(3, b"EXFAT   ") {
            let size = self.le64(0x48).checked_mul(1 << (self.number::<1>(0x6c)[0] % 16));
            return Some(("an exFAT file system", size));
        }
        if !self.has(0x1fe, &[0x55, 0xaa]) {
            return None;
        }
        if self.has(0x36, b"FAT") || self.has(0x52, b"FAT32") {
            let sectors = [self.le16(0x13), self.le32(0x20)].into_iter().max().unwrap_or_default();
            return Some(("a FAT file system", Some(sectors * self.le16(0x0b))));
        }
        let entries = [0x1beusize, 0x1ce, 0x1de, 0x1ee];
        let used = entries.into_iter().filter(|at| self.number::<1>(at + 4)[0] != 0);
        let ends = used.filter(|at| self.number::<1>(at + 4)[0] != 0xee);
        let ends = ends.map(|at| (self.le32(at + 8) + self.le32(at + 12)) * 512);
        ends.max().map(|end| ("a partition table", Some(end)))
    }

    fn gpt(&self) -> Option<(&'static str, Option<u64>)> {
        let block = [512usize, 4096].into_iter().find(|block| self.has(*block, b"EFI PART"))?;
        // Its second copy is the last that it uses.
        let size = self.le64(block + 32).checked_add(1).and_then(|it| it.checked_mul(block as u64));
        Some(("a partition table (GPT)", size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 16 << 20;

    fn disk(parts: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(LEN).expect("made");
        parts.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).expect("written"));
        file
    }

    #[track_caller]
    fn assert_is(parts: &[(u64, &[u8])], what: &str, size: Option<u64>) {
        let found = find(&disk(parts), LEN).expect("read");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].what.contains(what), "{found:?}");
        assert_eq!(found[0].size, size, "{what}");
    }

    #[test]
    fn what_says_its_length_is_measured() {
        let le32 = |number: u32| number.to_le_bytes();
        let le64 = |number: u64| number.to_le_bytes();
        let ext = [
            (0x438, &[0x53, 0xef][..]),
            (0x404, &le32(1000)),
            (0x418, &le32(2)),
            (0x460, &le32(0x80)),
            (0x550, &le32(1)),
        ];
        assert_is(&ext, "ext4", Some(((1 << 32) + 1000) * 4096));
        assert_is(&ext[..3], "ext4", Some(1000 * 4096));
        let xfs = [(0, &b"XFSB\0\0\x10\0"[..]), (8, &1000u64.to_be_bytes())];
        assert_is(&xfs, "XFS", Some(1000 * 4096));
        assert_is(&[(0x10040, b"_BHRfS_M"), (0x100d1, &le64(777 << 12))], "btrfs", Some(777 << 12));
        assert_is(&[(4086, b"SWAPSPACE2"), (0x404, &le32(99))], "swap", Some(100 * 4096));
        assert_is(&[(65526, b"SWAPSPACE2"), (0x404, &le32(9))], "swap", Some(10 << 16));
        let mut table = [0; 512];
        (table[0x1fe], table[0x1ff], table[0x1ce + 4]) = (0x55, 0xaa, 0x83);
        table[0x1ce + 8..0x1ce + 12].copy_from_slice(&le32(2048));
        table[0x1ce + 12..0x1ce + 16].copy_from_slice(&le32(1000));
        assert_is(&[(0, &table)], "partition table", Some(3048 * 512));
        assert_is(&[(512, b"EFI PART"), (544, &le64(9999))], "GPT", Some(10_000 * 512));
        assert_is(&[(4096, &MD), (4224, &le64(2048)), (4232, &le64(100))], "md", Some(2148 * 512));
        let lvm = [(512, &b"LABELONE"[..]), (532, &le32(32)), (512 + 64, &le64(5 << 20))];
        assert_is(&lvm, "LVM", Some(5 << 20));
        assert_is(&[(3, b"NTFS    "), (0x28, &le64(99)), (0x0b, &[0, 2])], "NTFS", Some(51200));
    }

    #[test]
    fn what_does_not_say_it_or_lies_at_the_end_has_none() {
        for (at, magic, what) in STRICT {
            assert_is(&[(at as u64, magic)], what, None);
        }
        for (before, magic, what) in AT_END {
            assert_is(&[(LEN - before, magic)], what, None);
        }
        assert_is(&[(LEN - 8192, &MD)], "md", None);
        assert_is(&[(LEN - 65536, &MD)], "md", None);
        let uberblock = 0x00ba_b10cu64.to_le_bytes();
        assert_is(&[(140 << 10, &uberblock)], "ZFS", None);
        // A length that makes no sense is none.
        assert_is(&[(0x438, &[0x53, 0xef]), (0x418, &[0xff; 4])], "ext4", None);
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        assert_eq!(find(&disk(&[]), LEN).expect("read"), []);
        assert_eq!(find(&disk(&[(100, b"bytes of a program")]), LEN).expect("read"), []);
        assert_eq!(find(&disk(&[]), 100).expect("read"), []);
    }
}
