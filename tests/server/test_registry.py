"""The session that serves a destination."""

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.fakes import FakeSession
from yurttunnel.server.registry import (
    AmbiguousAddress,
    INodeSession,
    NodeNotConnected,
    SessionRegistry,
)


class FindTests(SynchronousTestCase):
    """``SessionRegistry.find`` chooses by identifiers."""

    def setUp(self):
        """Start without sessions."""
        self.clock = Clock()
        self.registry = SessionRegistry(self.clock)

    def add(self, node, **identifiers):
        """Connect a node."""
        session = FakeSession(node, **identifiers)
        self.assertEqual([], self.registry.add(session))
        return session

    def assert_nobody_serves(self, host):
        """Check that no session serves the host."""
        return self.assertRaises(NodeNotConnected, self.registry.find, host)

    def test_the_fake_session_is_one(self):
        """The fake session provides ``INodeSession``."""
        verifyObject(INodeSession, FakeSession("edge-1"))

    def test_names(self):
        """A node is found by its own name and by each host, regardless of case and final dot."""
        session = self.add("edge-1", hosts=["edge-1", "edge-1.example"])
        for host in ("edge-1", "EDGE-1", "edge-1.", "edge-1.example", "Edge-1.Example."):
            self.assertIs(self.registry.find(host), session)
        self.assert_nobody_serves("edge-2")
        self.assert_nobody_serves("")

    def test_a_node_is_found_by_its_name(self):
        """The name in the certificate is always claimed."""
        self.assertIs(self.add("edge-1", hosts=["other"]), self.registry.find("edge-1"))

    def test_addresses_in_any_spelling(self):
        """IPv6 may be compressed or not, in brackets, in upper case, or contain an IPv4 address."""
        four = self.add("four", addresses=["192.0.2.1"])
        six = self.add("six", addresses=["2001:db8::1"])
        for host in ("192.0.2.1", "::ffff:192.0.2.1", "[::ffff:c000:201]"):
            self.assertIs(self.registry.find(host), four)
        for host in ("2001:db8::1", "[2001:DB8::1]", "2001:0db8:0:0:0:0:0:1"):
            self.assertIs(self.registry.find(host), six)
        self.assert_nobody_serves("192.0.2.2")
        self.assert_nobody_serves("2001:db8::2")

    def test_an_address_that_is_claimed_as_host(self):
        """``host=192.0.2.1`` is found by every spelling of the address, before ``ipv4=``."""
        self.add("by-address", addresses=["192.0.2.1"])
        by_host = self.add("by-host", hosts=["192.0.2.1"])
        self.assertIs(self.registry.find("192.0.2.1"), by_host)
        self.assertIs(self.registry.find("[::ffff:192.0.2.1]"), by_host)

    def test_order(self):
        """Host, address, narrowest network, default route: each serves when those before go."""
        default = self.add("default", default_route=True)
        wide = self.add("wide", networks=["10.0.0.0/8"])
        narrow = self.add("narrow", networks=["10.1.0.0/16", "2001:db8::/32"])
        address = self.add("address", addresses=["10.1.2.3"])
        host = self.add("host", hosts=["10.1.2.3"])
        for session in (host, address, narrow, wide, default):
            self.assertIs(self.registry.find("10.1.2.3"), session)
            self.registry.remove(session)
        self.assert_nobody_serves("10.1.2.3")

    def test_networks(self):
        """Networks match by their leading bits, for each version separately; also /0 and /32."""
        everything = self.add("everything", networks=["0.0.0.0/0"])
        single = self.add("single", networks=["192.0.2.7/32"])
        six = self.add("six", networks=["2001:db8::/33"])
        self.assertIs(self.registry.find("192.0.2.7"), single)
        self.assertIs(self.registry.find("192.0.2.6"), everything)
        self.assertIs(self.registry.find("2001:db8:7fff::1"), six)
        self.assert_nobody_serves("2001:db8:8000::1")
        self.assert_nobody_serves("no-address")

    def test_what_is_another_nodes(self):
        """An outdated identifier in a certificate does not count; others do."""
        owners = {"10.1.2.3": "owner", "camera": "owner"}
        self.registry.belongs_to_other_node = lambda node, host: owners.get(host, node) != node
        self.add("former", addresses=["10.1.2.3"], hosts=["camera"], networks=["10.0.0.0/8"])
        self.add("everything", default_route=True)
        self.assert_nobody_serves("10.1.2.3")
        self.assert_nobody_serves("camera")
        self.assertEqual("former", self.registry.find("10.1.2.4").node)
        owner = self.add("owner", addresses=["10.1.2.3"], hosts=["camera"])
        for host in owners:
            self.assertIs(owner, self.registry.find(host))

    def test_the_default_route_serves_names(self):
        """Unclaimed hosts go to the default route."""
        session = self.add("gateway", default_route=True)
        self.assertIs(self.registry.find("anything.example"), session)

    def test_the_newest_of_two_nodes_with_one_network(self):
        """The newest serves, and when it goes the other one does."""
        old = self.add("site-a", networks=["10.0.0.0/8"])
        new = self.add("site-b", networks=["10.0.0.0/8"])
        self.assertIs(self.registry.find("10.1.1.1"), new)
        self.registry.remove(new)
        self.assertIs(self.registry.find("10.1.1.1"), old)

    def test_an_address_of_several_nodes_is_refused(self):
        """An address of several nodes is ambiguous: the error names them, and their names work."""
        one = self.add("site-a", addresses=["192.168.1.10"])
        other = self.add("site-b", addresses=["192.168.1.10"])
        error = self.assertRaises(AmbiguousAddress, self.registry.find, "192.168.1.10")
        self.assertEqual(400, error.status)
        self.assertIn("192.168.1.10 is the address of several nodes: site-a, site-b", str(error))
        self.assertIs(self.registry.find("site-a"), one)
        self.registry.remove(one)
        self.assertIs(self.registry.find("192.168.1.10"), other)

    def test_loopback_is_everybodys(self):
        """Every node has a loopback address; the newest that claims it serves it."""
        self.add("site-a", addresses=["127.0.0.1"])
        other = self.add("site-b", addresses=["127.0.0.1"])
        self.assertIs(self.registry.find("127.0.0.1"), other)

    def test_a_name_is_its_nodes(self):
        """Other claims to a node's name do not get its connections, whichever session is newest."""
        node = self.add("edge-2")
        thief = self.add("edge-1", hosts=["edge-2"])
        self.assertIs(self.registry.find("edge-2"), node)
        self.assertIs(self.registry.find("EDGE-2."), node)
        node.draining = True
        self.assertIs(self.registry.find("edge-2"), node)
        self.registry.remove(node)
        self.assertIs(self.registry.find("edge-2"), thief)

    def test_draining_sessions_come_last(self):
        """A draining session is chosen only if all sessions with the claim are draining."""
        other = self.add("other", networks=["192.0.2.0/24"])
        session = self.add("edge-1", networks=["192.0.2.0/24"])
        session.draining = True
        self.assertIs(self.registry.find("192.0.2.1"), other)
        other.draining = True
        self.assertIs(self.registry.find("192.0.2.1"), session)
        session.connected = False
        self.assertIs(self.registry.find("192.0.2.1"), other)

    def test_sessions_that_wait_for_their_agent_come_late(self):
        """A connected session is preferred; a disconnected one may be back, and is preferred to
        none and to a draining one.
        """
        other = self.add("other", networks=["192.0.2.0/24"])
        session = self.add("edge-1", networks=["192.0.2.0/24"])
        session.connected = False
        self.assertIs(self.registry.find("192.0.2.1"), other)
        other.draining = True
        self.assertIs(self.registry.find("192.0.2.1"), session)
        self.assertIs(self.registry.find("edge-1"), session)

    def test_draining_sessions_are_not_replaced_by_wider_claims(self):
        """The claims of a draining node never go to the machine of a wider claim."""
        self.add("default", default_route=True)
        self.add("network", networks=["192.0.2.0/24"])
        session = self.add("edge-1", addresses=["192.0.2.1"])
        session.draining = True
        for host in ("edge-1", "192.0.2.1"):
            self.assertIs(self.registry.find(host), session)


