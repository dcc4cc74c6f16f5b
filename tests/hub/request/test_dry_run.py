"""Dry runs."""

from __future__ import annotations

import time

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.http.head import RequestHead
from yurttunnel.hub.request.dry_run import is_dry_run


def says_so(query):
    """Return whether a query requests a dry run."""
    return is_dry_run(RequestHead(b"DELETE", b"/api/v1/namespaces/n/pods/p?" + query, "1.1", []))


class DryRunTests(SynchronousTestCase):
    """Queries that request a dry run."""

    def test_names(self):
        """The name may be encoded, at any position, with any value."""
        for query in (
            b"dryRun=All",
            b"dryRun",
            b"dryRun=",
            b"pretty=true&dryRun=All&x",
            b"%64%72%79%52%75%6e=All",
            b"a;dryRun&dry%52u%6E=a%3Bb",
        ):
            self.assertTrue(says_so(query), query)

    def test_others(self):
        """Other names, pairs with a semicolon, and double encodings do not count."""
        for query in (
            b"",
            b"x=dryRun",
            b"xdryRun=All",
            b"dryRunx=All",
            b"dryrun=All",
            b"dryRun=All;x",
            b"dryRun;=All",
            b"x;dryRun=All",
            b"%2564ryRun=All",
            b"dryRun%3DAll",
        ):
            self.assertFalse(says_so(query), query)

    def test_long(self):
        """A query of half a megabyte, which any client may send, does not block others for long."""
        before = time.process_time()
        for _ in range(25):
            self.assertFalse(says_so(b"%&" * 250_000))
        self.assertLess(time.process_time() - before, 1)
