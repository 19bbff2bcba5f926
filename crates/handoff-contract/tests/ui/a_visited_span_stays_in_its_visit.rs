use handoff::Receiver;

fn let_out(receiver: &mut Receiver) {
    let mut kept = None;
    receiver.visit(|span| kept = Some(span));
}

fn main() {}