class AddAndRemoveTests(SynchronousTestCase):
    """``SessionRegistry`` uses one session for each node."""

    def setUp(self):
        """Start without sessions."""
        self.clock = Clock()
        self.clock.advance(1_000_000)
        self.registry = SessionRegistry(self.clock, max_remembered=4)

    def test_a_newer_session_of_a_node_replaces_the_older(self):
        """``add`` returns the replaced one, and its claims are gone."""
        old = FakeSession("edge-1", addresses=["192.0.2.1"])
        new = FakeSession("edge-1", addresses=["192.0.2.2"])
        self.registry.add(old)
        self.assertEqual(self.registry.add(new), [old])
        self.assertIs(self.registry.find("edge-1"), new)
        self.assertRaises(NodeNotConnected, self.registry.find, "192.0.2.1")

    def test_removing_a_replaced_session_changes_nothing(self):
        """The late end of the old session does not remove the new one."""
        old, new = FakeSession("edge-1"), FakeSession("edge-1")
        self.registry.add(old)
        self.registry.add(new)
        self.registry.remove(old)
        self.assertIs(self.registry.find("edge-1"), new)
        self.registry.remove(new)
        self.registry.remove(new)
        self.assertRaises(NodeNotConnected, self.registry.find, "edge-1")

    def test_the_fittest_session_of_a_node_serves(self):
        """An older, draining session serves if the newer is lost or leaves; one has claims."""
        old = FakeSession("edge-1", addresses=["192.0.2.1"])
        new = FakeSession("edge-1", addresses=["192.0.2.2"])
        newest = FakeSession("edge-1")
        old.draining = True
        self.registry.add(old)
        self.registry.add(new)
        self.assertIs(self.registry.find("192.0.2.2"), new)
        self.assertIs(self.registry.find_another(new), old)
        new.draining, new.connected = True, False
        self.registry.direct_changed("edge-1")
        self.assertIs(self.registry.find("192.0.2.1"), old)
        self.assertIs(self.registry.direct("edge-1"), old)
        self.assertRaises(NodeNotConnected, self.registry.find, "192.0.2.2")
        self.assertEqual(self.registry.add(newest), [old, new])
        self.assertIs(self.registry.find("edge-1"), newest)
        self.registry.remove(newest)
        self.assertIs(self.registry.find("edge-1"), old)
        self.registry.remove(old)
        self.assertIs(self.registry.find("edge-1"), new)

    def test_the_error_of_a_node_that_was_never_seen(self):
        """The message says so and names the destination."""
        error = self.assertRaises(NodeNotConnected, self.registry.find, "edge-9")
        self.assertIsNone(error.last_seen)
        self.assertEqual(
            str(error),
            "no agent is connected for edge-9, and none has been since this server started",
        )

    def test_the_error_of_a_disconnected_node(self):
        """The message says when it was last seen, by whatever identifier it is requested."""
        session = FakeSession("edge-1", addresses=["2001:db8::1"])
        self.registry.add(session)
        self.registry.remove(session)
        self.clock.advance(42)
        for host in ("edge-1", "EDGE-1.", "2001:DB8::1"):
            error = self.assertRaises(NodeNotConnected, self.registry.find, host)
            self.assertEqual(error.last_seen, 1_000_000)
            self.assertEqual(
                str(error),
                f"no agent is connected for {host}; "
                "it was last seen 42 s ago (1970-01-12T13:46:40Z)",
            )

    def test_limit_of_last_seen_nodes(self):
        """Above the limit the oldest are forgotten."""
        for number in range(6):
            session = FakeSession(f"edge-{number}")
            self.registry.add(session)
            self.registry.remove(session)
        seen = [
            self.assertRaises(NodeNotConnected, self.registry.find, f"edge-{number}").last_seen
            for number in range(6)
        ]
        self.assertEqual(seen, [None, None, *[1_000_000] * 4])


