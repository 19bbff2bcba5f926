fn slice(buffer: &handoff::SharedBuffer) -> &[u8] {
    &buffer[..]
}

fn main() {}
