//! Packages are made, looked at, installed in a guest, used, installed over themselves and purged there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::product::product;

const WORKSHOP: &str = env!("CARGO_BIN_EXE_handoff-workshop");
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

pub(crate) fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let [out, errors] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(output.status.success(), "{command:?}: {}\n{out}{errors}", output.status);
    out.into_owned()
}

/// Who answers for the packages: whoever packs has an address, and lintian knows that this one is none.
const ADDRESS: &str = "handoff@debian.org";

/// The library for C, which Cargo builds beside the tests of all packages; the newest.
pub(crate) fn library() -> Option<PathBuf> {
    let program = std::env::current_exe().expect("has a path");
    let beside = fs::read_dir(program.parent().expect("is in a directory")).expect("can be read");
    let paths = beside.map(|entry| entry.expect("can be read").path());
    let ours = paths.filter(|path| {
        let name = path.file_name().expect("has one").to_string_lossy();
        name.starts_with("libhandoff_capi-") && name.ends_with(".a")
    });
    ours.max_by_key(|path| path.metadata().and_then(|it| it.modified()).expect("is a file"))
}

/// Makes all packages in `packages`, or, with a version, those of an upgrade in `newer`.
pub(crate) fn pack(into: &Path, library: &Path, version: Option<&str>) -> Vec<PathBuf> {
    let variables = [
        format!("HANDOFF={}", product()),
        format!("WORKSHOP={WORKSHOP}"),
        format!("ARCHIVE={}", library.display()),
        format!("DIST={}", into.join("dist").display()),
    ];
    done(Command::new("make").args(["dist", "dist-workshop"]).args(&variables).current_dir(ROOT));
    let packing = into.join(if version.is_some() { "newer" } else { "packages" });
    fs::create_dir(&packing).expect("makes");
    let mut command = Command::new("scripts/packages");
    command.arg(&packing).args(&variables).current_dir(ROOT);
    command.env("DEBEMAIL", ADDRESS);
    command.envs(version.map(|version| ("VERSION", version)));
    done(command.env("COMPRESSION", "-Zgzip -z1"));
    let found = fs::read_dir(&packing).expect("can be read").map(|it| it.expect("is").path());
    let mut found: Vec<_> =
        found.filter(|it| it.extension().is_some_and(|it| it == "deb")).collect();
    found.sort();
    found
}

/// Runs a script beside this program, with the packages in `place`, in a guest with this userland: the reason if this
/// machine cannot.
pub(crate) fn in_guest(userland: &str, script: &str, place: &Path) -> Option<String> {
    let output = run_in_guest(userland, script, &[], place, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        return Some(errors.into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success() && text.ends_with("purged\n"), "{text}\n{errors}");
    None
}

/// Runs a script with these arguments, and with these disks.
pub(crate) fn run_in_guest(
    userland: &str,
    script: &str,
    arguments: &[&str],
    place: &Path,
    disks: &[String],
) -> Output {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages");
    let mut command = Command::new(WORKSHOP);
    // dkms alone takes half an hour of an emulated processor.
    command.args(["lab", "run", "--userland", userland, "--timeout", "6000"]);
    for put in [scripts.join(script), scripts.join("shared.sh"), place.join("packages")] {
        command.arg("--put").arg(put);
    }
    if place.join("newer").exists() {
        command.arg("--put").arg(place.join("newer"));
    }
    for disk in disks {
        command.args(["--disk", disk]);
    }
    command.args(["--", "sh", &format!("/root/{script}")]).args(arguments);
    command.output().expect("handoff starts")
}

/// A program in C is built with what the library's packages install, and runs.
fn build_with(packages: &[&PathBuf], place: &Path) {
    let root = place.join("root");
    for package in packages {
        done(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&root));
    }
    let found = fs::read_dir(root.join("usr/lib")).expect("is there").flatten().next();
    let libraries = found.expect("one architecture").path();
    let mut asked = Command::new("pkg-config");
    asked.args(["--cflags", "--libs", "handoff"]).env("PKG_CONFIG_SYSROOT_DIR", &root);
    let flags = done(asked.env("PKG_CONFIG_LIBDIR", libraries.join("pkgconfig")));
    let [source, program] = ["main.c", "main"].map(|name| place.join(name));
    let text = "#include <handoff.h>\nint main(void) { return handoff_version() == 0; }\n";
    fs::write(&source, text).expect("writes");
    let mut compiler = Command::new("gcc");
    compiler.arg("-o").arg(&program).arg(&source).args(flags.split_whitespace());
    done(&mut compiler);
    done(Command::new(program).env("LD_LIBRARY_PATH", libraries));
}

