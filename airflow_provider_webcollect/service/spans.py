"""OpenTelemetry spans, which show where a task's time goes, in addition to Airflow's own spans.

A span is created only inside another recorded span, such as the span of an Airflow task. The code that
records the other span has imported OpenTelemetry, so this module need not import it in advance.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import airflow_provider_webcollect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Values of attributes by name; an attribute with the value None is left out.
Attributes: TypeAlias = "Mapping[str, str | bool | int | float | None]"


class Span:
    """An OpenTelemetry span, or a placeholder that ignores all attributes and events.

    :param recorded: the span of OpenTelemetry; None for a placeholder.
    """

    def __init__(self, recorded: Any = None) -> None:
        self._recorded = recorded

    def set(self, attributes: Attributes) -> None:
        """Set attributes of the span, by name."""
        if self._recorded is not None:
            self._recorded.set_attributes(_without_none(attributes))

    def add_event(self, name: str, attributes: Attributes) -> None:
        """Add an event with the current time.

        :param name: the name of the event, without the prefix ``webcollect.``.
        """
        if self._recorded is not None:
            self._recorded.add_event(f"webcollect.{name}", _without_none(attributes))


def current_span() -> Any:
    """Return the caller's current span of OpenTelemetry; None if there is none, or it is not recorded."""
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
    """Record the block as a span, if the surrounding span is recorded.

    Of an exception in the block, only the class is recorded, since its message may have values of rows.

    :param name: the name of the work, without the prefix ``webcollect.``.
    :param attributes: the initial attributes; :meth:`Span.set` adds others.
    :param kind: the name of a ``SpanKind``.
    :param is_sampled: whether to record the block; if not, spans inside it belong to the surrounding span.
    :param causes: the spans that asked for the block, as :func:`current_span` returns them: the first one is
        the parent, the others are linked; None for the caller's current span.
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
