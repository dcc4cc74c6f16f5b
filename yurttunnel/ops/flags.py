"""Parsers for the flags of several commands: durations, addresses, ports and paths.

Each parser takes the text of a flag, and raises ``ValueError`` with a reason in one line; the
caller adds the name of the flag. They also suit the coerce column of ``usage.Options``, which is
not applied to defaults, so a default must have the parsed type.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Generic, TypeVar

from yurttunnel.http.authority import (
    Address,
    canonical_host,
    parse_address,
    parse_host,
    parse_port,
    refuse_url,
    split_optional_port,
)

Member = TypeVar("Member", bound=enum.Enum)
Value = TypeVar("Value")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_SECONDS_OF_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
_MAX_DURATION = 10 * 365 * 86400.0
"""The maximum in seconds: a larger number is a mistake, and timers begin to overflow."""

_MAX_RESUME_WINDOW = 86400.0
"""In seconds."""

_MAX_TOKEN_LIFETIME = 365 * 86400.0
"""In seconds."""


def duration(text: str) -> float:
    """Parse a duration into seconds: ``30``, ``2.5``, ``500ms``, ``30s``, ``5m``, ``12h``, ``7d``.

    Units may be combined from large to small, as in Kubernetes flags: ``1h30m``. Zero is valid;
    the caller decides whether it makes sense.
    """
    total = 0.0
    position = 0
    last_unit = math.inf
    text = text.strip()
    while match := _DURATION.match(text, position):
        unit = _SECONDS_OF_UNIT[match[2]]
        bare_number_in_sum = match[2] is None and match[0] != text
        if bare_number_in_sum or unit >= last_unit:
            break
        total += float(match[1]) * unit
        last_unit = unit
        position = match.end()
    if position == 0 or position != len(text):
        raise ValueError(f"{text!r} is not a duration: write seconds or a unit, as 30, 30s or 5m")
    if total > _MAX_DURATION:
        raise ValueError(f"{text!r} is longer than ten years")
    return total


def positive_duration(text: str) -> float:
    """Parse a duration that must not be zero."""
    seconds = duration(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} is no time: give more than zero seconds")
    return seconds


def resume_window(text: str) -> float:
    """Parse the time for which streams outlive a lost connection: a duration of at most a day.

    What they buffer stays in memory for that long. The protocol allows 49 days.
    """
    seconds = duration(text)
    if seconds > _MAX_RESUME_WINDOW:
        raise ValueError(f"{text!r} is longer than a day")
    return seconds


def token_lifetime(text: str) -> float:
    """Parse the lifetime of a join token: from a second to 365 days."""
    seconds = duration(text)
    if not 1 <= seconds <= _MAX_TOKEN_LIFETIME:
        raise ValueError(f"{text!r} is no lifetime of a token: give one second to 365 days, as 24h")
    return seconds


def switch(text: str) -> bool:
    """Parse a boolean, in the spellings of Go's ``strconv.ParseBool``."""
    for value, spellings in ((True, "1 t T TRUE true True"), (False, "0 f F FALSE false False")):
        if text in spellings.split():
            return value
    raise ValueError(f"{text!r} is neither true nor false")


def items(text: str) -> list[str]:
    """Parse a comma-separated list; empty items are omitted."""
    return [item.strip() for item in text.split(",") if item.strip()]


def distinct_items(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list, which may be empty, without duplicates."""
    return tuple(dict.fromkeys(items(text)))


class OneOf(Generic[Value]):
    """The parser for one of several texts, ``choices``, each of which stands for a value."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.choices = tuple(values)
        self._values = values

    def __call__(self, text: str) -> Value:
        """Return the value for a text."""
        if text not in self._values:
            raise ValueError(f"{text!r} is none of these: {', '.join(self.choices)}")
        return self._values[text]


def one_of(*texts: str) -> OneOf[str]:
    """Return a parser that accepts one of these texts."""
    return OneOf({text: text for text in texts})


def member(kind: type[Member]) -> OneOf[Member]:
    """Return a parser that accepts one of the values of ``kind``."""
    return OneOf({str(each.value): each for each in kind})


def number(text: str) -> int:
    """Parse a non-negative integer of at most nine digits."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{text!r} is not a number from 0 on")
    return int(text)


def count(text: str) -> int:
    """Parse a positive integer."""
    if number(text) < 1:
        raise ValueError(f"{text!r} is not a number from 1 on")
    return int(text)


def port(text: str) -> int:
    """Parse a port number, 1 to 65535."""
    return parse_port(text.strip())


def host(text: str) -> str:
    """Parse a host name or address, and return its canonical form.

    A zone ID (``fe80::1%eth0``) is kept: on this machine it selects the interface.
    """
    name = parse_host(text.strip())
    return name if "%" in name else str(canonical_host(name))


def namespace(text: str) -> str:
    """Parse the name of a namespace: a single DNS label."""
    name = host(text)
    if "." in name or ":" in name:
        raise ValueError(f"{text!r} is not the name of a namespace")
    return name


def address(text: str) -> Address:
    """Parse an IP address, and return its canonical form."""
    refuse_url(text)
    found = parse_address(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not an IP address")
    return found


def host_port(text: str, default_port: int) -> tuple[str, int]:
    """Parse ``HOST``, ``HOST:PORT``, ``[IPV6]``, ``[IPV6]:PORT`` or a bare IPv6 address.

    ``default_port`` is used if the text has no port.
    """
    name, number = split_optional_port(text.strip())
    return host(name), default_port if number is None else number


def listening_address(text: str) -> str:
    """Parse an address to listen on; the unspecified address means every interface."""
    refuse_url(text)
    try:
        return str(ip_address(host(text)))
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address") from None


def path(text: str) -> Path:
    """Parse a path that must not be empty: an empty one would mean the current directory."""
    if not text:
        raise ValueError("it is empty: write a path")
    if text.startswith("~"):
        # The shell does not expand it in --flag=~/x, and nothing does in a file or a variable.
        raise ValueError(f"{text!r}: nothing replaces the ~ here: write the whole path")
    return Path(text)