/// systemd takes the units, in a root of their own that has the units of this machine beside.
fn verify_units(package: &Path, place: &Path) {
    let here = Path::new("/lib/systemd/system");
    let mut analyze = Command::new("systemd-analyze");
    if !here.exists() || analyze.arg("--version").output().is_err() {
        return;
    }
    let root = place.join("units");
    done(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&root));
    done(Command::new("cp").arg("--recursive").arg(here).arg(root.join("usr/lib/systemd")));
    let tools = root.join("sbin");
    fs::create_dir(&tools).expect("makes");
    fs::copy("/bin/true", tools.join("modprobe")).expect("copies");
    // It makes directories in /run, which are to be seen by nobody.
    let mut analyze = Command::new("unshare");
    analyze.args(["--mount", "sh", "-ec", "mount -t tmpfs tmpfs /run; exec \"$@\"", "sh"]);
    analyze.args(["systemd-analyze", "verify", "--man=no"]);
    analyze.arg(format!("--root={}", root.display()));
    analyze.args(["handoff-blk@data.service", "handoff-relay@8080.service"]);
    done(analyze.args([
        "handoff-serve@80.service",
        "handoff-serve@80.socket",
        "handoff-rds@a.service",
    ]));
}

/// The files of a package, without directories.
fn files(package: &Path) -> Vec<String> {
    let listed = done(Command::new("dpkg-deb").arg("--contents").arg(package));
    let paths = listed.lines().filter_map(|line| line.split(" ./").nth(1));
    paths.filter(|path| !path.ends_with('/')).map(str::to_owned).collect()
}

#[test]
fn packages_are_installed_used_and_purged() {
    if Command::new("dh").arg("--version").output().is_err() {
        handoff_testbed::skip!("no debhelper: apt-get install debhelper dh-dkms fakeroot");
    }
    let Some(library) = library() else {
        handoff_testbed::skip!(
            "no library for C beside this test: cargo test --workspace builds it"
        );
    };
    let place = tempfile::tempdir().expect("a directory");
    let packages = pack(place.path(), &library, None);
    let names: Vec<_> = packages
        .iter()
        .map(|path| path.file_name().expect("has one").to_string_lossy().into_owned())
        .map(|name| name.split('_').next().expect("has a name").to_owned())
        .collect();
    assert_eq!(
        names,
        [
            "handoff-dkms",
            "handoff-wire-dkms",
            "handoff-workshop",
            "handoff",
            "libhandoff-dev",
            "libhandoff0"
        ]
    );

    // All sources of the modules are in the package.
    for (module, package) in ["getbuf", "wire"].iter().zip(&packages) {
        let modules = files(package);
        for source in fs::read_dir(Path::new(ROOT).join("kmod").join(module)).expect("is there") {
            let name = source.expect("can be read").file_name();
            let ending = format!("/{module}/{}", name.display());
            assert!(modules.iter().any(|path| path.ends_with(&ending)), "{ending} of {modules:?}");
        }
        assert!(modules.iter().any(|path| path.ends_with("/dkms.conf")), "{modules:?}");
    }
    for package in &packages {
        let mut asked = Command::new("dpkg-deb");
        let maintainer = done(asked.arg("--field").arg(package).arg("Maintainer"));
        assert!(maintainer.ends_with(&format!("<{ADDRESS}>\n")), "{maintainer}");
        let all = files(package);
        assert!(all.iter().any(|path| path.ends_with("/changelog.gz")), "{all:?}");
    }
    let all = files(&packages[2]);
    for path in ["bin/handoff-workshop", "share/man/man1/handoff-bench-send.1.gz"] {
        assert!(all.contains(&format!("usr/{path}")), "{path} of {all:?}");
    }
    let all = files(&packages[3]);
    for guide in ["README.md", "docs/start.md", "docs/security.md", "docs/life.svg"] {
        let path = format!("usr/share/doc/handoff/{guide}");
        assert!(all.contains(&path), "{path} of {all:?}");
    }
    if Command::new("lintian").arg("--version").output().is_ok() {
        let mut lintian = Command::new("lintian");
        // It leaves files there.
        lintian.env("TMPDIR", place.path());
        let output = done(lintian.arg("--allow-root").args(&packages));
        assert_eq!(output, "");
    }

    verify_units(&packages[3], place.path());
    build_with(&[&packages[4], &packages[5]], place.path());

    if let Some(reason) = in_guest("small", "install.sh", place.path()) {
        handoff_testbed::skip!("{reason}");
    }
}
