//! Names with values, on the command line.

/// Splits `NAME=VALUE`, for the command line's parser.
///
/// # Errors
///
/// A line that says what is wrong.
pub fn parse_named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("text must stand before and after its =".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_its_value_are_told_apart() {
        assert!(parse_named("a=b=c").is_ok_and(|it| it == ("a".into(), "b=c".into())));
        for wrong in ["", "a", "=b", "a="] {
            assert!(parse_named(wrong).is_err());
        }
    }
}
