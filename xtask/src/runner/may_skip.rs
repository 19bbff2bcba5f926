//! The declaration of expected skips.

use handoff_lab::{Error, Result};

use crate::report::Verdict;

/// Which tests may skip, and where. By default none may.
///
/// One rule a line, `#` begins a comment: the place (`host`, a kernel's name, or `*`), the test's
/// name, which may end with `*`, and why:
///
/// ```text
/// host  handoff::native::dummy_*   this machine's kernel may lack the dummy device
/// ```
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct MaySkip(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    place: String,
    test: String,
}

impl MaySkip {
    /// Reads a declaration.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] with the number of a line that is not a rule.
    pub fn parse(text: &str) -> Result<Self> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let mut words = line.split_whitespace();
            let (Some(place), Some(test), Some(_)) = (words.next(), words.next(), words.next())
            else {
                let number = number + 1;
                return Err(Error::Usage(format!("line {number}: expected PLACE TEST REASON")));
            };
            rules.push(Rule { place: place.to_owned(), test: test.to_owned() });
        }
        Ok(Self(rules))
    }

    /// Turns a skip without a rule into a failure.
    pub(super) fn judge(&self, place: &str, test: &str, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Skipped { reason } if !self.0.iter().any(|rule| rule.covers(place, test)) => {
                Verdict::Failed { reason: format!("skipped, which is not declared: {reason}") }
            }
            other => other,
        }
    }
}

impl Rule {
    fn covers(&self, place: &str, test: &str) -> bool {
        let named = match self.test.strip_suffix('*') {
            Some(beginning) => test.starts_with(beginning),
            None => self.test == test,
        };
        named && (self.place == "*" || self.place == place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_declared_skips_are_skips() {
        let declared = MaySkip::parse(
            "# comment\nhost a::b no such device\n* c::* # not a rule\n* c::* because\n",
        );
        assert!(declared.is_err(), "a rule needs a reason");
        let declared =
            MaySkip::parse("# comment\nhost a::b no such device\n* c::* because\n").expect("rules");
        let skip = || Verdict::Skipped { reason: "x".to_owned() };
        assert_eq!(declared.judge("host", "a::b", skip()), skip());
        assert_eq!(declared.judge("7.2", "c::d::e", skip()), skip());
        for (place, test) in [("7.2", "a::b"), ("host", "a::bc"), ("host", "d")] {
            let verdict = declared.judge(place, test, skip());
            assert!(matches!(verdict, Verdict::Failed { .. }), "{place} {test}");
        }
        assert_eq!(declared.judge("host", "d", Verdict::Passed), Verdict::Passed);
    }
}
