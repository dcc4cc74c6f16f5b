"""What a client accepts, and what a body is said to be (RFC 9110 sections 8.3 and 12.5.1)."""

from __future__ import annotations

from typing import NamedTuple

LONGEST_ACCEPT = 4096
"""Bytes of all that a request accepts: kubectl's have some 200, those of browsers 150. What is read
before anybody knows who asks has to be short."""


class MediaRange(NamedTuple):
    """A media type in lower case, or a range of them, with its parameters."""

    type: str
    parameters: dict[str, str]


def media_range(text: str) -> MediaRange:
    """Read one, as ``application/json;as=Table;v=v1``."""
    media_type, *parameters = text.split(";")
    pairs = (one.partition("=")[::2] for one in parameters)
    return MediaRange(
        media_type.strip().lower(), {name.strip().lower(): value.strip() for name, value in pairs}
    )


def media_ranges(accept: bytes) -> list[MediaRange]:
    """Return what ``Accept`` asks for, the best first; what weighs nothing is left out.

    What is behind :data:`LONGEST_ACCEPT` bytes is not looked at.
    """
    texts = accept[:LONGEST_ACCEPT].decode("latin-1").split(",")
    ranges = [media_range(text) for text in texts]
    weighted = [(_weight(one.parameters.get("q", "1")), one) for one in ranges]
    # The order of those that weigh the same stays.
    weighted.sort(key=lambda one: -one[0])
    return [one for weight, one in weighted if weight > 0 and one.type]


def _weight(text: str) -> float:
    """Return a weight; one that cannot be read is none, so that what has it is not chosen."""
    try:
        return float(text)
    except ValueError:
        return 0.0
