fn read(file: &handoff::File, frozen: handoff::Frozen) {
    let _ = file.read(frozen);
}

fn main() {}
