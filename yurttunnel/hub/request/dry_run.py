"""Writes that are to be tried only: the API answers as if they were done, and nothing changes."""

from __future__ import annotations

import re

from yurttunnel.http.head import RequestHead

_PARAMETER = re.compile(rb"[?&]dryRun=")


def is_dry_run(head: RequestHead) -> bool:
    """Return whether the query of a request says so."""
    return _PARAMETER.search(head.target) is not None
