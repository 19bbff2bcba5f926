//! A TLS connection to user memory, and from there to a file: `receive-tls ADDRESS:PORT CERTIFICATE.pem KEY.pem FILE`

use std::error::Error;
use std::io::Write as _;
use std::net::{Shutdown, TcpListener};

use handoff::tls::TlsAcceptor;
use handoff::{Driver, Region};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, certificate, key, path] = arguments.try_into().map_err(|_| "see the source")?;
    let certificate = CertificateDer::from_pem_file(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key)?;
    let driver = Driver::new()?;
    let mut listener = driver.listen(TcpListener::bind(address)?)?;
    println!("listening on {}", listener.local_addr()?);
    let mut file = std::fs::File::create(path)?;
    let mut buffer = Region::anonymous(1 << 20)?.take(1 << 20).ok_or("no room")?;
    driver.block_on(async {
        let (socket, _) = listener.accept().await?;
        let (socket, session) = TlsAcceptor::new(config).accept(socket).await?;
        loop {
            let received = socket.receive_into(buffer).map_err(|it| it.error)?.await?;
            buffer = received.buffer;
            match received.result? {
                0 => break,
                count => file.write_all(&buffer[..count])?,
            }
        }
        socket.shutdown(Shutdown::Write)?;
        println!("received, and deciphered by {}", session.engine);
        Ok(())
    })?
}
