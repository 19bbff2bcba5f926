fn write(mut buffer: handoff::Buffer) {
    let frozen = buffer.freeze();
    buffer[0] = 1;
    drop(frozen);
}

fn main() {}
