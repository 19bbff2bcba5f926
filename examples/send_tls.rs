//! User memory to a TLS connection: sends what comes in on standard input.
//!
//! `send-tls ADDRESS:PORT NAME AUTHORITY.pem`

use std::error::Error;
use std::io::Read as _;
use std::net::Shutdown;

use handoff::tls::TlsConnector;
use handoff::{Buffer, Driver};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, name, authority] = arguments.try_into().map_err(|_| "usage: see the source")?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let driver = Driver::new()?;
    let socket = driver.socket(std::net::TcpStream::connect(address)?)?;
    driver.block_on(async {
        let connector = TlsConnector::new(config);
        let (socket, session) = connector.connect(socket, name.try_into()?).await?;
        let mut memory = Vec::new();
        std::io::stdin().read_to_end(&mut memory)?;
        let finished = socket.send(Buffer::from(memory)).map_err(|it| it.error)?.await?;
        println!("{} bytes by {}: {}", finished.sent?, session.engine, finished.receipt.outcome());
        // Without it, the peer takes this for a cut connection. Its end says that it has everything.
        socket.shutdown(Shutdown::Write)?;
        let end = socket.receive_into(Buffer::from(vec![0])).map_err(|it| it.error)?.await?;
        end.result.map(drop).map_err(Into::into)
    })?
}
