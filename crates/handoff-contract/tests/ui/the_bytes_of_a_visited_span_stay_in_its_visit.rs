use handoff::Receiver;

fn let_out(receiver: &mut Receiver) {
    let mut kept: &[u8] = &[];
    receiver.visit(|span| kept = &span[..]);
    assert!(kept.is_empty());
}

fn main() {}
