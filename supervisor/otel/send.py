"""Our metrics and spans as OpenTelemetry's SDK has them, sent by its exporters over HTTP.

Where to, with which headers and patience say the standard variables (OTEL_EXPORTER_OTLP_ENDPOINT and its like), which
the exporters read themselves (opentelemetry.io, "OTLP Exporter Configuration").
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from supervisor import __version__
from supervisor.api.metrics import Family
from supervisor.otel.trace import Span

NS = 1_000_000_000
LONGEST = 300


class Sender:
    """One collector."""

    def __init__(self, run: str) -> None:
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "rl-supervisor"}
        self._resource = Resource.create({**named, "service.instance.id": run, "service.version": __version__})
        self._scope = InstrumentationScope("rl-supervisor", __version__)
        self._why = _LastWords()
        self._metrics, self._spans = OTLPMetricExporter(), OTLPSpanExporter()

    def send_metrics(self, families: Sequence[Family], *, began: float, now: float) -> str:
        """Why the collector did not take them, "" when it did. ``began``: when the counters were 0, in Unix time."""
        metrics = [_make_metric(one, round(began * NS), round(now * NS)) for one in families]
        scope = ScopeMetrics(self._scope, metrics, "")
        done = self._metrics.export(MetricsData([ResourceMetrics(self._resource, [scope], "")]))
        return "" if done is MetricExportResult.SUCCESS else self._why.take()

    def send_spans(self, spans: Sequence[Span]) -> str:
        """The same for spans."""
        done = self._spans.export([self._make_span(one) for one in spans])
        return "" if done is SpanExportResult.SUCCESS else self._why.take()

    def _make_span(self, one: Span) -> ReadableSpan:
        def context(span_id: int) -> SpanContext:
            return SpanContext(one.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            one.name,
            context=context(one.span_id),
            parent=None if one.parent_id is None else context(one.parent_id),
            resource=self._resource,
            attributes=dict(one.attributes),
            events=[Event(name, {"sentence": text}, round(wall * NS)) for wall, name, text in one.events],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, one.failed) if one.failed else Status(StatusCode.UNSET),
            start_time=round(one.begin * NS),
            end_time=round(one.end * NS),
            instrumentation_scope=self._scope,
        )


def _make_metric(family: Family, began_ns: int, now_ns: int) -> Metric:
    """Counters lose their ``_total``: what turns OTLP into Prometheus' names adds it again."""
    name, kind, about, samples = family
    is_counter = kind == "counter"
    points = [NumberDataPoint(dict(labels), began_ns if is_counter else 0, now_ns, n) for labels, n in samples]
    data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True) if is_counter else Gauge(points)
    return Metric(name.removesuffix("_total") if is_counter else name, about, "", data)


class _LastWords(logging.Handler):
    """What the exporters logged last: they return no reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._text = ""
        logger = logging.getLogger("opentelemetry")
        logger.handlers, logger.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self._text = record.getMessage()

    def take(self) -> str:
        """It, once."""
        text, self._text = self._text, ""
        return text[:LONGEST].rstrip(".") or "it gives no reason"
