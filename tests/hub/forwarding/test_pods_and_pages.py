"""Clients that must not use the node's identity: pods, and web pages in browsers."""

from __future__ import annotations

from tests.hub.forwarding.world import KUBELET, LEASES, PODS, TOKEN, World


class PodFacingTests(World):
    """The listener for pods."""

    local = False

    def test_no_credentials(self):
        """No request gets the node's identity there."""
        self.send_request(PODS, KUBELET)
        ((status, body),) = self.client_responses()
        self.assertEqual(401, status)
        self.assertIn(b'"Unauthorized"', body)
        self.assertEqual([], self.connections.keys)

    def test_token(self):
        """A request with a token is forwarded with it."""
        self.send_request(PODS, TOKEN)
        self.assertEqual([("a", False)], self.connections.keys)

    def test_lease(self):
        """A client that claims to be the kubelet there is not treated as such."""
        self.send_request(f"{LEASES}/edge-1", KUBELET, TOKEN)
        self.assertEqual([("a", False)], self.connections.keys)

    def test_other_credentials(self):
        """Credentials other than a bearer token are rejected."""
        self.send_request(PODS, b"Authorization: Basic YTpi")
        self.assertEqual(401, self.client_responses()[0][0])


class PagesTests(World):
    """Web pages in browsers on this machine, which must not use the node's identity."""

    def assert_rejected(self, status, *fields, **how):
        """Assert that a request is rejected and not forwarded."""
        self.client = self.server.connect()
        self.send_request(PODS, *fields, **how)
        self.assertEqual([], self.connections.played)
        self.assertEqual(status, self.client_responses()[0][0], (fields, how))

    def test_names(self):
        """A host name pointed to this machine is rejected, with a hint which names to use."""
        for host in (b"evil.example", b"evil.example:10261", b"127.0.0.1.evil.example"):
            self.assert_rejected(421, host=host)
        self.assertIn(b"localhost", self.client_responses()[0][1])

    def test_other_sites(self):
        """Pages of other sites are rejected, whatever address they use."""
        self.assert_rejected(403, b"Origin: http://evil.example")
        self.assert_rejected(403, b"Origin: null", method=b"POST", body=b"{}")
        for site in (b"cross-site", b"same-site"):
            self.assert_rejected(403, b"Sec-Fetch-Site: " + site)

    def test_programs(self):
        """Addresses and names of this machine are accepted."""
        for host in (b"localhost:10261", b"[::1]:10261", b"169.254.2.1:10261", b"127.0.0.1"):
            self.client = self.server.connect()
            self.send_request(PODS, KUBELET, host=host)
            self.respond_json({"items": []})
            self.assertEqual(200, self.client_responses()[0][0], host)


class PodPagesTests(World):
    """Pods use tokens, which no page has."""

    local = False

    def test_names(self):
        """The hub does not check the names by which they know the API."""
        self.send_request(PODS, b"Authorization: Bearer abc", host=b"kubernetes.default.svc")
        self.assertEqual(1, len(self.connections.played))
