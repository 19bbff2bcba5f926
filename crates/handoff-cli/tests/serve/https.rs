//! HTTPS: files over TLS, and what is said where something is wrong with a certificate, a key or a client.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use handoff_sys::ktls::Cipher;
use handoff_testbed::running::Running;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::session::{Answer, Server, answered, command, content, directory};

pub(crate) const LARGE: usize = 1_000_000;

/// A site with a certificate, which lies beside it.
pub(crate) struct Site {
    pub(crate) files: TempDir,
    certificate: TempDir,
    config: Arc<ClientConfig>,
}

/// A TLS connection of a client.
pub(crate) type Secure = StreamOwned<ClientConnection, TcpStream>;

impl Site {
    pub(crate) fn new() -> Self {
        Self::made(|_| {})
    }

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let certificate = tempfile::tempdir().expect("a directory");
        let authority = make(certificate.path(), change);
        let mut roots = RootCertStore::empty();
        roots.add(authority).expect("a certificate");
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let files = directory(&[("large", LARGE), ("small", 100), ("huge", 16 << 20)]);
        Self { files, certificate, config: Arc::new(config) }
    }

    /// A command that serves it.
    pub(crate) fn command(&self, options: &[&str]) -> Command {
        let mut command = command(self.files.path(), &["--json", "--listen", "127.0.0.1:0"]);
        for (option, name) in [("--cert", "cert"), ("--cert-key", "key")] {
            command.arg(option).arg(self.certificate.path().join(name));
        }
        command.args(options);
        command
    }

    pub(crate) fn serve(&self, options: &[&str]) -> Server {
        Server::start_as(self.command(options))
    }

    /// What a client of TLS says first.
    pub(crate) fn client_hello(&self) -> Vec<u8> {
        let mut hello = Vec::new();
        self.connection().write_tls(&mut hello).expect("writes");
        hello
    }

    fn connection(&self) -> ClientConnection {
        let name = "localhost".try_into().expect("a name");
        ClientConnection::new(Arc::clone(&self.config), name).expect("one")
    }

    /// A connection whose handshake is done when it is first used.
    pub(crate) fn secure(&self, stream: TcpStream) -> Secure {
        StreamOwned::new(self.connection(), stream)
    }

    pub(crate) fn ask(&self, serving: &Server, request: &str, fields: &str) -> Answer {
        answered(self.secure(serving.connect()), request, fields)
    }

    pub(crate) fn assert_answered(&self, serving: &Server) {
        let answer = self.ask(serving, "GET /large", "");
        assert!(answer.status == 200 && answer.body == content(LARGE), "{}", answer.status);
    }
}

/// Writes a certificate for localhost, and its key.
fn make(into: &Path, change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    change(&mut params);
    let certificate = params.self_signed(&key).expect("signs");
    fs::write(into.join("cert"), certificate.pem()).expect("writes");
    fs::write(into.join("key"), key.serialize_pem()).expect("writes");
    fs::set_permissions(into.join("key"), Permissions::from_mode(0o600)).expect("sets");
    certificate.der().clone()
}

/// Files and ranges come over TLS, and the report says who ciphered.
pub(crate) fn files_come(site: &Site, serving: Server, by_kernel: bool) {
    for _ in 0..2 {
        site.assert_answered(&serving);
        let part = site.ask(&serving, "GET /large", "Range: bytes=100000-299999\r\n");
        assert!(part.status == 206 && part.body == content(LARGE)[100_000..300_000]);
        assert_eq!(site.ask(&serving, "GET /small", "").body, content(100));
        assert_eq!(site.ask(&serving, "GET /none", "").status, 404);
    }
    let clear = serving.ask("GET /large", "");
    assert_eq!(clear.status, 400);
    assert!(String::from_utf8_lossy(&clear.body).contains("https://"), "{clear:?}");
    let mut nonsense = serving.connect();
    nonsense.write_all(&[0x80; 100]).expect("sends");
    let _ = nonsense.read_to_end(&mut Vec::new());
    let report = serving.stop();
    let tls = &report["tls"];
    let counts = ["by_kernel", "by_process", "refused_handshakes"].map(|it| tls[it].as_u64());
    let expected = if by_kernel { [8, 0, 1] } else { [0, 8, 1] };
    assert_eq!(counts, expected.map(Some), "{report}");
    assert_eq!(report["refused"], 1, "{report}");
    let engine = if by_kernel { "kernel-tls" } else { "user-tls" };
    assert_eq!(tls["ciphers"][0]["engine"], engine, "{report}");
    assert_eq!(tls["ciphers"].as_array().map(Vec::len), Some(1), "{report}");
    let bytes = |key: &str| report["given"][key].as_u64().expect("a number");
    let files = 2 * (LARGE as u64 + 200_000);
    match by_kernel {
        true => assert!(bytes("ciphered") >= files && bytes("copied") < 10_000, "{report}"),
        false => assert!(bytes("copied") >= files && bytes("ciphered") == 0, "{report}"),
    }
    let notes = report["notes"].to_string();
    assert_eq!(notes.contains("kernel TLS can't serve"), !by_kernel, "{notes}");
}

