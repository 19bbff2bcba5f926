//! The checksum of a transfer, CRC-64/NVME: of a piece, and of two pieces one after the other.
//!
//! It finds accidental damage by a network or a memory, not forgery.

use crc_fast::{CrcAlgorithm, Digest};

/// The name of the checksum.
pub const CHECKSUM: &str = "CRC-64/NVME";

/// The polynomial without its highest term, lowest power in the highest bit.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// The polynomial 1 in that order of bits.
const ONE: u64 = 1 << 63;

/// x to the power of 2^n: enough for the bits of any length in bytes.
const POWERS: [u64; 67] = {
    let mut powers = [ONE >> 1; 67];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = multiply(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// The product of two polynomials modulo [`POLYNOMIAL`].
const fn multiply(a: u64, mut b: u64) -> u64 {
    let mut product = 0;
    let mut term = ONE;
    while term != 0 {
        if a & term != 0 {
            product ^= b;
        }
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        term >>= 1;
    }
    product
}

/// The checksum of two consecutive pieces, from their checksums; `len` is the length of the second.
///
/// The library's squares matrices, and takes 150 us; this takes less than 1.
pub fn join(first: u64, second: u64, len: u64) -> u64 {
    let mut shift = ONE;
    for bit in 0..64 {
        if len >> bit & 1 == 1 {
            // A byte is eight bits, and so three powers of two further.
            shift = multiply(shift, POWERS[bit + 3]);
        }
    }
    multiply(shift, first) ^ second
}

/// The checksum of so many zero bytes.
pub fn zeros(len: u64) -> u64 {
    // Of no bytes, and of 2^bit of them.
    let mut all = PieceSum::new(true).finish();
    let mut doubling = PieceSum::new(true);
    doubling.update(&[0]);
    let mut part = doubling.finish();
    for bit in 0..64 {
        if len >> bit & 1 == 1 {
            all = join(all, part, 1 << bit);
        }
        part = join(part, part, 1 << bit);
    }
    all
}

/// The checksum of one piece, as its bytes go by.
#[derive(Debug)]
pub struct PieceSum(Option<Digest>);

impl PieceSum {
    /// For a new piece; `wanted` says whether to sum at all.
    pub fn new(wanted: bool) -> Self {
        Self(wanted.then(|| Digest::new(CrcAlgorithm::Crc64Nvme)))
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(digest) = &mut self.0 {
            digest.update(bytes);
        }
    }

    /// The checksum of the bytes so far; 0 if none is wanted.
    pub fn finish(self) -> u64 {
        self.0.map_or(0, |digest| digest.finalize())
    }
}

/// The form in which checksums are shown.
pub(crate) fn hexadecimal(checksum: u64) -> String {
    format!("{checksum:016x}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(bytes: &[u8]) -> u64 {
        let mut sum = PieceSum::new(true);
        sum.update(bytes);
        sum.finish()
    }

    #[test]
    fn it_is_the_one_of_the_catalogue() {
        assert_eq!(sum(b"123456789"), 0xae8b_1486_0a79_9888);
    }

    #[test]
    fn zeros_are_summed_without_being_there() {
        for len in [0, 1, 2, 3, 7, 4096, 100_001] {
            assert_eq!(zeros(len as u64), sum(&vec![0; len]), "{len}");
        }
    }

    proptest! {
        #[test]
        fn joined_is_summed_at_once(
            bytes in prop::collection::vec(any::<u8>(), 0..300), cut: prop::sample::Index,
        ) {
            let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(join(sum(first), sum(second), second.len() as u64), sum(&bytes));
        }

        #[test]
        fn joining_agrees_with_the_library(first: u64, second: u64, len in 0..1u64 << 62) {
            let theirs = crc_fast::checksum_combine(CrcAlgorithm::Crc64Nvme, first, second, len);
            prop_assert_eq!(join(first, second, len), theirs);
        }
    }
}
