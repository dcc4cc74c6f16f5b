"""Writes that are to be tried only: the API answers as if they were done, and nothing changes."""

from __future__ import annotations

import re

from yurttunnel.http.head import RequestHead

_ALL = b"All"
"""The only value (``DryRunAll`` of k8s.io/apimachinery pkg/apis/meta/v1)."""

# One look for all of a query, which has room for a quarter of a million of names to decode.
_PARAMETER = re.compile(
    rb"(?:\A|&)(?:d|%64)(?:r|%72)(?:y|%79)(?:R|%52)(?:u|%75)(?:n|%6[Ee])(?:=[^&;]*)?(?:&|\Z)"
)


def is_dry_run(head: RequestHead) -> bool:
    """Return whether the query of a request says so, as the API reads it.

    Names may be percent-encoded, and for net/url of Go a pair with a semicolon does not count.
    """
    query = head.target.partition(b"?")[2]
    return _PARAMETER.search(query) is not None


def may_be_dry_run(options: bytes) -> bool:
    """Return whether ``DeleteOptions``, the body of a DELETE in either form, may say so.

    Nothing else in them has this word.
    """
    return _ALL in options
