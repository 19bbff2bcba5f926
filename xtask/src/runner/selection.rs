//! Which tests run, and where.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use handoff_lab::{Error, KernelChoice, Result};

/// What a test may need, by the names of its modules.
const NEEDS: [&str; 6] = ["native", "guest", "linux73", "lab", "soak", "fixture"];
/// How a stage names the tests that need nothing.
const HERMETIC: &str = "hermetic";

/// A test program, built by Cargo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// First part of the names of its tests.
    pub name: String,
    /// The executable.
    pub path: PathBuf,
    /// Where Cargo would start it.
    pub directory: PathBuf,
}

/// Where tests run, and which.
///
/// ```
/// use test_runner::Stage;
///
/// let stage: Stage = "7.2:native,guest:send::,-send::udp".parse().unwrap();
/// assert_eq!(stage.place(), "7.2");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The kernel of the guest; `None` is the host.
    pub kernel: Option<KernelChoice>,
    /// What the tests may need: some of `hermetic`, `native`, `guest`, `linux73`, `lab`, `soak`,
    /// `fixture`.
    pub needs: BTreeSet<String>,
    /// Only tests whose name, the program's in front, begins with one of these; all tests if empty.
    pub beginnings: Vec<String>,
    /// Leave out tests whose name begins with one of these.
    pub except: Vec<String>,
}

impl FromStr for Stage {
    type Err = String;

    /// `WHERE:NEEDS[:NAMES]`, such as `host:hermetic,native` or `bookworm:native:send::,-send::udp`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut parts = text.splitn(3, ':');
        let kernel = match parts.next().unwrap_or_default() {
            "host" => None,
            name => Some(name.parse().map_err(|error| format!("host, or {error}"))?),
        };
        let needs = parts.next().ok_or("expected WHERE:NEEDS, such as host:hermetic,native")?;
        let needs: BTreeSet<String> = needs.split(',').map(str::to_owned).collect();
        let known = |need: &String| need == HERMETIC || NEEDS.contains(&need.as_str());
        if let Some(unknown) = needs.iter().find(|need| !known(need)) {
            return Err(format!("'{unknown}' is none of {HERMETIC}, {}", NEEDS.join(", ")));
        }
        let (mut beginnings, mut except) = (Vec::new(), Vec::new());
        for name in parts.next().into_iter().flat_map(|names| names.split(',')) {
            match name.strip_prefix('-') {
                Some(name) => except.push(name.to_owned()),
                None => beginnings.push(name.to_owned()),
            }
        }
        Ok(Self { kernel, needs, beginnings, except })
    }
}

impl Stage {
    /// Where the tests run, as reports and the declaration of skips name it.
    pub fn place(&self) -> String {
        self.kernel.as_ref().map_or("host".to_owned(), KernelChoice::to_string)
    }

    /// The tests that it runs, program by program.
    pub(crate) fn selected<'a>(
        &self,
        listed: &'a [(&'a Program, Vec<String>)],
    ) -> Vec<(&'a Program, Vec<&'a str>)> {
        let of_program = |(program, tests): &'a (&'a Program, Vec<String>)| {
            let wanted = |test: &&str| self.selects(&program.name, test);
            (*program, tests.iter().map(String::as_str).filter(wanted).collect::<Vec<_>>())
        };
        listed.iter().map(of_program).filter(|(_, tests)| !tests.is_empty()).collect()
    }

    pub(crate) fn selects(&self, program: &str, test: &str) -> bool {
        let needs: Vec<&str> = test.split("::").filter(|module| NEEDS.contains(module)).collect();
        let granted = match needs.as_slice() {
            [] => self.needs.contains(HERMETIC),
            some => some.iter().all(|need| self.needs.contains(*need)),
        };
        let name = format!("{program}::{test}");
        let named = |beginning: &String| name.starts_with(beginning.as_str());
        let wanted = self.beginnings.is_empty() || self.beginnings.iter().any(named);
        granted && wanted && !self.except.iter().any(named)
    }
}

/// One of several parts of each stage's tests, which are alike in number.
///
/// ```
/// use test_runner::Part;
///
/// let part: Part = "2/3".parse().unwrap();
/// assert_eq!(part.to_string(), "2/3");
/// assert!(!part.is_first());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// All tests.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Whether it is the first; exactly one of the parts is.
    pub fn is_first(self) -> bool {
        self.number == 1
    }

    /// Whether a stage's test is in it. Neighbours, which may be alike, are in different parts.
    pub(crate) fn has(self, index: usize) -> bool {
        index % self.of + 1 == self.number
    }
}

