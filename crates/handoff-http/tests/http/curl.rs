//! curl as the client.

use std::process::Command;

use axum::Router;
use axum::body::Body;
use axum::routing::{any, get};
use handoff_http::{LentBody, Limits};

use crate::serving::{RINGS, Serving, content};

/// The answer to curl; `None` without curl.
pub(crate) fn curl(arguments: &[&str]) -> Option<Vec<u8>> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--noproxy", "*"]);
    let output = command.args(arguments).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output.stdout)
}

#[test]
fn curl_gets_puts_and_goes_on() {
    if curl(&["--version"]).is_none() {
        handoff_testbed::skip!("there is no curl here");
    }
    let all = content(3_000_000);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("all");
    std::fs::write(&path, &all).expect("writes");
    let upload = format!("@{}", path.display());
    for ring in RINGS {
        let file = std::sync::Arc::new(std::fs::File::open(&path).expect("opens"));
        let router = Router::new()
            .route("/file", get(async move || axum::Extension(LentBody::file(file, 0..3_000_000))))
            .fallback(any(async |body: Body| body));
        let serving = Serving::start(ring, Limits::default(), router);
        let url = |path: &str| format!("http://{}/{path}", serving.address);
        let (file, echo) = (url("file"), url("echo"));
        let got = curl(&[&file, &file]).expect("is there");
        assert!(got == [&all[..], &all].concat());
        // curl waits for 100 before it sends much.
        assert!(curl(&["--data-binary", &upload, &echo]).expect("is there") == all);
        let chunked = ["--header", "Transfer-Encoding: chunked", "--data-binary", &upload, &echo];
        assert!(curl(&chunked).expect("is there") == all);
        assert!(curl(&["--http1.0", "--data-binary", &upload, &echo]).expect("is there") == all);
        let head = curl(&["--head", &file]).expect("is there");
        assert!(String::from_utf8_lossy(&head).contains("Content-Length: 3000000"));
        let served = serving.stop();
        assert_eq!((served.connections, served.requests), (5, 6), "{served:?}");
    }
}
