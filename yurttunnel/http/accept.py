"""Media types in ``Accept`` and ``Content-Type`` (RFC 9110 sections 12.5.1 and 8.3)."""

from __future__ import annotations

from typing import NamedTuple

MAX_ACCEPT = 4096
"""The number of bytes of ``Accept`` that are parsed. kubectl sends about 200 bytes, browsers 150.
The limit is low because the field is parsed before the client is authenticated."""


class MediaRange(NamedTuple):
    """A media type or media range in lower case, with its parameters."""

    type: str
    parameters: dict[str, str]


def media_range(text: str) -> MediaRange:
    """Parse a media range such as ``application/json;as=Table;v=v1``."""
    media_type, *parameters = text.split(";")
    pairs = (one.partition("=")[::2] for one in parameters)
    return MediaRange(
        media_type.strip().lower(), {name.strip().lower(): value.strip() for name, value in pairs}
    )


def media_ranges(accept: bytes) -> list[MediaRange]:
    """Return the media ranges of ``Accept``, the highest weight first, without those of weight 0.

    Anything after the first :data:`MAX_ACCEPT` bytes is ignored.
    """
    texts = accept[:MAX_ACCEPT].decode("latin-1").split(",")
    ranges = [media_range(text) for text in texts]
    weighted = [(_weight(one.parameters.get("q", "1")), one) for one in ranges]
    # The sort is stable: ranges of equal weight keep their order.
    weighted.sort(key=lambda one: -one[0])
    return [one for weight, one in weighted if weight > 0 and one.type]


def _weight(text: str) -> float:
    """Return the weight in ``text``; a malformed weight is 0, so that its range is not chosen."""
    try:
        return float(text)
    except ValueError:
        return 0.0
