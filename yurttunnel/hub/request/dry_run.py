"""Writes that are to be tried only: the API answers as if they were done, and nothing changes."""

from __future__ import annotations

import re

from yurttunnel.http.head import RequestHead

_PARAMETER = re.compile(rb"[?&]dryRun=")
_ALL = b"All"
"""The only value (``DryRunAll`` of k8s.io/apimachinery pkg/apis/meta/v1)."""


def is_dry_run(head: RequestHead) -> bool:
    """Return whether the query of a request says so."""
    return _PARAMETER.search(head.target) is not None


def may_be_dry_run(options: bytes) -> bool:
    """Return whether ``DeleteOptions``, the body of a DELETE in either form, may say so.

    Nothing else in them has this word.
    """
    return _ALL in options
