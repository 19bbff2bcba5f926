//! The memory of a dma-buf is not this process's to look at.

fn first(span: &handoff::DmaBufSpan) -> u8 {
    span[0]
}

fn main() {}
