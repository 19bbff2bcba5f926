use handoff::Receiver;

fn drop_it(mut receiver: Receiver) {
    receiver.visit(|_| drop(receiver));
}

fn main() {}
