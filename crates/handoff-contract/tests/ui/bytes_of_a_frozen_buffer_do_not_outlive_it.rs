fn unfreeze(frozen: handoff::Frozen) -> handoff::Buffer {
    let bytes: &[u8] = &frozen;
    let mut buffer = frozen.try_unfreeze().unwrap();
    buffer[0] = bytes[0] + 1;
    buffer
}

fn main() {}
