"""What is recorded of OpenTelemetry's spans, as trees in lines of text."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from opentelemetry import trace
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
        """Record the block as Airflow does a task, or a trigger."""
        with trace.get_tracer("airflow").start_as_current_span(name):
            yield

    def all(self) -> list[ReadableSpan]:
        """Return the spans in the order in which they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name."""
        return [span for span in self.all() if span.name == name]

    def tree(self) -> str:
        """Return a line for each span and event, below the span that it is in."""
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
    """Have this process record spans; it can be told once only."""
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
