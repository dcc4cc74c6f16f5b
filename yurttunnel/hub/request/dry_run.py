"""Dry runs: the API responds as if the write had been done, but changes nothing."""

from __future__ import annotations

import re

from yurttunnel.http.head import RequestHead

_ALL = b"All"
"""The only value (``DryRunAll`` of k8s.io/apimachinery pkg/apis/meta/v1)."""

# A single search of the whole query, which has room for 250,000 names to decode.
_PARAMETER = re.compile(
    rb"(?:\A|&)(?:d|%64)(?:r|%72)(?:y|%79)(?:R|%52)(?:u|%75)(?:n|%6[Ee])(?:=[^&;]*)?(?:&|\Z)"
)


def is_dry_run(head: RequestHead) -> bool:
    """Return whether the query requests a dry run, with the API's parsing rules.

    Names may be percent-encoded, and Go's net/url ignores pairs with a semicolon.
    """
    query = head.target.partition(b"?")[2]
    return _PARAMETER.search(query) is not None


def may_be_dry_run(options: bytes) -> bool:
    """Return whether ``DeleteOptions``, the body of a DELETE in JSON or protobuf, may request one.

    No other field of them can have this word.
    """
    return _ALL in options
