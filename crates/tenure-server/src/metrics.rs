//! What the server counts, for Prometheus.
//!
//! Every label has a fixed set of values: routes are those that exist, and whatever else is asked for
//! counts as one. So no client can fill the memory of the scraper.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::Method;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use prost::Message;
use prost_types::FileDescriptorSet;
use tenure::clock::SharedClock;
use tenure::store::measured;

use crate::api::Api;
use crate::limits::{Room, Use};

/// The route of everything that is nowhere.
const NOWHERE: &str = "(none)";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RequestLabels {
    method: &'static str,
    route: Arc<str>,
    code: u16,
    grpc: u16,
}

impl EncodeLabelSet for RequestLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (code, grpc) = (self.code.to_string(), self.grpc.to_string());
        let grpc = if self.route.starts_with("/tenure.v1.") { grpc.as_str() } else { "" };
        [("method", self.method), ("route", &self.route), ("code", &code), ("grpc_status", grpc)]
            .encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RouteLabel {
    route: Arc<str>,
}

impl EncodeLabelSet for RouteLabel {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        [("route", &*self.route)].encode(encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct HowLabel {
    how: &'static str,
}

impl EncodeLabelSet for HowLabel {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        [("how", self.how)].encode(encoder)
    }
}

/// Connections for which there was no place.
#[derive(Clone, Default)]
pub(crate) struct Refusals {
    refused: Family<HowLabel, Counter>,
}

impl Refusals {
    /// One was told so.
    pub(crate) fn answered(&self) {
        self.refused.get_or_create(&HowLabel { how: "answered" }).inc();
    }

    /// One was closed without a word.
    pub(crate) fn closed(&self) {
        self.refused.get_or_create(&HowLabel { how: "closed" }).inc();
    }
}

fn seconds() -> Histogram {
    Histogram::new([0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0])
}

/// The server's counters and everything else that it exports.
pub(crate) struct Metrics {
    registry: Registry,
    routes: HashSet<Arc<str>>,
    nowhere: Arc<str>,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<RouteLabel, Histogram, fn() -> Histogram>,
    connections: Gauge,
    refusals: Refusals,
    streams: Gauge,
    waiters: Gauge,
    clock: SharedClock,
}

impl Metrics {
    /// Adds the server's numbers and those of leases to what the registry has already:
    ///
    /// - `tenure_server_requests_total{method,route,code,grpc_status}`: answers begun. Of a gRPC call
    ///   that fails after its answer has begun, the beginning counts.
    /// - `tenure_server_request_seconds{route}`: until the answer begins, waits included,
    /// - `tenure_server_connections`, `tenure_server_streams`, `tenure_server_waiters`: open now,
    /// - `tenure_server_connections_refused_total{how}`: for which there was no place,
    /// - `tenure_server_build_info{version}`.
    pub(crate) fn new(mut registry: Registry, api: &Api) -> Arc<Self> {
        api.lease_metrics().register(&mut registry);
        let requests = Family::default();
        let timers = Family::new_with_constructor(seconds as fn() -> Histogram);
        let (connections, streams, waiters) = <(Gauge, Gauge, Gauge)>::default();
        let server = registry.sub_registry_with_prefix("tenure_server");
        server.register("requests", "Requests answered", requests.clone());
        server.register("request_seconds", "Time until an answer begins", timers.clone());
        server.register("connections", "Connections open now", connections.clone());
        let refusals = Refusals::default();
        let refused = "Connections for which there was no place";
        server.register("connections_refused", refused, refusals.refused.clone());
        server.register("streams", "Streams open now", streams.clone());
        server.register("waiters", "Callers that wait now", waiters.clone());
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        server.register("build", "What runs here", build);
        Arc::new(Self {
            registry,
            routes: routes(),
            nowhere: NOWHERE.into(),
            requests,
            seconds: timers,
            connections,
            refusals,
            streams,
            waiters,
            clock: Arc::clone(api.store().clock()),
        })
    }

    /// Everything, as Prometheus reads it.
    pub(crate) fn text(&self, room: &Room) -> String {
        let number = |taken: usize| i64::try_from(taken).unwrap_or(i64::MAX);
        self.streams.set(number(room.taken(Use::Stream)));
        self.waiters.set(number(room.taken(Use::Wait)));
        measured::encode(&self.registry)
    }

    /// Counts connections for which there is no place.
    pub(crate) fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    /// Counts a connection for as long as what is returned is kept.
    pub(crate) fn connection(&self) -> Connection {
        self.connections.inc();
        Connection { open: self.connections.clone() }
    }

    fn route(&self, name: Option<&str>) -> Arc<str> {
        let known = name.and_then(|name| self.routes.get(name));
        Arc::clone(known.unwrap_or(&self.nowhere))
    }
}

/// A connection that is counted.
pub(crate) struct Connection {
    open: Gauge,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// The routes of both front doors: those of HTTP as the router writes them, those of gRPC by method.
fn routes() -> HashSet<Arc<str>> {
    let mut routes: HashSet<Arc<str>> = crate::http::paths().into_iter().map(Arc::from).collect();
    for described in [tenure_proto::DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET] {
        let files = FileDescriptorSet::decode(described).unwrap_or_default().file;
        for file in &files {
            for service in &file.service {
                let path = |method| format!("/{}.{}/{method}", file.package(), service.name());
                routes.extend(service.method.iter().map(|method| path(method.name()).into()));
            }
        }
    }
    routes
}

fn method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "PUT" => "PUT",
        "POST" => "POST",
        "DELETE" => "DELETE",
        _ => "other",
    }
}

/// A request that is being answered.
pub(crate) struct Begun {
    at: Duration,
    method: &'static str,
    route: Arc<str>,
}

impl Metrics {
    /// A request begins. Its route is as the router writes it, or the method of a gRPC service.
    pub(crate) fn begin(&self, named: &Method, route: Option<&str>) -> Begun {
        Begun { at: self.clock.uptime(), method: method(named), route: self.route(route) }
    }

    /// Its answer begins.
    pub(crate) fn end<B>(&self, begun: Begun, response: &http::Response<B>) {
        let Begun { at, method, route } = begun;
        let grpc = response.headers().get("grpc-status");
        let grpc = grpc.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
        let code = response.status().as_u16();
        let took = self.clock.uptime().saturating_sub(at);
        let label = RouteLabel { route: Arc::clone(&route) };
        self.seconds.get_or_create(&label).observe(took.as_secs_f64());
        self.requests.get_or_create(&RequestLabels { method, route, code, grpc }).inc();
    }
}

/// Counts and times every request that goes through the router.
pub(crate) async fn measure(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response {
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let route = match matched {
        // All methods of a gRPC service are one route of the router.
        Some(path) if path.ends_with("/{*rest}") => Some(request.uri().path()),
        path => path,
    };
    let begun = metrics.begin(request.method(), route);
    let response = next.run(request).await;
    metrics.end(begun, &response);
    response
}
