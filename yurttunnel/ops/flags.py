"""What flags of several commands have in common: durations, ports and ``host:port``.

Each parser takes the text of one flag and raises ``ValueError`` with a reason in one line; the
caller adds the name of the flag. They suit the coerce column of ``usage.Options``, too, but
coerce is not applied to defaults, so a default belongs into the parsed type.
"""

from __future__ import annotations

import math
import re
from ipaddress import AddressValueError, IPv6Address

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_SECONDS_OF_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
_LONGEST_DURATION = 10 * 365 * 86400.0
"""Seconds; above it a number is a mistake, and timers begin to overflow."""

_LONGEST_RESUME_WINDOW = 86400.0
"""Seconds."""

# Host names as RFC 1123 has them, with the underscore that internal names often carry; a final
# dot (an absolute name) is allowed. Digits and dots alone are an address, right or wrong.
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?", re.ASCII | re.IGNORECASE)
_LONGEST_HOST_NAME = 253


def duration(text: str) -> float:
    """Parse a duration into seconds: ``30``, ``2.5``, ``500ms``, ``30s``, ``5m``, ``12h``, ``7d``.

    Units may be joined from large to small, as Kubernetes flags allow: ``1h30m``. Zero is a
    duration; whether it makes sense is for the caller to say.
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
    if total > _LONGEST_DURATION:
        raise ValueError(f"{text!r} is longer than ten years")
    return total


def resume_window(text: str) -> float:
    """Parse how long streams outlive their connection: a duration of at most a day.

    Whatever they keep in memory is kept so long. The wire could say 49 days.
    """
    seconds = duration(text)
    if seconds > _LONGEST_RESUME_WINDOW:
        raise ValueError(f"{text!r} is longer than a day")
    return seconds


def port(text: str) -> int:
    """Parse a port number, 1 to 65535."""
    stripped = text.strip()
    # isdecimal alone also accepts other scripts' digits; int() alone accepts "+1" and "1_0".
    if stripped.isascii() and stripped.isdecimal() and len(stripped) <= 5:
        number = int(stripped)
        if 1 <= number <= 65535:
            return number
    raise ValueError(f"{text!r} is not a port: write a number from 1 to 65535")


def host(text: str) -> str:
    """Check a host name or address; brackets around an IPv6 address are removed.

    A zone id (``fe80::1%eth0``) is kept.
    """
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        return _ipv6(stripped[1:-1])
    if ":" in stripped:
        return _ipv6(stripped)
    if not _HOST_NAME.fullmatch(stripped) or len(stripped.rstrip(".")) > _LONGEST_HOST_NAME:
        raise ValueError(f"{text!r} is not a host name or an address")
    return stripped


def host_port(text: str, default_port: int) -> tuple[str, int]:
    """Parse ``HOST``, ``HOST:PORT``, ``[IPV6]``, ``[IPV6]:PORT`` or a bare IPv6 address.

    ``default_port`` is used where the text names none.
    """
    stripped = text.strip()
    if stripped.startswith("["):
        address, bracket, rest = stripped[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not [IPv6 address]:port")
        return _ipv6(address), port(rest[1:]) if rest else default_port
    if stripped.count(":") > 1:
        # Without brackets a port cannot be told from the last group of the address.
        return _ipv6(stripped), default_port
    name, colon, number = stripped.partition(":")
    return host(name), port(number) if colon else default_port


def _ipv6(text: str) -> str:
    """Check an IPv6 address without brackets."""
    try:
        IPv6Address(text)
    except AddressValueError:
        raise ValueError(
            f"{text!r} is not an IPv6 address (with a port it is written [address]:port)"
        ) from None
    return text
