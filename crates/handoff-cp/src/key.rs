//! The KEY of a transfer over TLS: what it has, and how people read and type it. Nothing is read or written here.
//!
//! Contracts:
//! - a text is a KEY only if its checksum says so, so a mistake is found before anything is sent;
//! - what is told of a mistake has nothing of the KEY;
//! - its bytes are zeroed when it is dropped, and it has no form for logs.
//!
//! A KEY has 128 bits of the hash (SHA-256) of the public key in the listener's certificate, 128 random bits that only
//! both ends know, and 24 bits of a hash over these. It is written in 56 letters and digits, in groups of four.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256, digest};
use aws_lc_rs::hmac;
use zeroize::{Zeroize as _, Zeroizing};

/// Without I, L, O and U: the first three look like digits, which are read instead.
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const GROUP: usize = 4;

/// Bytes of the listener's name, the hash of its public key.
pub(crate) const NAME: usize = 16;
const SECRET: usize = 16;
const CHECK: usize = 3;
const BYTES: usize = NAME + SECRET + CHECK;
/// Five bits each.
const LEN: usize = BYTES * 8 / 5;

/// Bytes of a proof.
pub(crate) const PROOF: usize = 32;

/// What a typed KEY is, if it is none. It says nothing of what was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Mistake {
    /// Too few or too many letters.
    #[error("a KEY has {LEN} letters and digits, and this has {0}: type it again")]
    Length(usize),
    /// A character that no KEY has; the number of its group.
    #[error("group {0} of the KEY has a character that no KEY has: type it again")]
    Letter(usize),
    /// Another letter than was meant.
    #[error("the KEY is mistyped: its checksum does not fit: type it again")]
    Checksum,
}

/// Which end a proof is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The one that connects.
    Connects,
    /// The one that listens.
    Listens,
}

impl End {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Connects => b"handoff cp, KEY 1: the end that connects",
            Self::Listens => b"handoff cp, KEY 1: the end that listens",
        }
    }
}

/// The KEY.
pub(crate) struct Key {
    name: [u8; NAME],
    secret: [u8; SECRET],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.name.zeroize();
        self.secret.zeroize();
    }
}

/// The name of whoever has this public key, which is its SubjectPublicKeyInfo.
pub(crate) fn name_of(public_key: &[u8]) -> [u8; NAME] {
    *digest(&SHA256, public_key).as_ref().first_chunk().expect("a hash is longer")
}

fn checksum(name: &[u8], secret: &[u8]) -> [u8; CHECK] {
    let mut context = Context::new(&SHA256);
    context.update(b"handoff cp, KEY 1: checksum");
    context.update(name);
    context.update(secret);
    *context.finish().as_ref().first_chunk().expect("a hash is longer")
}

