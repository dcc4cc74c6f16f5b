"""Whom the hub does not lend the node's identity: pods, and pages in browsers."""

from __future__ import annotations

from tests.hub.forwarding.world import KUBELET, LEASES, PODS, TOKEN, World


class PodFacingTests(World):
    """The listener for pods."""

    local = False

    def test_no_credentials(self):
        """Nobody gets the node's identity there."""
        self.ask(PODS, KUBELET)
        ((status, body),) = self.answered()
        self.assertEqual(401, status)
        self.assertIn(b'"Unauthorized"', body)
        self.assertEqual([], self.connections.keys)

    def test_token(self):
        """A request with a token goes on as its owner."""
        self.ask(PODS, TOKEN)
        self.assertEqual([("a", False)], self.connections.keys)

    def test_lease(self):
        """Who claims to be kubelet there is not."""
        self.ask(f"{LEASES}/edge-1", KUBELET, TOKEN)
        self.assertEqual([("a", False)], self.connections.keys)

    def test_other_credentials(self):
        """What is no bearer token is nobody's."""
        self.ask(PODS, b"Authorization: Basic YTpi")
        self.assertEqual(401, self.answered()[0][0])


class PagesTests(World):
    """Pages in browsers of this machine, which must not ask as the node."""

    def refused(self, status, *fields, **how):
        """Check that a request goes to no server."""
        self.client = self.server.connect()
        self.ask(PODS, *fields, **how)
        self.assertEqual([], self.connections.played)
        self.assertEqual(status, self.answered()[0][0], (fields, how))

    def test_names(self):
        """A name that is made to lead here gets nothing, and is told what to ask for."""
        for host in (b"evil.example", b"evil.example:10261", b"127.0.0.1.evil.example"):
            self.refused(421, host=host)
        self.assertIn(b"localhost", self.answered()[0][1])

    def test_other_sites(self):
        """A page of another site gets nothing, to whatever address it is sent."""
        self.refused(403, b"Origin: http://evil.example")
        self.refused(403, b"Origin: null", method=b"POST", body=b"{}")
        for site in (b"cross-site", b"same-site"):
            self.refused(403, b"Sec-Fetch-Site: " + site)

    def test_programs(self):
        """Addresses and names of this machine are asked for as ever."""
        for host in (b"localhost:10261", b"[::1]:10261", b"169.254.2.1:10261", b"127.0.0.1"):
            self.client = self.server.connect()
            self.ask(PODS, KUBELET, host=host)
            self.answer_json({"items": []})
            self.assertEqual(200, self.answered()[0][0], host)


class PodPagesTests(World):
    """Pods ask by tokens, which no page has."""

    local = False

    def test_names(self):
        """Their names of the API are not for the hub to know."""
        self.ask(PODS, b"Authorization: Bearer abc", host=b"kubernetes.default.svc")
        self.assertEqual(1, len(self.connections.played))
