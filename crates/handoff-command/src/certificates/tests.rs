//! Files as they are and as they should be.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tempfile::TempDir;

use super::*;

/// A directory with a certificate and its key, which is the owner's.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a directory"));
        place.renew(|_| {});
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Another certificate with another key.
    fn renew(&self, change: impl FnOnce(&mut CertificateParams)) {
        let (cert, key) = made(change);
        self.write("cert", &cert, 0o644);
        self.write("key", &key, 0o600);
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        let path = self.path(name);
        fs::write(&path, text).expect("writes");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("sets");
    }

    fn load(&self) -> Result<Identity, String> {
        let loaded = Identity::load(&self.path("cert"), &self.path("key"));
        loaded.map_err(|failure| failure.line().expect("says why"))
    }
}

fn made(change: impl FnOnce(&mut CertificateParams)) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    change(&mut params);
    (params.self_signed(&key).expect("signs").pem(), key.serialize_pem())
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_what_to_do() {
    let place = Place::new();
    assert!(place.load().is_ok());
    let (cert, key) = ["cert", "key"].map(|it| fs::read_to_string(place.path(it)).unwrap()).into();
    let other = made(|_| {}).1;
    let middle = cert.len() / 2;
    let damaged = [&cert[..middle], "!", &cert[middle..]].concat();
    let encrypted = key.replace("PRIVATE", "ENCRYPTED PRIVATE");
    let old = key.replace("PRIVATE KEY-----\n", "RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n");
    for (cert, key, mode, words) in [
        (&*cert, &*key, 0o604, "chmod 600"),
        (&cert, &key, 0o602, "chmod 600"),
        (&cert, &other, 0o600, "the key of another certificate"),
        (&cert, "", 0o600, "it has no private key in PEM"),
        (&cert, &cert, 0o600, "it has no private key in PEM"),
        (&cert, &encrypted, 0o600, "openssl pkey"),
        (&cert, &old, 0o600, "openssl pkey"),
        (&key, &key, 0o600, "is it for --cert-key?"),
        ("", &key, 0o600, "it has no certificate in PEM"),
        (&damaged, &key, 0o600, "no base64"),
        (&cert, &key[..key.len() / 2], 0o600, "cut off"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &key, 0o600, "cert: "),
    ] {
        place.write("cert", cert, 0o644);
        place.write("key", key, mode);
        let why = place.load().map(drop).expect_err(words);
        assert!(why.contains(words), "{why}");
    }
    // Both in one file, and a group that may read.
    let both = [key, cert].concat();
    place.write("cert", &both, 0o640);
    place.write("key", &both, 0o640);
    assert!(place.load().is_ok());
    fs::remove_file(place.path("key")).expect("removes");
    assert!(place.load().map(drop).expect_err("is gone").contains("No such file"));
    let endless = Identity::load(&place.path("cert"), Path::new("/dev/zero"));
    assert!(endless.expect_err("is endless").line().expect("says why").contains("too large"));
}

#[test]
fn a_certificate_out_of_its_time_is_told_of() {
    let provider = provider::default_provider();
    let place = Place::new();
    let warned = |cert: &Path, now: u64| {
        let certified = certified(cert, &place.path("key"), &provider).expect("fits");
        warning(cert, &certified, &provider, SystemTime::UNIX_EPOCH + Duration::from_secs(now))
    };
    for is_authority in [false, true] {
        place.renew(|params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
            if is_authority {
                params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            }
        });
        let at = |now| warned(&place.path("cert"), now);
        assert_eq!(at(1_000_000_000), None);
        let late = at(1_100_000_000).expect("is late");
        assert!(late.contains("expired at 2002-01-01T00:00:00Z"), "{late}");
        let early = at(900_000_000).expect("is early");
        assert!(early.contains("valid from 2001-01-01T00:00:00Z"), "{early}");
    }
}

#[test]
fn a_renewed_pair_is_used_once_it_fits() {
    let place = Place::new();
    let identity = place.load().expect("fits");
    let used = || {
        let mut current = identity.0.current.lock().expect("nobody panics");
        identity.0.look(&mut current);
        current.certified.cert[0].clone()
    };
    let first = used();
    let (cert, key) = made(|_| {});
    place.write("cert.new", &cert, 0o644);
    place.write("key.new", &key, 0o600);
    fs::rename(place.path("cert.new"), place.path("cert")).expect("renames");
    assert_eq!(used(), first, "its key is still to come");
    fs::rename(place.path("key.new"), place.path("key")).expect("renames");
    let second = used();
    assert_ne!(second, first);
    place.write("key", &key, 0o604);
    fs::remove_file(place.path("cert")).expect("removes");
    assert_eq!(used(), second, "there is no other");
    // As the message says to do, which changes nothing that the file has.
    let (cert, key) = made(|_| {});
    place.write("cert", &cert, 0o644);
    place.write("key", &key, 0o604);
    assert_eq!(used(), second, "everybody may read the key");
    fs::set_permissions(place.path("key"), fs::Permissions::from_mode(0o600)).expect("sets");
    assert_ne!(used(), second);
}

#[test]
fn authorities_are_those_of_the_file() {
    let place = Place::new();
    assert_eq!(authorities(Some(&place.path("cert"))).expect("has one").len(), 1);
    let why = authorities(Some(&place.path("key"))).expect_err("has none");
    assert!(why.line().expect("says why").contains("no certificate"), "{why:?}");
    assert!(server_name("example.net").is_ok() && server_name("192.0.2.1").is_ok());
    assert!(server_name("a b").is_err());
}