impl FromStr for Part {
    type Err = String;

    /// `NUMBER/PARTS`, such as `2/3`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, of)| {
            Some(Self { number: number.parse().ok()?, of: of.parse().ok()? })
        });
        let is_one = |part: &Self| (1..=part.of).contains(&part.number);
        numbers.filter(is_one).ok_or("expected NUMBER/PARTS, such as 2/3".to_owned())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.number, self.of)
    }
}

/// The test programs and other programs in the messages of
/// `cargo test --no-run --message-format=json`.
///
/// # Errors
///
/// If `messages` is something else.
pub fn programs_from_cargo(messages: &str) -> Result<(Vec<Program>, Vec<PathBuf>)> {
    let (mut programs, mut companions) = (Vec::new(), Vec::new());
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: serde_json::Value =
            serde_json::from_str(line).map_err(|error| Error::Usage(error.to_string()))?;
        let Some(executable) = message["executable"].as_str() else { continue };
        if message["profile"]["test"] == true {
            let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
            programs.push(Program {
                name: message["target"]["name"].as_str().unwrap_or_default().replace('-', "_"),
                path: executable.into(),
                directory: manifest.parent().unwrap_or(Path::new("/")).to_owned(),
            });
        } else {
            companions.push(executable.into());
        }
    }
    if programs.is_empty() {
        return Err(Error::Usage(
            "no test programs; expected the output of cargo test --no-run --message-format=json"
                .to_owned(),
        ));
    }
    Ok((programs, companions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_say_what_a_test_needs() {
        let host: Stage = "host:hermetic,native".parse().expect("a stage");
        assert!(host.selects("handoff", "send::tests::plain"));
        assert!(host.selects("handoff", "native::send"));
        assert!(!host.selects("handoff", "guest::send"));
        assert!(!host.selects("handoff", "native::soak::send"));
        assert!(host.selects("handoff", "send::not_the_guest_module"), "a module is a whole word");
        let old: Stage =
            "bookworm:native:send::,order::native::a,-send::native::b".parse().expect("a stage");
        assert!(old.selects("send", "native::plain"));
        assert!(!old.selects("send", "native::bare"));
        assert!(old.selects("order", "native::a_stream"));
        assert!(!old.selects("order", "native::other"));
        assert!(!old.selects("handoff", "native::send::other"));
        assert!(!old.selects("send", "native::lab::plain"));
        assert!(!old.selects("send", "plain"));
    }

    #[test]
    fn each_test_is_in_one_part() {
        let parts = ["1/3", "2/3", "3/3"].map(|text| text.parse::<Part>().expect("a part"));
        for index in 0..10 {
            assert_eq!(parts.iter().filter(|part| part.has(index)).count(), 1);
        }
        assert_eq!(parts.map(Part::is_first), [true, false, false]);
        assert!(Part::WHOLE.has(0) && Part::WHOLE.has(7) && Part::WHOLE.is_first());
        for wrong in ["", "2", "0/3", "4/3", "1/0", "a/b", "1/2/3"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn stages_are_checked() {
        for wrong in ["", "host", "host:everything", "nowhere:native", "host:"] {
            assert!(wrong.parse::<Stage>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn programs_are_found_in_cargo_messages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/x/a/Cargo.toml","target":{"name":"some-lib"},"profile":{"test":true},"executable":"/x/target/some_lib-1"}
{"reason":"compiler-artifact","manifest_path":"/x/a/Cargo.toml","target":{"name":"tool"},"profile":{"test":false},"executable":"/x/target/tool"}
{"reason":"compiler-artifact","target":{"name":"dep"},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}"#;
        let (programs, companions) = programs_from_cargo(messages).expect("messages");
        assert_eq!(programs.len(), 1);
        assert_eq!(programs[0].name, "some_lib");
        assert_eq!(programs[0].directory, Path::new("/x/a"));
        assert_eq!(companions, [PathBuf::from("/x/target/tool")]);
        assert!(programs_from_cargo("no json").is_err());
    }
}
