fn twice(on_loan: handoff::GroupOnLoan<handoff::Buffer>, into: &mut Vec<handoff::Buffer>) {
    let _ = on_loan.try_take(into);
    let _ = on_loan.try_take(into);
}

fn main() {}
