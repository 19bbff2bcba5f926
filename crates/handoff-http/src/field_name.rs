//! How the names of fields are written: as their specifications write them, since some clients compare bytes.

use http::header::{
    ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    HeaderName, LAST_MODIFIED, LOCATION, SET_COOKIE, VARY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS, X_DNS_PREFETCH_CONTROL, X_XSS_PROTECTION,
};

/// A frequent name, or one that has other capitals than the first letter of each word. The compiler makes a table of
/// these comparisons, so that a name costs no more than in the small letters of [`HeaderName`].
#[inline]
pub(crate) fn frequent(name: &HeaderName) -> Option<&'static str> {
    macro_rules! among {
        ($($known:ident $written:literal)*) => {
            $(if *name == $known {
                return Some($written);
            })*
        };
    }
    among! {
        ACCEPT_RANGES "Accept-Ranges"
        ALLOW "Allow"
        CACHE_CONTROL "Cache-Control"
        CONTENT_ENCODING "Content-Encoding"
        CONTENT_RANGE "Content-Range"
        CONTENT_TYPE "Content-Type"
        ETAG "ETag"
        LAST_MODIFIED "Last-Modified"
        LOCATION "Location"
        SET_COOKIE "Set-Cookie"
        VARY "Vary"
        WWW_AUTHENTICATE "WWW-Authenticate"
        X_CONTENT_TYPE_OPTIONS "X-Content-Type-Options"
        X_DNS_PREFETCH_CONTROL "X-DNS-Prefetch-Control"
        X_XSS_PROTECTION "X-XSS-Protection"
    }
    None
}

/// Appends a name whose words begin with capitals.
#[cold]
pub(crate) fn put_capitalised(to: &mut Vec<u8>, name: &HeaderName) {
    let mut begins = true;
    for byte in name.as_str().bytes() {
        to.push(if begins { byte.to_ascii_uppercase() } else { byte });
        begins = byte == b'-';
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_their_specifications_do() {
        for expected in [
            "Accept-Ranges",
            "Age",
            "Allow",
            "Cache-Control",
            "Content-Encoding",
            "Content-Range",
            "Content-Type",
            "ETag",
            "Last-Modified",
            "Location",
            "Set-Cookie",
            "Strict-Transport-Security",
            "Vary",
            "WWW-Authenticate",
            "X-1-A_b--C-",
            "X-Content-Type-Options",
            "X-DNS-Prefetch-Control",
            "X-XSS-Protection",
        ] {
            let name = HeaderName::from_bytes(expected.as_bytes()).expect("is a name");
            let written = frequent(&name).map_or_else(
                || {
                    let mut written = Vec::new();
                    put_capitalised(&mut written, &name);
                    String::from_utf8(written).expect("text")
                },
                str::to_owned,
            );
            assert_eq!(written, expected);
        }
    }
}
