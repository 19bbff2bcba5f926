//! What a relay has done so far, for whoever asks by HTTP: one JSON object, or OpenMetrics.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use handoff::{Driver, Tally};
use handoff_command::Failure;
use handoff_command::clock::Clock;
use handoff_http::{Limits, RequestBody, Server};
use handoff_net::listening::{Listening, lets_in};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use tower_service::Service;

use super::counters::Shared;
use super::report::Report;

/// Askers at once.
pub(super) const ASKERS: usize = 16;

/// The answer as JSON.
#[derive(Serialize)]
struct Now {
    /// Connections under way.
    open: u64,
    #[serde(flatten)]
    report: Report,
}

/// Answers whoever asks.
#[derive(Clone)]
struct Answers {
    shared: Shared,
    clock: Clock,
}

/// Answers for ever.
///
/// # Errors
///
/// When the driver cannot listen.
pub(super) fn serve(
    driver: &Driver,
    listening: Listening,
    shared: Shared,
    clock: Clock,
) -> Result<impl Future<Output = ()> + use<>, Failure> {
    let (listener, allow_list) = listening.on(driver)?;
    let limits =
        Limits { connections: ASKERS, per_client: ASKERS / 2, body: 0, ..Limits::default() };
    let server = Server::new(driver, limits).admitting(move |peer| lets_in(&allow_list, peer));
    let answers = Answers { shared, clock };
    Ok(async move { server.serve(listener, answers, std::future::pending()).await })
}

impl Service<Request<RequestBody>> for Answers {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        ready(Ok(self.answer(request.method(), request.uri().path())))
    }
}

impl Answers {
    fn answer(&self, method: &Method, path: &str) -> Response<String> {
        let (kind, body) = match path {
            "/" => ("application/json", self.json()),
            "/metrics" => {
                ("application/openmetrics-text; version=1.0.0; charset=utf-8", self.metrics())
            }
            _ => {
                let mut answer =
                    Response::new("/ has the counts as JSON, /metrics as OpenMetrics\n".to_owned());
                *answer.status_mut() = StatusCode::NOT_FOUND;
                return answer;
            }
        };
        let mut answer = Response::new(body);
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut refused = Response::new(String::new());
            *refused.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    fn now(&self) -> Now {
        let (open, totals) = self.shared.read();
        Now { open, report: Report::new(&self.clock, totals) }
    }

    fn json(&self) -> String {
        let mut text = serde_json::to_string(&self.now()).expect("counts have a form");
        text.push('\n');
        text
    }

    fn metrics(&self) -> String {
        let Now { open, report } = self.now();
        let mut registry = Registry::with_prefix("handoff_relay");
        let mut count = |name: &str, help: &str, value: u64| {
            let counter = Counter::<u64>::default();
            counter.inc_by(value);
            registry.register(name, help, counter);
        };
        count("connections", "Connections that clients made", report.connections);
        count("failed", "Connections that did not end well", report.failed);
        count("turned_away", "Connections beyond --max-per-client", report.turned_away);
        count("refused", "Connections from elsewhere than --from says", report.refused);
        let gauge = Gauge::<i64>::default();
        gauge.set(open as i64);
        registry.register("open", "Connections under way", gauge);
        let directions = [("up", report.bytes_up), ("down", report.bytes_down)];
        let bytes = by(["direction"], directions.map(|(way, bytes)| ([way], bytes)));
        registry.register("bytes", "Bytes from clients (up) and to them (down)", bytes);
        let engines = report.engines.iter().map(|(engine, count)| ([*engine], *count));
        registry.register(
            "directions",
            "Directions that ended, by engine",
            by(["engine"], engines),
        );
        let fates = [("taken", report.taken), ("given", report.given)].into_iter().flat_map(told);
        registry.register(
            "payload_bytes",
            "Bytes out of sockets (taken) and into them (given), of directions that ended",
            by(["way", "fate"], fates),
        );
        let mut text = String::new();
        encode(&mut text, &registry).expect("a text takes all");
        text
    }
}

type Labels = Vec<(&'static str, &'static str)>;

/// Counters of one name, by their labels.
fn by<const N: usize>(
    names: [&'static str; N],
    counts: impl IntoIterator<Item = ([&'static str; N], u64)>,
) -> Family<Labels, Counter> {
    let family = Family::<Labels, Counter>::default();
    for (values, count) in counts {
        let labels = names.into_iter().zip(values).collect();
        family.get_or_create(&labels).inc_by(count);
    }
    family
}

fn told((way, tally): (&'static str, Tally)) -> [([&'static str; 2], u64); 3] {
    let Tally { zero_copy, copied, unknown, .. } = tally;
    [("zero_copy", zero_copy), ("copied", copied), ("unknown", unknown)]
        .map(|(fate, bytes)| ([way, fate], bytes))
}
