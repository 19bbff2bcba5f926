//! TLS for streams with tokio's traits.
//!
//! Minimum kernel, capability and return signal: as of [`tls`](crate::tls).

use rustls::pki_types::ServerName;

use super::tcp::TcpStream;
use crate::error::Result;
use crate::tls::{TlsAcceptor, TlsConnector, TlsSession};

impl TlsConnector {
    /// As [`connect`](Self::connect), for a stream, which then reads and writes what was ciphered. `shutdown`, and dropping
    /// the write half, tell the peer that nothing follows (close-notify). A peer that ends without that makes a read fail,
    /// with [`Error::Tls`](crate::Error::Tls) inside.
    ///
    /// **Copies:** where the kernel ciphers, a write is ciphered from your slice, and a read is deciphered into it if it
    /// has room for a record. Where this process does, a write is copied once more, and accepted up to 64 KiB at a time.
    ///
    /// ```no_run
    /// use handoff::tls::TlsConnector;
    /// use handoff::tokio::TcpStream;
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// async fn ask(driver: &handoff::Driver, connector: &TlsConnector) -> std::io::Result<String> {
    ///     let stream = TcpStream::connect(driver, "192.0.2.1:443".parse().expect("an address")).await?;
    ///     let name = "example.net".try_into().expect("a name");
    ///     let (mut stream, _) = connector.connect_stream(stream, name).await?;
    ///     stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
    ///     let mut answer = String::new();
    ///     stream.read_to_string(&mut answer).await?;
    ///     stream.shutdown().await?;
    ///     Ok(answer)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_stream(
        &self,
        stream: TcpStream,
        name: ServerName<'static>,
    ) -> Result<(TcpStream, TlsSession)> {
        let (socket, session) = self.connect(stream.into_socket(), name).await?;
        Ok((TcpStream::of_stream(socket), session))
    }
}

impl TlsAcceptor {
    /// As [`accept`](Self::accept), for a stream; see [`TlsConnector::connect_stream`].
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub async fn accept_stream(&self, stream: TcpStream) -> Result<(TcpStream, TlsSession)> {
        let (socket, session) = self.accept(stream.into_socket()).await?;
        Ok((TcpStream::of_stream(socket), session))
    }
}
