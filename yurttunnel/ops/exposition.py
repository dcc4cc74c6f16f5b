"""The Prometheus text format (version 0.0.4) of metric families."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from yurttunnel.metrics import MetricFamily, Sample

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_NEEDS_ESCAPE = re.compile(r'[\\"\n]')
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


SAMPLES_AT_ONCE = 50
"""The number of lines in a piece."""


def exposition_pieces(families: Iterable[MetricFamily | None]) -> Iterator[str]:
    """Yield all ``families`` (the steps of a registry) as Prometheus text, in pieces."""
    for family in families:
        if family is None:
            yield ""
            continue
        documentation = family.documentation.translate(_HELP_ESCAPES)
        yield f"# HELP {family.name} {documentation}\n# TYPE {family.name} {family.kind}\n"
        samples = iter(family.samples)
        while lines := [_line(each) for each in islice(samples, SAMPLES_AT_ONCE)]:
            yield "".join(lines)


def exposition(families: Iterable[MetricFamily]) -> bytes:
    """Return all ``families`` as Prometheus text."""
    return "".join(exposition_pieces(families)).encode()


def _line(sample: Sample) -> str:
    labels = _labels(sample.labels) if sample.labels else ""
    return f"{sample.name}{labels} {_number(sample.value)}\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()]) + "}"


def _escaped(value: str) -> str:
    return value.translate(_ESCAPES) if _NEEDS_ESCAPE.search(value) else value


def _number(value: float) -> str:
    if type(value) is int:
        return str(value)
    number = float(value)
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return "NaN" if math.isnan(number) else repr(number)
