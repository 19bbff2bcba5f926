//! A page: the unit of what lies behind a mirror's data.

use crc_fast::CrcAlgorithm;

/// All is read and written in pages, so that disks of 512 and of 4096 bytes a sector take it.
pub(super) const PAGE: u64 = 4096;

pub(super) type Page = [u8; PAGE as usize];

/// A checksum of accidental damage.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}