#[test]
fn files_come_over_tls_by_the_kernel_or_by_this_process() {
    let by_kernel = handoff_probe::kernel_tls(Cipher::Aes128Gcm, true).is_ok();
    let site = Site::new();
    files_come(&site, site.serve(&["--threads", "2"]), by_kernel);
}

#[test]
fn handshakes_do_not_hold_up_the_end() {
    let site = Site::new();
    let serving = site.serve(&["--grace", "600", "--idle", "600"]);
    let mut half = serving.connect();
    half.write_all(&site.client_hello()[..100]).expect("sends");
    let mut silent = site.secure(serving.connect());
    silent.flush().expect("shakes hands");
    site.assert_answered(&serving);
    assert_eq!(serving.stop()["cut_short"], 0);
}

#[test]
fn half_handshakes_leave_their_places() {
    let site = Site::new();
    let limits = ["--max-connections", "4", "--max-per-client", "4", "--idle", "600"];
    let serving = site.serve(&limits);
    let hello = site.client_hello();
    let _half = [10, hello.len() / 2, hello.len() - 1, hello.len()].map(|len| {
        let mut stream = serving.connect_from([127, 0, 0, 2]);
        stream.write_all(&hello[..len]).expect("sends");
        stream
    });
    site.assert_answered(&serving);
    serving.signal(Signal::TERM);
    let ended = serving.end();
    assert!(ended.stderr.contains("the longest idle connection is ended"), "{ended:?}");
    assert_eq!(ended.json()["displaced"], 1, "{ended:?}");
}

#[test]
fn what_is_wrong_with_a_certificate_is_said() {
    let site = Site::made(|params| params.not_after = date_time_ymd(2001, 1, 1));
    let serving = Running::start(&mut site.command(&[]));
    serving.line("expired at 2001-01-01T00:00:00Z: clients refuse it");
    drop(serving);
    let refused = |command: &mut Command| {
        let output = command.output().expect("starts");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let key = site.certificate.path().join("key");
    fs::set_permissions(&key, Permissions::from_mode(0o644)).expect("sets");
    let errors = refused(&mut site.command(&[]));
    assert!(errors.contains("chmod 600") && errors.lines().count() == 1, "{errors}");
    fs::remove_file(&key).expect("removes");
    assert!(refused(&mut site.command(&[])).contains("No such file"));
    assert!(refused(&mut command(site.files.path(), &["--cert", "x"])).contains("--cert-key"));
    assert!(refused(&mut command(site.files.path(), &["--cert-key", "x"])).contains("--cert <"));
}

#[test]
fn a_renewed_certificate_is_shown_from_then_on() {
    let site = Site::new();
    let serving = site.serve(&[]);
    site.assert_answered(&serving);
    let shown = || {
        let mut stream = site.secure(serving.connect());
        // The first certificate is the one that the client trusts.
        stream.flush().is_ok()
    };
    assert!(shown());
    make(site.certificate.path(), |_| {});
    let begin = std::time::Instant::now();
    while shown() {
        assert!(begin.elapsed() < handoff_testbed::running::TIMEOUT, "it is not read anew");
    }
    serving.signal(Signal::TERM);
    let ended = serving.end();
    assert!(ended.stderr.contains("was renewed, and is used"), "{ended:?}");
}

#[test]
fn who_serves_in_the_clear_is_told_what_to_type_instead() {
    let place = directory(&[("file", 1)]);
    let serving = Running::start(&mut command(place.path(), &["--listen", "0.0.0.0:0"]));
    serving.line("--cert FILE --cert-key FILE serves https://");
}
