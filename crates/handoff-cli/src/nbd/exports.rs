//! The exports that the command line names, opened and locked.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use handoff::Driver;
use handoff_block::image_lock;
use handoff_command::{Failure, Stop};
use handoff_nbd::wire::check_name;
use handoff_nbd_server::{Export, OpenError, Spec};

use super::args::ServeArgs;

/// The ring of a killed server lets go of its files when the last request has ended, a moment after its process.
const LET_GO: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// Takes `NAME=FILE` apart; without a = the name is empty.
fn named(text: &OsStr) -> Result<(String, PathBuf), Failure> {
    let bytes = text.as_bytes();
    let (name, path) = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (&[][..], bytes),
    };
    let wrong = |why: &str| Failure::usage(format!("\"{}\": {why}", text.to_string_lossy()));
    let name = check_name(name).map_err(|error| wrong(&error.to_string()))?;
    if name.chars().any(char::is_control) {
        return Err(wrong("the name has a control character"));
    }
    if path.is_empty() {
        return Err(wrong("a file goes behind the ="));
    }
    Ok((name.to_owned(), OsStr::from_bytes(path).into()))
}

/// Opens all exports.
///
/// # Errors
///
/// [`Failure::Usage`] for names and files that make no sense together, [`Failure::NotPossible`] for files without direct
/// I/O, [`Failure::Failed`] for those that cannot be opened or are in use.
pub(super) fn open(args: &ServeArgs, stop: &Stop) -> Result<Vec<Arc<Export>>, Failure> {
    let named = args.exports.iter().map(|text| named(text)).collect::<Result<Vec<_>, _>>()?;
    for (at, (name, _)) in named.iter().enumerate() {
        if named[..at].iter().any(|(other, _)| other == name) {
            return Err(Failure::usage(match name.is_empty() {
                true => "two exports have no name: write NAME=FILE".to_owned(),
                false => format!("two exports have the name \"{name}\""),
            }));
        }
    }
    let lends = Driver::new().is_ok_and(|driver| driver.get_buf().is_ok());
    let temporary = args.temporary.then(|| {
        std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
    });
    let mut all = Vec::new();
    for (name, path) in named {
        let spec = Spec {
            name,
            path,
            description: String::new(),
            read_only: args.read_only,
            temporary: temporary.clone(),
            io: args.io.into(),
            minimum: args.min_block,
            maximum: args.max_request,
        };
        if !args.read_only {
            is_new(&spec, &all)?;
        }
        let export = Export::open(spec, lends).map_err(|error| match error {
            OpenError::Kind { .. } | OpenError::Size { .. } => Failure::usage(error),
            OpenError::NotDirect { .. } => Failure::not_possible(error),
            _ => Failure::failed(error),
        })?;
        lock(&export, stop)?;
        if export.has_changed() {
            return Err(Failure::failed(format!(
                "the length of \"{}\" changes: another program uses it",
                export.path().display()
            )));
        }
        all.push(Arc::new(export));
    }
    Ok(all)
}

/// Whether no other export has that file: what one writes, the other's clients would not expect.
fn is_new(spec: &Spec, others: &[Arc<Export>]) -> Result<(), Failure> {
    let identity = |path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino(), it.rdev()));
    let own = identity(spec.path.as_path());
    match others.iter().find(|other| own.is_some() && identity(other.path()) == own) {
        Some(other) => Err(Failure::usage(format!(
            "\"{}\" and \"{}\" are one file: serve it under one name",
            other.path().display(),
            spec.path.display()
        ))),
        None => Ok(()),
    }
}

/// Keeps others from writing, or from using at all what is written here.
fn lock(export: &Export, stop: &Stop) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        let locked = match export.is_read_only() || export.is_temporary() {
            true => image_lock::share(export.file()),
            false => image_lock::take(export.file(), false),
        };
        match locked {
            Ok(()) => return Ok(()),
            Err(_) if begin.elapsed() < LET_GO && !stop.requested() => thread::sleep(LOOK),
            Err(cause) => {
                return Err(Failure::failed(format!(
                    "\"{}\" is in use: {cause}; end that first",
                    export.path().display()
                )));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_before_the_first_sign() {
        let named = |text: &str| named(OsStr::new(text)).ok();
        assert_eq!(named("disk.img"), Some((String::new(), "disk.img".into())));
        assert_eq!(named("a=b=c"), Some(("a".into(), "b=c".into())));
        assert_eq!(named("=a=b"), Some((String::new(), "a=b".into())));
        for wrong in ["a=", "=", "a\u{7}=b"] {
            assert_eq!(named(wrong), None, "{wrong:?}");
        }
    }
}
