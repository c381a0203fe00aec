"""OpenTelemetry traces (extra `otel`): a span for each client's request, and in it one for each request to the engine.

Attributes have the names of OpenTelemetry's semantic conventions (HTTP servers, generative AI); latencies have vLLM's.
No text of a request is among them. The variables `OTEL_…` of the SDK hold as well.
"""

import os
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rocmforge import __version__
from rocmforge.errors import InvalidRequestError

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from opentelemetry.util.types import AttributeValue
except ModuleNotFoundError as missing:
    raise InvalidRequestError(
        f"otlp_traces_endpoint: the package {missing.name} is missing, with which traces are sent: "
        "pip install 'rocmforge[otel]'"
    ) from missing

# Seconds for one batch of spans, retries included; the exporter runs on a separate thread.
EXPORT_SECONDS = 5.0
# Seconds for the remaining spans at the end, if the collector is slow.
CLOSE_SECONDS = 5.0
SERVER_ERROR = 500


class Tracer:
    """Sends spans to a collector, in batches from a separate thread, until it is closed.

    Args:
        endpoint: The collector's URL for OTLP over HTTP, like `http://localhost:4318/v1/traces`.

    Raises:
        InvalidRequestError: That is no URL.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequestError(
                f"otlp_traces_endpoint: got {endpoint!r}, expected a URL like http://localhost:4318/v1/traces"
            )
        service = {SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "rocmforge"), SERVICE_VERSION: __version__}
        self._provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("rocmforge", __version__)
        self._propagator = TraceContextTextMapPropagator()

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request in a span, which ends with the last piece of the answer."""
        method, path = scope["method"], scope["path"]
        headers = dict(Headers(scope=scope).items())
        with self._tracer.start_as_current_span(
            method,
            self._propagator.extract(headers),
            SpanKind.SERVER,
            {"http.request.method": method, "url.path": path, "url.scheme": scope["scheme"]},
            # An exception's message and stack can hold text of the request.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    span.set_attribute("http.response.status_code", status)
                    if status >= SERVER_ERROR:
                        span.set_attribute("error.type", str(status))
                        span.set_status(StatusCode.ERROR)
                await send(message)

            try:
                await app(scope, receive, noted)
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(StatusCode.ERROR)
                raise
            finally:
                # The router has set the route, and the middleware the request id.
                if route := getattr(scope.get("route"), "path", None):
                    span.update_name(f"{method} {route}")
                    span.set_attribute("http.route", route)
                if request_id := scope.get("state", {}).get("request_id"):
                    span.set_attribute("http.response.header.x-request-id", [request_id])

    def record(self, name: str, seconds: float, attributes: Mapping[str, AttributeValue], error: str | None) -> None:
        """Adds a span that ends now, within the span of the client's request.

        Args:
            name: The name of the operation.
            seconds: How long it took.
            attributes: Its attributes.
            error: The kind of error that ended it, if one did.
        """
        end = time.time_ns()
        span = self._tracer.start_span(name, attributes=attributes, start_time=end - round(seconds * 1e9))
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(StatusCode.ERROR)
        span.end(end)

    def close(self) -> None:
        """Sends what is left, for a bounded time."""
        closing = threading.Thread(target=self._provider.shutdown, name="rocmforge-traces", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


class Traced:
    """Has requests that ask for work traced: those that only look, like health checks, would bury them.

    Args:
        app: The wrapped application.
        tracer: What traces them.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._tracer.serve(self._app, scope, receive, send)
        else:
            await self._app(scope, receive, send)