class RemoteTests(SynchronousTestCase):
    """Sessions of siblings have lower priority than those of this server."""

    def setUp(self):
        """Start without sessions."""
        self.clock = Clock()
        self.clock.advance(1_000_000)
        self.registry = SessionRegistry(self.clock)

    def remote(self, node="edge-1", **identifiers):
        """Add a node to a sibling."""
        session = FakeSession(node, **identifiers)
        self.registry.add_remote(session)
        return session

    def direct(self, node="edge-1", **identifiers):
        """Connect a node here."""
        session = FakeSession(node, **identifiers)
        self.registry.add(session)
        return session

    def test_direct_ones_come_first(self):
        """A direct session serves if there is one, whichever came first."""
        before = self.remote(addresses=["192.0.2.1"])
        direct = self.direct(addresses=["192.0.2.1"])
        after = self.remote(addresses=["192.0.2.1"])
        for host in ("edge-1", "192.0.2.1"):
            self.assertIs(direct, self.registry.find(host))
        self.registry.remove(direct)
        for host in ("edge-1", "192.0.2.1"):
            self.assertIs(after, self.registry.find(host))
        self.registry.remove_remote(after)
        self.assertIs(before, self.registry.find("edge-1"))
        self.registry.remove_remote(before)
        self.assertRaises(NodeNotConnected, self.registry.find, "edge-1")

    def test_other_nodes_with_the_same_network(self):
        """A direct session also precedes the remote one of another node with the same network."""
        self.remote("site-b", networks=["192.0.2.0/24"])
        direct = self.direct("site-a", networks=["192.0.2.0/24"])
        self.remote("site-c", networks=["192.0.2.0/24"])
        self.assertIs(direct, self.registry.find("192.0.2.1"))

    def test_other_nodes_with_the_same_address(self):
        """An address of two nodes is rejected, direct or remote."""
        self.remote("site-b", addresses=["192.0.2.1"])
        self.direct("site-a", addresses=["192.0.2.1"])
        self.assertRaises(AmbiguousAddress, self.registry.find, "192.0.2.1")

    def test_a_name_is_that_of_a_remote_node(self):
        """A direct session that claims a node's name comes after that node's remote session."""
        remote = self.remote("edge-2")
        self.direct("edge-1", hosts=["edge-2"])
        self.assertIs(remote, self.registry.find("edge-2"))

    def test_another_route_while_the_agent_is_disconnected(self):
        """A sibling that is connected to the node serves while the own session waits for it."""
        remote, direct = self.remote(), self.direct()
        direct.connected = False
        self.assertIs(remote, self.registry.find("edge-1"))

    def test_exact_claims_come_first(self):
        """A remote session that claims an address has priority over a direct one's network."""
        self.direct("gateway", networks=["10.0.0.0/8"], default_route=True)
        remote = self.remote(addresses=["10.1.2.3"])
        self.assertIs(remote, self.registry.find("10.1.2.3"))
        self.assertEqual("gateway", self.registry.find("10.1.2.4").node)
        self.registry.remove_remote(remote)
        self.assertEqual("gateway", self.registry.find("10.1.2.3").node)

    def test_draining(self):
        """A session that is not draining has priority over draining ones, direct or not."""
        first, second, direct = self.remote(), self.remote(), self.direct()
        direct.draining = True
        self.assertIs(second, self.registry.find("edge-1"))
        second.draining = True
        self.assertIs(first, self.registry.find("edge-1"))
        first.draining = True
        self.assertIs(direct, self.registry.find("edge-1"))

    def test_twice(self):
        """Adding or removing one twice has no effect."""
        session = self.remote(networks=["10.0.0.0/8"])
        self.registry.add_remote(session)
        self.registry.remove_remote(session)
        self.registry.remove_remote(session)
        self.assertRaises(NodeNotConnected, self.registry.find, "10.0.0.1")

    def test_last_seen(self):
        """The last contact is also stored for remote nodes."""
        self.registry.remove_remote(self.remote(addresses=["192.0.2.1"]))
        error = self.assertRaises(NodeNotConnected, self.registry.find, "192.0.2.1")
        self.assertEqual(1_000_000, error.last_seen)

    def test_direct_nodes(self):
        """Siblings get the direct sessions, and each change of them."""
        changed = []
        self.registry.on_direct_changed.append(changed.append)
        self.registry.remove_remote(self.remote("edge-2"))
        self.assertEqual([], changed)
        direct = self.direct()
        newer = self.direct()
        self.registry.remove(direct)
        self.assertEqual((["edge-1"] * 2, ["edge-1"]), (changed, self.registry.direct_nodes()))
        self.assertIs(newer, self.registry.direct("edge-1"))
        self.registry.remove(newer)
        self.assertEqual(["edge-1"] * 3, changed)
        self.assertIsNone(self.registry.direct("edge-1"))
        self.assertEqual([], self.registry.direct_nodes())

    def test_number_of_remote_nodes(self):
        """Nodes that are reached only through siblings count, each once."""
        self.remote()
        self.remote()
        self.remote("edge-2")
        self.assertEqual(2, self.registry.remote_nodes)
        self.direct()
        self.assertEqual(1, self.registry.remote_nodes)

    def test_another_route(self):
        """Another route to a node leads to the same node, and is a draining one only if all are."""
        first = self.remote(addresses=["192.0.2.1"])
        self.assertIsNone(self.registry.find_another(first))
        second = self.remote(addresses=["192.0.2.1"])
        self.remote("edge-2", hosts=["edge-1"])
        self.assertIs(second, self.registry.find_another(first))
        self.assertIs(first, self.registry.find_another(second))
        direct = self.direct()
        self.assertIs(direct, self.registry.find_another(first))
        direct.connected = False
        self.assertIs(second, self.registry.find_another(first), "it answers now")
        second.connected = False
        self.assertIs(direct, self.registry.find_another(first), "it may be back soon")
        direct.draining = second.draining = True
        self.assertIs(direct, self.registry.find_another(first))
        second.connected = True
        self.assertIs(second, self.registry.find_another(first), "it serves until its end")
