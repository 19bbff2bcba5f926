//! The kernel's tables of TCP sockets: `/proc/PID/net/tcp` and `tcp6`.

use std::fs;

use handoff_testbed::Namespace;

/// Whether somebody listens at a port of a namespace.
///
/// # Errors
///
/// If the thread cannot enter the namespace, in one line.
pub(crate) fn listens(namespace: &Namespace, port: u16) -> Result<bool, String> {
    // A kernel without IPv6 lacks the table of IPv6.
    let text = |table: &str| fs::read_to_string(table).unwrap_or_default();
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let texts = namespace.run(|| tables.map(text)).map_err(|error| error.to_string())?;
    let mut sockets = texts.iter().flat_map(|text| sockets(text));
    Ok(sockets.any(|socket| socket.listens && socket.port == port))
}

/// Bytes that have arrived at a port of a process's network and are unread.
///
/// # Errors
///
/// If the table cannot be read, in one line.
pub(crate) fn unread(process: u32, port: u16) -> Result<u64, String> {
    let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{process}/net/{table}"));
    let read = |table: &String| {
        let text = fs::read_to_string(table).map_err(|error| format!("{table}: {error}"))?;
        let connections = sockets(&text).filter(|it| it.port == port && !it.listens);
        Ok::<_, String>(connections.map(|connection| connection.queued).sum::<u64>())
    };
    tables.iter().map(read).sum()
}

/// The sockets in such a table.
fn sockets(table: &str) -> impl Iterator<Item = Socket> {
    table.lines().filter_map(Socket::of)
}

/// A socket of TCP.
#[derive(Debug, PartialEq, Eq)]
struct Socket {
    port: u16,
    listens: bool,
    /// Unread bytes, or waiting connections if it listens.
    queued: u64,
}

impl Socket {
    /// Reads one line of such a table; `None` for the line of titles.
    fn of(line: &str) -> Option<Self> {
        const LISTENS: &str = "0A";
        let mut fields = line.split_whitespace().skip(1);
        let (address, _peer, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (_, port) = address.split_once(':')?;
        let (_unsent, queued) = fields.next()?.split_once(':')?;
        Some(Self {
            port: u16::from_str_radix(port, 16).ok()?,
            listens: state == LISTENS,
            queued: u64::from_str_radix(queued, 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
        process,
    };

    use super::*;

    #[test]
    fn what_nobody_has_read_is_found_by_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // A connection that waits to be accepted counts as no byte.
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(unread(process::id(), port), Ok(0));
        far.write_all(&[7; 300]).unwrap();
        assert_eq!(unread(process::id(), port), Ok(300));
        let (mut near, _) = listener.accept().unwrap();
        near.read_exact(&mut [0; 100]).unwrap();
        assert_eq!(unread(process::id(), port), Ok(200));
        assert_eq!(unread(process::id(), far.local_addr().unwrap().port()), Ok(0));
    }

    #[test]
    fn the_tables_of_both_families_are_understood() {
        let four = "   1: 0200004E:0FA2 0100004E:C350 01 00000010:000001FF 00:00000000 00000000 0";
        let six = "   0: 0000000000000000FFFF00000200004E:0FA2 0000000000000000FFFF00000100004E:C350 \
                   08 00000000:0000000A 00:00000000 00000000 0";
        let connection = |queued| Some(Socket { port: 0xfa2, listens: false, queued });
        assert_eq!((Socket::of(four), Socket::of(six)), (connection(0x1ff), connection(10)));
        let listens = Socket::of(&four.replace(" 01 ", " 0A ")).map(|socket| socket.listens);
        assert_eq!(listens, Some(true));
        let titles = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt";
        assert_eq!(Socket::of(titles), None);
    }
}
