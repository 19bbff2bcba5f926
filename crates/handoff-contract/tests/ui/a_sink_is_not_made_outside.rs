struct Mine;
impl handoff::Payload for Mine {}

fn main() {}
