//! The result of a tour: its table and its JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

/// One hop of the bytes from place to place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hop {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) engine: String,
    pub(super) bytes: u64,
    /// Bytes copied by the kernel's own report, or the module's; `null` without a report.
    pub(super) copied_by_report: Option<u64>,
    /// Bytes that the copy meter saw copied; `null` where it could not look, and where nothing that it sees copies.
    pub(super) copied_by_witness: Option<u64>,
    /// Whether a thread that stands in for a NIC's DMA engine moved the bytes.
    pub(super) simulated_dma: bool,
}

/// A file's way from one host to the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// The seconds from the start of the first program to the end of the last.
    pub(super) seconds: f64,
    /// The checksum of the file, which is the same at both ends.
    pub(super) checksum: String,
    pub(super) hops: Vec<Hop>,
    /// Bytes copied for no hop, mainly by starting programs; `null` without the meter.
    pub(super) copied_elsewhere: Option<u64>,
    /// Bytes copied by kernel threads, for unknown parties; `null` without the meter.
    pub(super) copied_by_kernel_threads: Option<u64>,
}

/// A whole tour; its fields are those of `--json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) kernel: String,
    /// Whether an emulator executed the instructions, so that times mean nothing.
    pub(super) emulated: bool,
    pub(super) chains: Vec<Chain>,
    /// The deviations from a complete tour, one a line.
    pub(super) notes: Vec<String>,
}

impl Report {
    /// The report for people.
    pub(super) fn text(&self) -> String {
        let mut text = format!("Linux {}\n", self.kernel);
        for chain in &self.chains {
            text.push_str(&chain.text(self.emulated));
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }
}

impl Chain {
    fn text(&self, emulated: bool) -> String {
        let Self { name, bytes, seconds, checksum, .. } = self;
        let emulated = if emulated { " (emulated)" } else { "" };
        let mut text = format!(
            "\n{name}: {bytes} bytes in {seconds:.1} s{emulated}, {} {checksum} at both ends\n",
            handoff_cp::checksum::CHECKSUM
        );
        text.push_str(&self.table().trim_fmt());
        text.push('\n');
        if let (Some(elsewhere), Some(threads)) =
            (self.copied_elsewhere, self.copied_by_kernel_threads)
        {
            text.push_str(&format!(
                "copied besides: {elsewhere} bytes to start the programs and set them up, {threads} by \
                 the kernel's own threads\n"
            ));
        }
        text
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["hop", "engine", "bytes", "copied: report", "copied: witness"]);
        let known = |bytes: Option<u64>, unknown: &str| {
            bytes.map_or_else(|| unknown.to_owned(), |bytes| bytes.to_string())
        };
        for hop in &self.hops {
            let without = if hop.simulated_dma { "simulated DMA" } else { "unknown" };
            table.add_row([
                format!("{} -> {}", hop.from, hop.to),
                hop.engine.clone(),
                hop.bytes.to_string(),
                known(hop.copied_by_report, without),
                known(hop.copied_by_witness, without),
            ]);
        }
        for (number, column) in table.column_iter_mut().enumerate() {
            column.set_padding((if number == 0 { 0 } else { 2 }, 0));
            if number > 1 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_is_told_apart_from_nothing() {
        let hop = |engine: &str, copied_by_report, simulated_dma| Hop {
            from: "a".into(),
            to: "b".into(),
            engine: engine.into(),
            bytes: 7,
            copied_by_report,
            copied_by_witness: None,
            simulated_dma,
        };
        let report = Report {
            kernel: "7".into(),
            emulated: true,
            chains: vec![Chain {
                name: "TCP".into(),
                bytes: 7,
                seconds: 0.25,
                checksum: "ff".into(),
                hops: vec![
                    hop("bpf", None, false),
                    hop("zcrx", Some(0), false),
                    hop("wire", None, true),
                ],
                copied_elsewhere: None,
                copied_by_kernel_threads: None,
            }],
            notes: vec!["no meter".into()],
        };
        let text = report.text();
        let row = |engine: &str| {
            let line = text.lines().find(|line| line.contains(engine)).expect("a row");
            line.split_whitespace().skip(4).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("bpf"), "7 unknown unknown");
        assert_eq!(row("zcrx"), "7 0 unknown");
        assert_eq!(row("wire"), "7 simulated DMA simulated DMA");
        assert!(text.contains("(emulated)") && text.ends_with("note: no meter\n"), "{text}");
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
