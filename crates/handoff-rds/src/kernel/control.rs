//! Control messages: the cookie of a message sent, the cookies of messages completed.

use std::mem::MaybeUninit;

use handoff_sys::rds::{
    CMSG_ZCOPY_COMPLETION, CMSG_ZCOPY_COOKIE, MAX_ZCOOKIES, SOL_RDS, ZcopyCookies,
};

/// `struct cmsghdr`: length (of a word), level, type.
const HEADER: usize = size_of::<libc::cmsghdr>();
/// Control messages begin at multiples of this.
const ALIGN: usize = size_of::<usize>();

/// Control data with one cookie, for `sendmsg`.
#[repr(C, align(8))]
pub(super) struct Cookie([u8; HEADER + ALIGN]);

impl Cookie {
    pub(super) fn new(cookie: u32) -> Self {
        let mut bytes = [0; HEADER + ALIGN];
        bytes[..ALIGN].copy_from_slice(&(HEADER + size_of::<u32>()).to_ne_bytes());
        bytes[ALIGN..][..4].copy_from_slice(&SOL_RDS.to_ne_bytes());
        bytes[ALIGN + 4..][..4].copy_from_slice(&CMSG_ZCOPY_COOKIE.to_ne_bytes());
        bytes[HEADER..][..4].copy_from_slice(&cookie.to_ne_bytes());
        Self(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Room for control messages from `recvmsg`.
#[repr(C, align(8))]
pub(super) struct ControlBuffer([MaybeUninit<u8>; Self::LEN]);

impl ControlBuffer {
    /// More than one kind may come at a time; without this room the kernel does not report completions.
    const LEN: usize = 4 * (HEADER + size_of::<ZcopyCookies>().next_multiple_of(ALIGN));

    pub(super) fn new() -> Self {
        Self([const { MaybeUninit::new(0) }; Self::LEN])
    }

    pub(super) fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut self.0
    }

    /// The cookies among the first `len` bytes.
    pub(super) fn cookies(&self, len: usize) -> impl Iterator<Item = u32> + use<> {
        // SAFETY: initialised from the beginning, and the kernel only writes bytes.
        let bytes = self.0.map(|byte| unsafe { byte.assume_init() });
        let mut cookies = [0; Self::LEN / size_of::<u32>()];
        let (mut rest, mut count) = (&bytes[..len.min(Self::LEN)], 0);
        while let Some((length, kind)) = rest.split_first_chunk() {
            let length = usize::from_ne_bytes(*length);
            let Some(content) = rest.get(HEADER..length) else { break };
            let is = [SOL_RDS.to_ne_bytes(), CMSG_ZCOPY_COMPLETION.to_ne_bytes()].concat();
            if kind.starts_with(&is) {
                let (words, _) = content.as_chunks();
                let mut words = words.iter().map(|word| u32::from_ne_bytes(*word));
                let told = words.next().unwrap_or_default() as usize;
                for cookie in words.take(told.min(MAX_ZCOOKIES)) {
                    cookies[count] = cookie;
                    count += 1;
                }
            }
            let Some(behind) = rest.get(length.next_multiple_of(ALIGN)..) else { break };
            rest = behind;
        }
        cookies.into_iter().take(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(bytes: &[u8]) -> Vec<u32> {
        let mut control = ControlBuffer::new();
        for (room, byte) in control.room().iter_mut().zip(bytes) {
            room.write(*byte);
        }
        control.cookies(bytes.len()).collect()
    }

    fn message(kind: i32, words: &[u32]) -> Vec<u8> {
        let mut bytes = (HEADER + 4 * words.len()).to_ne_bytes().to_vec();
        bytes.extend(SOL_RDS.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        bytes
    }

    #[test]
    fn cookies_are_found_among_others_and_no_more_than_are_told() {
        let full = message(CMSG_ZCOPY_COMPLETION, &[3, 7, 7, u32::MAX, 9, 9, 9, 9, 9]);
        assert_eq!(told(&full), [7, 7, u32::MAX]);
        let other = message(5, &[1, 2]);
        assert_eq!(told(&[other.clone(), full.clone()].concat()), [7, 7, u32::MAX]);
        assert_eq!(told(&other), []);
        assert_eq!(told(&full[..20]), []);
        let lying = message(CMSG_ZCOPY_COMPLETION, &[400, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(told(&lying), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
