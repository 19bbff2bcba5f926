//! Servers that are programs: nginx(8) from the Debian package of this name, `handoff serve`, and any other.

use std::{fs, sync::atomic::AtomicBool, time::Duration};

use handoff_sys::companion::{self, PRODUCT};

use super::{
    served::{Copies, Server},
    testbed::{Port, Testbed},
};
use crate::{
    measure::Slot,
    network::{self, program::installed},
};

/// The configuration of nginx, as its manual says, and no more.
const CONFIGURATION: &str = "\
daemon off;
master_process off;
pid '{root}/nginx.pid';
error_log stderr;
events { worker_connections 2048; }
http {
    access_log off;
    sendfile on;
    keepalive_requests 4000000000;
    keepalive_timeout 1h;
    client_body_temp_path '{root}/body';
    proxy_temp_path '{root}/proxy';
    fastcgi_temp_path '{root}/fastcgi';
    uwsgi_temp_path '{root}/uwsgi';
    scgi_temp_path '{root}/scgi';
    server {
        listen {addr}:{port};
        root '{root}';
    }
}
";

pub(super) struct Program<'a> {
    program: network::program::Program<'a>,
    stop: &'a AtomicBool,
}

impl<'a> Program<'a> {
    /// Starts nginx with one process, which sends files by sendfile(2).
    ///
    /// # Errors
    ///
    /// One line that says that nginx is not installed.
    pub(super) fn nginx(
        testbed: &'a Testbed,
        port: &Port<'_>,
        stop: &'a AtomicBool,
    ) -> Result<Self, String> {
        let program = installed("nginx")?;
        let text = testbed.placeholders(port).fill(CONFIGURATION);
        let file = testbed.directory().join("nginx.conf");
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let (program, file) = (program.display(), file.display());
        Self::start(
            &format!("exec '{program}' -p '{{root}}' -c '{file}' -e stderr"),
            testbed,
            port,
            stop,
        )
    }

    /// Starts `handoff serve` with one thread.
    ///
    /// # Errors
    ///
    /// One line that says that `handoff` is not installed.
    pub(super) fn serve(
        testbed: &'a Testbed,
        port: &Port<'_>,
        stop: &'a AtomicBool,
    ) -> Result<Self, String> {
        let program = companion::find(PRODUCT)
            .ok_or_else(|| format!("{PRODUCT} is neither beside this program nor on PATH"))?;
        let program = program.display();
        let command =
            format!("exec '{program}' serve '{{root}}' --threads 1 --listen {{addr}}:{{port}}");
        Self::start(&command, testbed, port, stop)
    }

    /// Starts a server's command.
    ///
    /// # Errors
    ///
    /// One line that says that there is no shell.
    pub(super) fn start(
        command: &str,
        testbed: &'a Testbed,
        port: &Port<'_>,
        stop: &'a AtomicBool,
    ) -> Result<Self, String> {
        let (placeholders, namespace) =
            (testbed.placeholders(port), testbed.network().connected().namespace());
        let program =
            network::program::Program::start(command, &placeholders, Some(namespace), stop)?;
        Ok(Self { program, stop })
    }
}

impl Server for Program<'_> {
    fn serve_for(&mut self, time: Duration) -> Result<(), String> {
        self.program.work(&Slot::new(time, self.stop))
    }

    fn process(&self) -> Option<u32> {
        Some(self.program.id())
    }

    fn copies(&self) -> Copies {
        Copies::Unknown
    }
}
