//! The table of engines in `docs/routes.md` matches the library and its probe.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use handoff::{Engine, ReceiveEngine, RouteEngine};
use handoff_probe::Capability;

/// If set, rewrites the table.
const UPDATE: &str = "UPDATE_ENGINES";
const BEGIN: &str = "<!-- engines: begin -->\n";
const END: &str = "<!-- engines: end -->";

/// What an engine uses, by the probe's names. Add a new engine here.
fn of_sending(engine: Engine) -> &'static [&'static str] {
    match engine {
        Engine::Auto | Engine::Copy | Engine::UserTls => &[],
        Engine::KernelTls => &["kernel TLS", "kernel TLS key update"],
        Engine::UringZc => &[
            "SEND_ZC",
            "SENDMSG_ZC",
            "SEND_ZC registered",
            "SENDMSG_ZC registered",
            "SEND_ZC usage report",
        ],
        Engine::MsgZerocopy => &["MSG_ZEROCOPY TCP", "MSG_ZEROCOPY UDP"],
    }
}

fn of_receiving(engine: ReceiveEngine) -> &'static [&'static str] {
    match engine {
        ReceiveEngine::Zcrx => &["zcrx"],
        // Like zcrx itself; binding one shows whether there are dma-bufs.
        ReceiveEngine::ZcrxDmabuf => &["zcrx"],
        ReceiveEngine::ZcrxNodev => &["zcrx without device"],
        ReceiveEngine::TcpZerocopyReceive => &["TCP_ZEROCOPY_RECEIVE"],
        ReceiveEngine::Multishot => &["multishot receive", "provided buffer ring"],
        ReceiveEngine::Epoll => &[],
    }
}

fn of_routing(engine: RouteEngine) -> &'static [&'static str] {
    match engine {
        RouteEngine::GetBuf => &["get-buf", "SEND_ZC registered"],
        RouteEngine::Memory => &["registered buffers", "SEND_ZC registered"],
        RouteEngine::Splice | RouteEngine::Copy => &[],
    }
}

/// A line for each engine, in the order in which they are tried.
fn table(known: &[Capability]) -> String {
    let sending =
        [Engine::UringZc, Engine::MsgZerocopy, Engine::Copy, Engine::KernelTls, Engine::UserTls];
    let receiving = [
        ReceiveEngine::Zcrx,
        ReceiveEngine::ZcrxDmabuf,
        ReceiveEngine::ZcrxNodev,
        ReceiveEngine::TcpZerocopyReceive,
        ReceiveEngine::Multishot,
        ReceiveEngine::Epoll,
    ];
    let lines = (sending.map(|engine| ("send", engine.name(), of_sending(engine))).into_iter())
        .chain(receiving.map(|engine| ("receive", engine.name(), of_receiving(engine))))
        .chain(RouteEngine::ALL.map(|engine| ("route", engine.name(), of_routing(engine))));
    let since = |mechanism: &str| {
        let of_name = |one: &&Capability| one.mechanism == mechanism;
        let found = known.iter().find(of_name).unwrap_or_else(|| panic!("no probe {mechanism}"));
        format!("{mechanism} ({})", found.needs_kernel.unwrap_or("any"))
    };
    let mut text = String::from("| for | engine | uses, and Linux has it from |\n|---|---|---|\n");
    for (what, engine, mechanisms) in lines {
        let needs: Vec<String> = mechanisms.iter().map(|mechanism| since(mechanism)).collect();
        let needs = if needs.is_empty() { "any kernel".to_owned() } else { needs.join(", ") };
        let _ = writeln!(text, "| {what} | `{engine}` | {needs} |");
    }
    text
}

#[test]
fn the_table_of_engines_is_what_the_library_knows() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/routes.md");
    let text = fs::read_to_string(&file).expect("the page");
    let (before, rest) = text.split_once(BEGIN).expect("where the table begins");
    let (found, after) = rest.split_once(END).expect("where it ends");
    let table = table(&handoff_probe::general());
    if std::env::var_os(UPDATE).is_some() {
        return fs::write(file, format!("{before}{BEGIN}{table}{END}{after}")).expect("written");
    }
    assert!(
        found == table,
        "docs/routes.md has another table of engines; run this with {UPDATE}=1:\n{table}"
    );
}
