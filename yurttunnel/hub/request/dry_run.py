"""Writes that are to be tried only: the API answers as if they were done, and nothing changes."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from yurttunnel.http.head import RequestHead

_ALL = b"All"
"""The only value (``DryRunAll`` of k8s.io/apimachinery pkg/apis/meta/v1)."""


def is_dry_run(head: RequestHead) -> bool:
    """Return whether the query of a request says so, as the API reads it.

    Names may be percent-encoded, and for net/url of Go a pair with a semicolon does not count.
    """
    query = head.target.partition(b"?")[2]
    if b"dryRun" not in query and b"%" not in query:
        return False
    return any(
        unquote_to_bytes(pair.partition(b"=")[0]) == b"dryRun" and b";" not in pair
        for pair in query.split(b"&")
    )


def may_be_dry_run(options: bytes) -> bool:
    """Return whether ``DeleteOptions``, the body of a DELETE in either form, may say so.

    Nothing else in them has this word.
    """
    return _ALL in options
