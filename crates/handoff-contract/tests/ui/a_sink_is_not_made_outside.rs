struct Mine;
impl handoff::Lend for Mine {}

fn main() {}
