//! The measured end, where it is another program: socat, nginx, openssl.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::AtomicBool,
};

use handoff_testbed::Namespace;

use super::{far::Far, identity::SUITE, measured::Works};
use crate::{
    network::{
        program::{Program, installed},
        queues::OwnQueue,
    },
    peer::Placeholders,
};

/// The configuration of nginx, as its manual says, and no more.
const NGINX: &str = "\
daemon off;
master_process off;
pid '{scratch}/nginx.pid';
error_log stderr;
events { worker_connections 256; }
http {
    access_log off;
    sendfile on;
    keepalive_requests 4000000000;
    keepalive_timeout 1h;
    client_body_temp_path '{scratch}/body';
    proxy_temp_path '{scratch}/proxy';
    fastcgi_temp_path '{scratch}/fastcgi';
    uwsgi_temp_path '{scratch}/uwsgi';
    scgi_temp_path '{scratch}/scgi';
    server {
        listen {addr}:{port} ssl;
        root '{root}';
        ssl_certificate '{certificate}';
        ssl_certificate_key '{key}';
        ssl_protocols TLSv1.3;
        ssl_session_tickets off;
        ssl_conf_command Ciphersuites {suite};
        {options}
    }
}
";

/// The command of nginx, with kernel TLS or without.
///
/// # Errors
///
/// One line that says that nginx is not installed.
pub(super) fn nginx(
    placeholders: &Placeholders,
    scratch: &Path,
    by_kernel: bool,
) -> Result<String, String> {
    let program = installed("nginx")?;
    let options = if by_kernel { "ssl_conf_command Options KTLS;" } else { "" };
    let text = placeholders.fill(NGINX).replace("{suite}", SUITE).replace("{options}", options);
    let file = scratch.join("nginx.conf");
    let text = text.replace("{scratch}", &scratch.display().to_string());
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    let (program, file, scratch) = (program.display(), file.display(), scratch.display());
    Ok(format!("exec '{program}' -p '{scratch}' -c '{file}' -e stderr"))
}

/// The command of socat that sends zeros, as cheap a source as there is.
///
/// # Errors
///
/// One line that says that socat is not installed.
pub(super) fn socat_sends() -> Result<String, String> {
    let program = installed("socat")?;
    Ok(format!(
        "exec '{}' -u -b {{bytes}} OPEN:/dev/zero OPENSSL:{{addr}}:{{port}},verify=0",
        program.display()
    ))
}

/// The command of socat that receives, and throws away.
///
/// # Errors
///
/// One line that says that socat is not installed.
pub(super) fn socat_receives() -> Result<String, String> {
    let program = installed("socat")?;
    Ok(format!(
        "exec '{}' -u -b {{bytes}} OPENSSL-LISTEN:{{port}},bind={{addr}},reuseaddr,cert='{{certificate}}',key='{{key}}',verify=0 \
         OPEN:/dev/null",
        program.display()
    ))
}

/// A program that lives as long as its row.
pub(super) struct Living<'a> {
    pub(super) program: Program<'a>,
    /// Whether it must have taken what was sent.
    pub(super) receives: bool,
    /// The port that it has as long.
    pub(super) _own: OwnQueue<'a>,
}

impl Works for Living<'_> {
    fn work(&mut self, _: u64, far: &Far) -> Result<(), String> {
        self.program
            .until("is not through with its work", || Ok(far.is_through().then_some(())))?;
        if self.receives { self.program.rest() } else { Ok(()) }
    }
}

/// `openssl s_time`, which makes handshakes for a second, each time anew.
pub(super) struct STime<'a> {
    pub(super) namespace: Namespace,
    pub(super) address: String,
    pub(super) stop: &'a AtomicBool,
}

impl Works for STime<'_> {
    fn work(&mut self, _: u64, _: &Far) -> Result<(), String> {
        let program = installed("openssl")?;
        let mut command = Command::new(program);
        command.args(["s_time", "-connect", &self.address, "-new", "-time", "1", "-tls1_3"]);
        command.args(["-ciphersuites", SUITE]).stdin(Stdio::null());
        let ended = self.namespace.run(|| command.output()).map_err(|error| error.to_string())?;
        let ended = ended.map_err(|error| format!("openssl: {error}"))?;
        if self.stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        match ended.status.success() {
            true => Ok(()),
            false => {
                let said = String::from_utf8_lossy(&ended.stderr);
                Err(format!("openssl s_time: {}", said.lines().last().unwrap_or("it failed")))
            }
        }
    }
}
