//! A window's pages can only be read.

fn write(span: &handoff::MappedSpan) {
    span.view().write(0, b"bytes");
}

fn main() {}
