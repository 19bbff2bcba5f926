//! The sender of mapped pages may still write to them.

fn bytes(span: &handoff::MappedSpan) -> &[u8] {
    &span[..]
}

fn main() {}
