//! Bare bytes over TLS, to and from openssl and socat; and certificates that are not to be trusted.

use std::fs::{self, File, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use handoff_testbed::helpers::eventually;
use handoff_testbed::running::Running;
use handoff_testbed::skip;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

use super::ADDRESS;
use crate::session::{cp, path, pattern, run};

const LEN: usize = 3_000_001;

/// A directory with certificates, a source, and room for a copy.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.certify("good", "localhost", |_| {});
        fs::write(place.path("source"), pattern(LEN)).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        path(&self.path(name)).to_owned()
    }

    /// Makes NAME.pem and NAME.key, for this host.
    fn certify(&self, name: &str, host: &str, change: impl FnOnce(&mut CertificateParams)) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        change(&mut params);
        let pair = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&pair).unwrap();
        fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        let key = self.path(&format!("{name}.key"));
        fs::write(&key, pair.serialize_pem()).unwrap();
        fs::set_permissions(key, Permissions::from_mode(0o600)).unwrap();
    }

    /// A command that listens with this certificate, and its address with the name.
    fn listens(&self, name: &str, ends: [&str; 2]) -> (Running, String) {
        let (cert, key) = (self.text(&format!("{name}.pem")), self.text(&format!("{name}.key")));
        let certified = ["--json", "--raw", "--cert", &cert, "--cert-key", &key];
        let listener = Running::start(&mut cp(&[&certified[..], &ends].concat()));
        let address = listener.address().replace("127.0.0.1", "localhost");
        (listener, address)
    }

    fn arrived(&self) -> bool {
        fs::read(self.path("copy")).is_ok_and(|bytes| bytes == pattern(LEN))
    }
}

