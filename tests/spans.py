"""The OpenTelemetry spans of this process and of other processes, as trees of text."""

from __future__ import annotations

import contextlib
import functools
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

#: Attributes that trees leave out: they vary, or follow from the endpoint.
NOT_IN_TREES = {
    "http.request.method",
    "server.address",
    "url.template",
    "webcollect.bytes",
    "webcollect.collection_task_id",
    "webcollect.seconds",
}


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @contextlib.contextmanager
    def of_task(self, name: str = "task") -> Iterator[None]:
        """Record the block in a span, as Airflow does with a task or a trigger."""
        with trace.get_tracer("airflow").start_as_current_span(name):
            yield

    def all(self) -> list[ReadableSpan]:
        """Return the spans in the order in which they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def tree(self) -> str:
        """Return a line for each span and event, indented below its parent span."""
        spans = self.all()
        ids = {span.context.span_id for span in spans if span.context}
        roots = [span for span in spans if span.parent is None or span.parent.span_id not in ids]
        return "\n".join(line for root in roots for line in self._lines(root, 0))

    def _lines(self, span: ReadableSpan, depth: int) -> Iterator[str]:
        indent = "  " * depth
        yield f"{indent}{span.name.removeprefix('webcollect.')}{_facts(span)}{_status(span)}"
        for event in span.events:
            yield f"{indent}  * {event.name.removeprefix('webcollect.')}{_facts(event)}"
        for child in self.all():
            if child.parent and span.context and child.parent.span_id == span.context.span_id:
                yield from self._lines(child, depth + 1)


def _facts(of: Any) -> str:
    attributes = {name: value for name, value in (of.attributes or {}).items() if name not in NOT_IN_TREES}
    return "".join(f" {name.removeprefix('webcollect.')}={value}" for name, value in attributes.items())


def _status(span: ReadableSpan) -> str:
    return "" if span.status.is_unset else f" {span.status.status_code.name}"


@functools.cache
def _exporter() -> InMemorySpanExporter:
    """Have this process record spans; OpenTelemetry allows this only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@contextlib.contextmanager
def recording() -> Iterator[Spans]:
    """Record spans in memory, and forget them at the end."""
    exporter = _exporter()
    exporter.clear()
    try:
        yield Spans(exporter)
    finally:
        exporter.clear()


class Collector:
    """Takes the spans that other processes export over HTTP.

    :ivar url: the URL to export to.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._spans: dict[bytes, Any] = {}

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self._spans.update({span.span_id: span for span in scope.spans})

    def names(self) -> set[tuple[str, str]]:
        """Return the names of a parent and its span, for each received span whose parent was received."""
        spans = dict(self._spans)
        parents = {span_id: spans.get(span.parent_span_id) for span_id, span in spans.items()}
        return {(parent.name, spans[span_id].name) for span_id, parent in parents.items() if parent}


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_zipped = self.headers["Content-Encoding"] == "gzip"
            collector.take(gzip.decompress(body) if is_zipped else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}/v1/traces")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield collector
        server.shutdown()
