"""A collector gets the spans of a real server, by OpenTelemetry's own protocol."""

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from rocmforge import InvalidRequestError
from rocmforge.server import ModelSpec, ServerConfig, create_app
from rocmforge.server.tracing import Traced, Tracer
from server_process import serving
from starlette.routing import Route, Router

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SECRET = "marzipan"


class Collector:
    """Takes traces by OTLP over HTTP, or lets them wait."""

    def __init__(self, *, answers=True):
        self.exports = []
        self.raw = b""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not answers:
                    time.sleep(60)
                collector.raw += body
                export = ExportTraceServiceRequest()
                export.ParseFromString(body)
                collector.exports.append(export)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def resources(self):
        return [values(spans.resource.attributes) for export in self.exports for spans in export.resource_spans]

    def spans(self):
        return [
            span
            for export in self.exports
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def values(attributes):
    def plain(value):
        kind = value.WhichOneof("value")
        return [plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {one.key: plain(one.value) for one in attributes}


@pytest.fixture(scope="module")
def traced(model, tmp_path_factory):
    """A collector, with all that a server sent it that was asked several things."""
    with Collector() as collector:
        arguments = ("--num-threads", 1, "--otlp-traces-endpoint", collector.url)
        with serving(tmp_path_factory.mktemp("traced"), model, *arguments) as server:
            body = {"prompt": SECRET, "max_tokens": 5, "temperature": 0.5, "ignore_eos": True}
            parent = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "x-request-id": "mine"}
            assert server.client.post("/v1/completions", json=body, headers=parent).status_code == 200
            body |= {"prompt": [SECRET, SECRET], "stream": True}
            assert server.client.post("/v1/completions", json=body).status_code == 200
            assert server.client.post("/v1/completions", json={"prompt": SECRET, "nonsense": 1}).status_code == 400
            assert server.client.post("/v1/embeddings", json={"input": [SECRET, "b"]}).status_code == 200
            endless = {"prompt": SECRET, "max_tokens": 60_000, "ignore_eos": True, "stream": True}
            with server.client.stream("POST", "/v1/completions", json=endless) as answer:
                next(answer.iter_bytes())
            server.settled()
            assert server.client.get("/health").status_code == 200
        # The server has sent what was left before it ended.
        return collector


def test_a_clients_trace_goes_on(traced):
    (http,) = [span for span in traced.spans() if span.parent_span_id.hex() == PARENT_ID]
    (engine,) = [span for span in traced.spans() if span.parent_span_id == http.span_id]
    assert http.trace_id.hex() == engine.trace_id.hex() == TRACE_ID
    assert (http.name, http.kind) == ("POST /v1/completions", Span.SPAN_KIND_SERVER)
    assert values(http.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "http.response.header.x-request-id": ["mine"],
        "url.path": "/v1/completions",
        "url.scheme": "http",
    }
    assert http.start_time_unix_nano <= engine.start_time_unix_nano <= engine.end_time_unix_nano
    assert engine.end_time_unix_nano <= http.end_time_unix_nano


def test_what_the_engine_did_is_told(traced):
    (http,) = [span for span in traced.spans() if span.parent_span_id.hex() == PARENT_ID]
    (engine,) = [span for span in traced.spans() if span.parent_span_id == http.span_id]
    told = values(engine.attributes)
    latencies = [told.pop(f"gen_ai.latency.{name}") for name in ("time_in_queue", "time_to_first_token", "e2e")]
    assert latencies == sorted(latencies)
    assert told.pop("gen_ai.response.id").startswith("cmpl-")
    assert told.pop("gen_ai.usage.input_tokens") > 0
    assert told == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": "quant_models-Q4_0",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.response.finish_reasons": ["length"],
    }


def test_every_request_has_its_spans(traced):
    spans = traced.spans()
    https = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    engines = [span for span in spans if span.kind == Span.SPAN_KIND_INTERNAL]
    # Health checks and the like are not traced.
    assert sorted(span.name for span in https) == [*["POST /v1/completions"] * 4, "POST /v1/embeddings"]
    statuses = sorted(values(span.attributes)["http.response.status_code"] for span in https)
    assert statuses == [200, 200, 200, 200, 400]
    assert {span.parent_span_id for span in engines} < {span.span_id for span in https}
    reasons = sorted((span.name, *values(span.attributes)["gen_ai.response.finish_reasons"]) for span in engines)
    of_texts = [("text_completion", reason) for reason in ("abort", "length", "length", "length")]
    assert reasons == [("embeddings", "stop"), *of_texts]
    assert all(span.status.code == Status.STATUS_CODE_UNSET for span in spans)
    assert {resource["service.name"] for resource in traced.resources()} == {"rocmforge"}


def test_no_text_is_told(traced):
    assert traced.raw
    assert SECRET.encode() not in traced.raw


def test_an_error_nobody_handled_is_told_without_its_text():
    async def fail(_):
        raise LookupError(SECRET)

    async def nothing(*_):
        return {"type": "http.request", "body": b"", "more_body": False}

    with Collector() as collector:
        tracer = Tracer(collector.url)
        scope = {"type": "http", "method": "POST", "path": "/mounted", "scheme": "http", "headers": [], "state": {}}
        app = Traced(Router([Route("/mounted", fail, methods=["POST"])]), tracer)
        with pytest.raises(LookupError):
            asyncio.run(app(scope, nothing, nothing))
        tracer.close()
    (span,) = collector.spans()
    assert span.name == "POST /mounted"
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert values(span.attributes)["error.type"] == "LookupError"
    assert SECRET.encode() not in collector.raw


def test_a_collector_that_hangs_holds_nobody_up(model, tmp_path):
    with Collector(answers=False) as collector:
        arguments = ("--num-threads", 1, "--otlp-traces-endpoint", collector.url)
        with serving(tmp_path, model, *arguments) as server:
            for _ in range(3):
                body = {"prompt": "a", "max_tokens": 2}
                assert server.client.post("/v1/completions", json=body).status_code == 200
    assert "Traceback" not in server.log()


def test_an_address_that_is_none(model):
    with pytest.raises(InvalidRequestError, match="otlp_traces_endpoint: got 'localhost:4317', expected a URL"):
        create_app([ModelSpec(path=model, names=("m",))], ServerConfig(otlp_traces_endpoint="localhost:4317"))