fn program(name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn is_there(name: &str, shows: &str) -> bool {
    program(name, &[shows]).status().is_ok()
}

/// A port where nobody listens yet.
fn port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

#[test]
fn two_commands_need_no_key_with_certificates() {
    let place = Place::new();
    for (own, other) in [([ADDRESS, "copy"], "source"), (["source", ADDRESS], "copy")] {
        let _ = fs::remove_file(place.path("copy"));
        let own = own.map(|it| if it == ADDRESS { it.to_owned() } else { place.text(it) });
        let (listener, address) = place.listens("good", [&own[0], &own[1]]);
        let (ca, other) = (place.text("good.pem"), place.text(other));
        let ends = if own[0] == ADDRESS { [&other, &address] } else { [&address, &other] };
        let args = ["--json", "--raw", "--ca", &ca, ends[0], ends[1]];
        let (peer, listener) = (run(&args).report(), listener.end().report());
        assert!(place.arrived(), "{peer} {listener}");
        for report in [peer, listener] {
            assert_eq!(report["bytes"], LEN, "{report}");
            assert!(report["tls"]["engine"].is_string(), "{report}");
        }
    }
}

/// By TLS 1.3 a server judges its client behind the client's handshake, and so behind a small file.
#[test]
fn a_receiver_that_refuses_behind_the_handshake_has_received_nothing() {
    if !is_there("openssl", "version") {
        skip!("openssl is not installed");
    }
    let place = Place::new();
    let (cert, key) = (place.text("good.pem"), place.text("good.key"));
    fs::write(place.path("small"), "all of it").unwrap();
    let port = port();
    let accept = format!("127.0.0.1:{port}");
    let args = ["s_server", "-quiet", "-naccept", "2", "-tls1_3", "-accept", &accept];
    let strict = ["-Verify", "1", "-verify_return_error", "-cert", &cert, "-key", &key];
    let mut server = program("openssl", &[&args[..], &strict].concat());
    let mut server = server.stdout(Stdio::null()).stdin(Stdio::piped()).spawn().unwrap();
    eventually("it listens", || TcpStream::connect(&accept).ok());
    let to = format!("tls://localhost:{port}");
    let sent = run(&["--raw", "--ca", &cert, &place.text("small"), &to]);
    let _ = server.wait();
    assert!(sent.code == Some(1) && sent.stderr.contains("CertificateRequired"), "{sent:?}");
}

#[test]
fn openssl_gets_and_sends_bare_bytes() {
    if !is_there("openssl", "version") {
        skip!("openssl is not installed");
    }
    let place = Place::new();
    let (cert, key) = (place.text("good.pem"), place.text("good.key"));
    for version in ["-tls1_2", "-tls1_3"] {
        // It listens and receives, after a connection that only looks whether it listens.
        let port = port();
        let accept = format!("127.0.0.1:{port}");
        let args = ["s_server", "-quiet", "-naccept", "2", version, "-accept", &accept];
        let mut server = program("openssl", &[&args[..], &["-cert", &cert, "-key", &key]].concat());
        server.stdout(File::create(place.path("copy")).unwrap()).stdin(Stdio::piped());
        let mut server = server.spawn().unwrap();
        eventually("it listens", || TcpStream::connect(&accept).ok());
        let to = format!("tls://localhost:{port}");
        let sent = run(&["--json", "--raw", "--ca", &cert, &place.text("source"), &to]);
        assert_eq!(sent.code, Some(0), "{version}: {sent:?}");
        server.wait().unwrap();
        assert!(place.arrived(), "{version}: {sent:?}");

        // It connects, and sends; and receives.
        fs::remove_file(place.path("copy")).unwrap();
        let client = |address: &str| {
            let connect = address.strip_prefix("tls://").unwrap();
            // Else it would take some letters of what it sends for commands.
            let plain = ["-no_ign_eof", "-nocommands"];
            let args = ["s_client", "-quiet", plain[0], plain[1], version, "-verify_return_error"];
            program("openssl", &[&args[..], &["-CAfile", &cert, "-connect", connect]].concat())
        };
        let (listener, address) = place.listens("good", [ADDRESS, &place.text("copy")]);
        let mut sender = client(&address);
        assert!(
            sender.stdin(File::open(place.path("source")).unwrap()).status().unwrap().success()
        );
        let received = listener.end();
        assert!(place.arrived(), "{version}: {received:?}");
        let (listener, address) = place.listens("good", [&place.text("source"), ADDRESS]);
        let mut receiver = client(&address);
        receiver.stdin(Stdio::piped()).stdout(File::create(place.path("copy")).unwrap());
        let mut receiver = receiver.spawn().unwrap();
        assert_eq!(listener.end().code, Some(0), "{version}");
        receiver.wait().unwrap();
        assert!(place.arrived(), "{version}");
    }
}

#[test]
fn socat_gets_and_sends_bare_bytes() {
    if !is_there("socat", "-V") {
        skip!("socat is not installed");
    }
    let place = Place::new();
    let (cert, key) = (place.text("good.pem"), place.text("good.key"));
    let (source, copy) = (place.text("source"), place.text("copy"));
    let listens = |ends: [&str; 2]| {
        let mut command = Command::new("socat");
        command.args(["-d", "-d", "-u"]).args(ends);
        let running = Running::start(command.stdin(Stdio::null()));
        let line = running.line("listening on AF");
        let port = line.rsplit(':').next().unwrap().trim().to_owned();
        (running, format!("tls://localhost:{port}"))
    };
    let listen = format!("OPENSSL-LISTEN:0,bind=127.0.0.1,cert={cert},key={key},verify=0");
    let (socat, address) = listens([&listen, &format!("CREATE:{copy}")]);
    let sent = run(&["--raw", "--ca", &cert, &source, &address]);
    assert_eq!((sent.code, socat.end().code), (Some(0), Some(0)), "{sent:?}");
    assert!(place.arrived());

    fs::remove_file(&copy).unwrap();
    let (socat, address) = listens([&format!("FILE:{source}"), &listen]);
    let received = run(&["--raw", "--ca", &cert, &address, &copy]);
    assert_eq!((received.code, socat.end().code), (Some(0), Some(0)), "{received:?}");
    assert!(place.arrived());

    fs::remove_file(&copy).unwrap();
    let (listener, address) = place.listens("good", [ADDRESS, &copy]);
    let to = address.replace("tls://", "OPENSSL:") + &format!(",cafile={cert}");
    let socat = program("socat", &["-u", &format!("FILE:{source}"), &to]).status().unwrap();
    let received = listener.end();
    assert!(socat.success() && place.arrived(), "{received:?}");
}

#[test]
fn a_certificate_that_is_not_to_be_trusted_is_told_and_nothing_is_sent() {
    let place = Place::new();
    place.certify("expired", "localhost", |it| it.not_after = date_time_ymd(2020, 1, 1));
    place.certify("early", "localhost", |it| it.not_before = date_time_ymd(2999, 1, 1));
    place.certify("other", "elsewhere.example", |_| {});
    place.certify("authority", "localhost", |it| {
        it.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    });
    let source = place.text("source");
    for (server, ca, name, words) in [
        ("expired", "expired", None, "it must be renewed there"),
        ("early", "early", None, "clock"),
        ("other", "other", None, "say by --name which name it is for"),
        ("good", "other", None, "by --ca"),
        ("authority", "good", None, "--ca"),
        ("authority", "authority", Some("elsewhere.example"), "--name"),
        ("other", "other", Some("elsewhere.example"), ""),
        // As `openssl req -x509` makes them.
        ("authority", "authority", None, ""),
    ] {
        let _ = fs::remove_file(place.path("copy"));
        let (listener, address) = place.listens(server, [ADDRESS, &place.text("copy")]);
        let ca = place.text(&format!("{ca}.pem"));
        let named = name.map(|name| ["--name", name]);
        let args = [&["--raw", "--ca", &ca][..], &named.unwrap_or_default()].concat();
        let args: Vec<_> = args.into_iter().filter(|it| !it.is_empty()).collect();
        let sent = run(&[&args[..], &[&source, &address]].concat());
        let received = listener.end();
        let what = format!("{server} {ca} {name:?}: {sent:?} {received:?}");
        if words.is_empty() {
            assert_eq!((sent.code, received.code), (Some(0), Some(0)), "{what}");
            assert!(place.arrived(), "{what}");
        } else {
            assert_eq!((sent.code, received.code), (Some(1), Some(1)), "{what}");
            assert!(sent.stderr.contains(words), "{what}");
            assert!(!place.path("copy").exists(), "{what}");
        }
    }
}

#[test]
fn peers_without_a_common_version_or_without_tls_are_told() {
    let place = Place::new();
    let (cert, source) = (place.text("good.pem"), place.text("source"));
    let clear = Running::start(&mut cp(&["--raw", "tcp-listen://127.0.0.1:0", "/dev/null"]));
    let address = clear.address().replace("tcp://", "tls://");
    let args = ["--raw", "--ca", &cert, "--connect-timeout", "1", &source, &address];
    run(&args).says(1, "does the peer speak TLS?");
    drop(clear.end());
    if !is_there("openssl", "version") {
        skip!("openssl is not installed");
    }
    let (listener, address) = place.listens("good", [ADDRESS, "/dev/null"]);
    let connect = address.strip_prefix("tls://").unwrap();
    let old = ["s_client", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0", "-connect", connect];
    assert!(!program("openssl", &old).status().unwrap().success());
    let ended = listener.end();
    assert!(ended.code == Some(1) && ended.stderr.contains("TLS 1.2 or 1.3"), "{ended:?}");
}

#[test]
fn options_about_certificates_fit_the_ends() {
    let place = Place::new();
    let (cert, key) = (place.text("good.pem"), place.text("good.key"));
    let good = ["--cert", &cert, "--cert-key", &key];
    fs::set_permissions(place.path("good.key"), Permissions::from_mode(0o644)).unwrap();
    for (args, words) in [
        (vec!["--raw", ADDRESS, "x"], "needs --cert FILE and --cert-key FILE"),
        ([&["--raw"], &good[..], &[ADDRESS, "x"]].concat(), "chmod 600"),
        ([&good[..], &[ADDRESS, "x"]].concat(), "--cert is for --raw"),
        ([&["--raw"], &good[..], &["tls://localhost:1", "x"]].concat(), "--cert is for tls-listen"),
        ([&["--raw", "--ca", &cert], &good[..], &[ADDRESS, "x"]].concat(), "--ca and --name are"),
        (vec!["--ca", &cert, "tls://localhost:1", "x"], "--ca is for --raw"),
        (vec!["--raw", "--ca", &cert, "tcp://localhost:1", "x"], "--ca needs tls://"),
        (vec!["--raw", "--ca", "/nonexistent", "tls://localhost:1", "x"], "No such file"),
        (vec!["--raw", "--ca", &key, "tls://localhost:1", "x"], "no certificate"),
        (vec!["--raw", "--ca", &cert, "--name", "a b", "tls://localhost:1", "x"], "is no name"),
        (vec!["--raw", "--key-file", &key, "tls://localhost:1", "x"], "has no KEY"),
    ] {
        run(&args).says(2, words);
    }
}
