fn write(frozen: &mut handoff::Frozen) {
    frozen[0] = 1;
}

fn main() {}
