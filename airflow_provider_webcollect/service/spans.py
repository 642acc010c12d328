"""OpenTelemetry spans, which show where a task's time goes, in addition to Airflow's own spans.

A span is made only inside one that is recorded, such as an Airflow task's. Whatever records that one has
imported OpenTelemetry, so this module does not.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import airflow_provider_webcollect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Values by name; None for one that is left out.
Attributes: TypeAlias = "Mapping[str, str | bool | int | float | None]"


class Span:
    """An OpenTelemetry span, or a span that is not recorded and ignores all attributes.

    :param recorded: the span of OpenTelemetry; None for no span.
    """

    def __init__(self, recorded: Any = None) -> None:
        self._recorded = recorded

    def set(self, attributes: Attributes) -> None:
        """Set attributes of the span."""
        if self._recorded is not None:
            self._recorded.set_attributes(_without_none(attributes))

    def add_event(self, name: str, attributes: Attributes) -> None:
        """Add an event, which happens now."""
        if self._recorded is not None:
            self._recorded.add_event(f"webcollect.{name}", _without_none(attributes))


def current_span() -> Any:
    """Return the span of OpenTelemetry that the caller is in; None if it is in none that is recorded."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    span = trace.get_current_span()
    return span if span.is_recording() else None


@contextlib.contextmanager
def span(
    name: str,
    attributes: Attributes,
    *,
    kind: str = "INTERNAL",
    is_sampled: bool = True,
    causes: Iterable[Any] | None = None,
) -> Iterator[Span]:
    """Record the block as a span, if it is in one that is recorded.

    An exception of the block is recorded by its class alone, since its message may have values of rows.

    :param name: the name of the work, without the prefix ``webcollect.``.
    :param attributes: the attributes at the beginning; :meth:`Span.set` adds others.
    :param kind: the name of a ``SpanKind``.
    :param is_sampled: whether it is recorded; if not, spans within it are those of the span around it.
    :param causes: the spans that asked for the block, from :func:`current_span`: the first one is the parent,
        the others are linked; None for the caller's span.
    """
    around = [current_span()] if causes is None else causes
    parents = [parent for parent in dict.fromkeys(around) if parent is not None]
    if not (is_sampled and parents):
        yield Span()
        return
    from opentelemetry import trace

    tracer = trace.get_tracer(airflow_provider_webcollect.__name__, airflow_provider_webcollect.__version__)
    with tracer.start_as_current_span(
        f"webcollect.{name}",
        trace.set_span_in_context(parents[0]),
        trace.SpanKind[kind],
        _without_none(attributes),
        [trace.Link(parent.get_span_context()) for parent in parents[1:]],
        record_exception=False,
        set_status_on_exception=False,
    ) as recorded:
        try:
            yield Span(recorded)
        except BaseException as error:
            recorded.set_attribute("error.type", type(error).__qualname__)
            recorded.set_status(trace.StatusCode.ERROR)
            raise


def _without_none(attributes: Attributes) -> dict[str, str | bool | int | float]:
    return {name: value for name, value in attributes.items() if value is not None}
