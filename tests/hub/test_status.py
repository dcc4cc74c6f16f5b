"""The hub's status page."""

from __future__ import annotations

import datetime
import html
import re
from collections import Counter
from types import SimpleNamespace

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.hub.cache.metrics import CacheStats
from yurttunnel.hub.limits import Limits
from yurttunnel.hub.settings import HealthSettings
from yurttunnel.hub.status import hub_sections
from yurttunnel.hub.upstream.health import Health
from yurttunnel.hub.upstream.node_lease import CheckFailed
from yurttunnel.hub.upstream.servers import Server
from yurttunnel.ops.status.markup import element
from yurttunnel.ops.status.sections import PageContext

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class StatusTests(SynchronousTestCase):
    """A hub with two servers, one of which is healthy."""

    def setUp(self) -> None:
        """Run the health checks."""
        self.clock = Clock()
        self.servers = [Server("a", 6443), Server("b", 6443)]
        self.limits = Limits(self.clock, 0, 0)
        self.cache = CacheStats(
            size=3 << 20, max_size=1 << 30, clients=4, events=5, dropped=6, refused=1
        )
        self.health = Health(
            self.clock,
            self.servers,
            self.check,
            lambda server, why: None,
            HealthSettings(10, 2, 1, 2, 40),
        )
        self.health.startService()
        self.addCleanup(self.health.stopService)

    async def check(self, server, fresh) -> None:
        """Reject one of the checks."""
        if server is self.servers[1]:
            raise CheckFailed("connection <refused>")

    def shown(self, desired: str = "") -> dict[str, str]:
        """Return the text of each section."""
        responses = Counter({("get", "200"): 2, ("list", "404"): 1})
        offline = SimpleNamespace(responses=responses, open_watches=range(7))
        makers = hub_sections(self.health, self.limits, lambda: self.cache, offline)
        sections = [make(PageContext(NOW, desired)) for make in makers]
        self.tiles = [each.tile for each in sections]
        return {
            each.name: " ".join(
                html.unescape(re.sub("<[^>]*>", " ", str(element("p", each.content)))).split()
            )
            for each in sections
        }

    def test_servers(self) -> None:
        """Each server is listed with its problem."""
        words = self.shown()["servers"]
        self.assertIn("https://a:6443 healthy", words)
        self.assertIn("https://b:6443 unhealthy connection <refused>", words)
        self.assertEqual(("healthy servers", "1/2"), self.tiles[0])

    def test_filter(self) -> None:
        """The page's filter applies to them."""
        self.assertNotIn("https://a", self.shown("refused")["servers"])
        self.assertIn("Nothing matches", self.shown("elsewhere")["servers"])

    def test_requests(self) -> None:
        """Requests are counted by verb, and by who served them."""
        self.assertIn("In flight none", self.shown()["requests"])
        self.limits.in_flight.update({"watch": 1200, "get": 1})
        words = self.shown()["requests"]
        self.assertIn("In flight get 1, watch 1,200", words)
        self.assertIn("Served while offline 3", words)
        self.assertIn("Watches open while offline 7", words)
        self.assertEqual(("requests in flight", "1,201"), self.tiles[1])

    def test_cache(self) -> None:
        """The size of the cache, and its limit."""
        words = self.shown()["cache"]
        self.assertIn("On disk 3.0 MiB of 1.0 GiB", words)
        self.assertIn("Clients 4", words)
        self.assertIn("Events to be sent when the cloud is reachable 5", words)
        self.assertIn("no room 7", words)