impl Key {
    /// For the listener of this name, with a new secret.
    ///
    /// # Errors
    ///
    /// When the generator of random bits fails.
    pub(crate) fn new(name: [u8; NAME]) -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut key = Self { name, secret: [0; SECRET] };
        aws_lc_rs::rand::fill(&mut key.secret)?;
        Ok(key)
    }

    /// Reads what somebody typed: in capitals or not, with hyphens and spaces where they like.
    ///
    /// # Errors
    ///
    /// That it is none.
    pub(crate) fn parse(text: &str) -> Result<Self, Mistake> {
        let typed = || text.chars().filter(|it| !it.is_whitespace() && *it != '-');
        let mut bytes = Zeroizing::new([0_u8; BYTES]);
        for (place, letter) in typed().enumerate() {
            let letter = match letter.to_ascii_lowercase() {
                'o' => '0',
                'i' | 'l' => '1',
                other => other,
            };
            let value = LETTERS.iter().position(|it| char::from(*it) == letter);
            let value = value.ok_or(Mistake::Letter(1 + place / GROUP))?;
            for bit in 0..5 {
                let at = 5 * place + bit;
                if let Some(byte) = bytes.get_mut(at / 8) {
                    *byte |= (((value >> (4 - bit)) & 1) as u8) << (7 - at % 8);
                }
            }
        }
        if typed().count() != LEN {
            return Err(Mistake::Length(typed().count()));
        }
        let mut key = Self { name: [0; NAME], secret: [0; SECRET] };
        key.name.copy_from_slice(&bytes[..NAME]);
        key.secret.copy_from_slice(&bytes[NAME..NAME + SECRET]);
        match checksum(&key.name, &key.secret) == bytes[NAME + SECRET..] {
            true => Ok(key),
            false => Err(Mistake::Checksum),
        }
    }

    /// The text to read and to type.
    pub(crate) fn text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new([0_u8; BYTES]);
        bytes[..NAME].copy_from_slice(&self.name);
        bytes[NAME..NAME + SECRET].copy_from_slice(&self.secret);
        bytes[NAME + SECRET..].copy_from_slice(&checksum(&self.name, &self.secret));
        // It never grows, which would leave a copy behind.
        let mut text = Zeroizing::new(String::with_capacity(LEN + LEN / GROUP));
        for place in 0..LEN {
            let bit = |at: usize| usize::from((bytes[at / 8] >> (7 - at % 8)) & 1);
            let value = (0..5).fold(0, |value, number| (value << 1) | bit(5 * place + number));
            if place > 0 && place % GROUP == 0 {
                text.push('-');
            }
            text.push(char::from(LETTERS[value]));
        }
        text
    }

    /// The name of its listener.
    pub(crate) fn name(&self) -> [u8; NAME] {
        self.name
    }

    fn message(end: End, session: &[u8]) -> Zeroizing<Vec<u8>> {
        Zeroizing::new([end.label(), session].concat())
    }

    fn for_proofs(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.secret)
    }

    /// Proves that this end has the KEY, in the session that exports this.
    pub(crate) fn proof(&self, end: End, session: &[u8]) -> [u8; PROOF] {
        let tag = hmac::sign(&self.for_proofs(), &Self::message(end, session));
        *tag.as_ref().first_chunk().expect("a tag of SHA-256")
    }

    /// Whether that is the proof of this end; in constant time.
    pub(crate) fn proves(&self, end: End, session: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&self.for_proofs(), &Self::message(end, session), proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> Key {
        Key::new(name_of(b"a public key")).expect("random bits")
    }

    fn mistake(text: &str) -> Mistake {
        Key::parse(text).expect_err("it is none")
    }

    #[test]
    fn it_is_read_however_it_is_typed() {
        let key = key();
        let text = key.text();
        assert_eq!((text.len(), text.split('-').count()), (69, 14));
        let typed = text.replace('-', " ").to_uppercase().replace('0', "O").replace('1', "l");
        for typed in [text.as_str(), &typed, &format!("  {}\n", text.replace('-', ""))] {
            let read = Key::parse(typed).expect("the same");
            assert_eq!((read.name, read.secret), (key.name, key.secret));
        }
        assert_ne!(*text, *self::key().text(), "each has a secret of its own");
    }

    #[test]
    fn mistakes_are_found_and_tell_nothing_of_the_key() {
        let text = key().text();
        assert_eq!(mistake(""), Mistake::Length(0));
        assert_eq!(mistake(&text[1..]), Mistake::Length(55));
        assert_eq!(mistake(&format!("{}7", *text)), Mistake::Length(57));
        assert_eq!(
            mistake(&text.replacen(&text[10..11], "u", 9)),
            Mistake::Letter(
                1 + text
                    .replacen(&text[10..11], "u", 9)
                    .replace('-', "")
                    .find('u')
                    .expect("is there")
                    / GROUP
            )
        );
        for place in (0..text.len()).filter(|place| place % 5 != 4) {
            let mut other = text.as_bytes().to_vec();
            other[place] = if other[place] == b'7' { b'8' } else { b'7' };
            let other = String::from_utf8(other).expect("ASCII");
            assert_eq!(mistake(&other), Mistake::Checksum, "{place}");
        }
        let (one, other) = (&text[..4], &text[5..9]);
        if one != other {
            assert_eq!(mistake(&format!("{other}-{one}{}", &text[9..])), Mistake::Checksum);
        }
    }

    #[test]
    fn a_proof_is_of_one_end_one_session_and_one_key() {
        let key = key();
        let proof = key.proof(End::Connects, b"session");
        assert!(key.proves(End::Connects, b"session", &proof));
        assert!(!key.proves(End::Listens, b"session", &proof), "it is not sent back");
        assert!(!key.proves(End::Connects, b"another", &proof));
        assert!(!self::key().proves(End::Connects, b"session", &proof));
        assert!(!key.proves(End::Connects, b"session", &[0; PROOF]));
        assert!(key.name() == name_of(b"a public key") && key.name() != name_of(b"another"));
    }

    #[test]
    fn it_has_no_form_for_logs() {
        let key = key();
        assert_eq!(format!("{key:?}"), "Key { .. }");
    }

    proptest! {
        #[test]
        fn any_text_is_a_key_or_a_mistake(text in ".{0,80}") {
            if let Ok(key) = Key::parse(&text) {
                prop_assert_eq!(key.text().replace('-', "").len(), LEN);
            }
        }
    }
}
