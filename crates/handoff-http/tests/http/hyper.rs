//! hyper's client as the peer.

use axum::body::{Body, Bytes};
use axum::routing::{any, get};
use axum::{Extension, Router};
use futures_util::stream;
use handoff::Buffer;
use handoff_http::{LentBody, Limits};
use http::header::{HOST, TE};
use http::{HeaderMap, HeaderValue, Request};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;

use crate::serving::{RINGS, Serving, content};

fn request(method: &str, path: &str, body: Body) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header(HOST, "h");
    request.header(TE, "trailers").body(body).expect("a request")
}

async fn connect(serving: &Serving) -> SendRequest<Body> {
    let stream = tokio::net::TcpStream::connect(serving.address).await.expect("connects");
    let (client, connection) = handshake(TokioIo::new(stream)).await.expect("begins");
    tokio::task::spawn(async { connection.await.expect("ends well") });
    client
}

#[test]
fn a_connection_has_requests_of_every_kind() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let runtime = runtime.expect("a runtime");
    for ring in RINGS {
        let lent = LentBody::from(Buffer::from(content(1 << 20)).freeze());
        let router = Router::new()
            .route("/lent", get(async move || Extension(lent)))
            .fallback(any(async |body: Body| body));
        let serving = Serving::start(ring, Limits::default(), router);
        runtime.block_on(async {
            let mut client = connect(&serving).await;
            for round in 0..20 {
                client.ready().await.expect("goes on");
                let got = client.send_request(request("GET", "/lent", Body::empty())).await;
                let got = got.expect("is answered").collect().await.expect("comes whole");
                assert!(got.to_bytes() == content(1 << 20), "round {round}");

                client.ready().await.expect("goes on");
                let got = client.send_request(request("HEAD", "/lent", Body::empty())).await;
                let got = got.expect("is answered");
                assert_eq!(got.headers()["content-length"], (1 << 20).to_string().as_str());

                // In chunks, there and back, with trailers.
                let mut trailers = HeaderMap::new();
                trailers.insert("x-round", HeaderValue::from(round));
                let pieces =
                    (0..10).map(|number| Frame::data(Bytes::from(content(number * 9_000))));
                let frames = pieces.chain([Frame::trailers(trailers.clone())]);
                let frames = stream::iter(frames.map(Ok::<_, std::io::Error>));
                client.ready().await.expect("goes on");
                let mut echo = request("POST", "/", Body::new(StreamBody::new(frames)));
                // hyper's client sends the trailers that it announced.
                echo.headers_mut().insert("trailer", HeaderValue::from_static("x-round"));
                let got = client.send_request(echo).await.expect("is answered");
                let got = got.collect().await.expect("comes whole");
                assert_eq!(got.trailers(), Some(&trailers));
                let sent: Vec<u8> = (0..10).flat_map(|number| content(number * 9_000)).collect();
                assert!(got.to_bytes() == sent, "round {round}");
            }
        });
        assert_eq!(serving.stop().requests, 60);
    }
}
