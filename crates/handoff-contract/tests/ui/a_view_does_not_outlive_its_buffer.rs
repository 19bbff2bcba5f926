fn view(buffer: handoff::SharedBuffer) -> handoff::View<'static> {
    buffer.view()
}

fn main() {}
