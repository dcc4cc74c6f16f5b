"""The servers that an agent connects to if each has its own addresses."""

from __future__ import annotations

import random

from tests.agent.replicas import ReplicaTests
from yurttunnel.agent.connection_group import MAX_PROBE_DELAY, URGENT_DELAY
from yurttunnel.wire.codes import Code


class FirstContactTests(ReplicaTests):
    """The start, while nothing is known yet."""

    def test_one_by_one(self):
        """Clients that share an address do not dial it at the same moment."""
        self.announced = 5
        self.replica("lb")
        self.servers.use([("lb", 10262)])
        self.hangs = True
        self.settle()
        self.assertEqual((1, 2), (self.servers.connected, len(self.dialed)))
        self.assertEqual(5, self.servers.desired)

    def test_same_moment(self):
        """Two clients that reach one server at the same moment lose no time."""
        self.patch(random, "uniform", lambda low, high: high)
        self.announced = 2
        self.replica("a", "b")
        self.use("a", "b")
        self.assertEqual([1], self.counts())
        self.replica("a", "b")
        self.pass_time(4)
        self.assertEqual([1, 1], self.counts())
        self.assertEqual([], self.warnings)


class SeparateTests(ReplicaTests):
    """Each server has its own address, as in EndpointSlices."""

    def setUp(self):
        """Start two servers."""
        super().setUp()
        self.announced = 2
        self.replica("a")
        self.replica("b")
        self.use("a", "b")

    def test_both(self):
        """There is a session with each, at once."""
        self.assertEqual([1, 1], self.counts())
        self.assertEqual(["a", "b"], sorted(self.dialed))

    def test_new_address(self):
        """A server at a new address is connected within seconds, without a report in HELLO."""
        self.announced = 3
        self.replica("c")
        self.use("a", "b", "c")
        self.pass_time(11)
        self.assertEqual([1, 1, 1], self.counts())

    def test_dead_address(self):
        """A server that is down costs attempts at its address, and the other session stays."""
        near, far = self.replicas[1].stream()
        self.kill(self.replicas[0])
        self.pass_time(60)
        self.assertEqual((1, ["made"]), (self.servers.connected, near.events))
        self.assertIn("a:10262 (", self.servers.warning() or "")
        self.replicas[0].up = True
        self.pass_time(180)
        self.assertEqual([1, 1], self.counts())
        near.transport.write(b"still here")
        self.settle()
        self.assertEqual(b"still here", bytes(far.received))

    def test_a_reconnected_server_is_not_missing(self):
        """A server that is back is not reported as missing, although earlier attempts failed."""
        for replica in self.replicas:
            self.kill(replica)
        self.pass_time(10)
        self.replicas[1].up = True
        self.pass_time(10)
        self.assertEqual([0, 1], self.counts())
        self.assertIn("a:10262 (", self.servers.warning())
        self.assertNotIn("b:10262 (", self.servers.warning())

    def test_back_soon(self):
        """However long a server was away, the agent is back within seconds of its return."""
        for away in (3, 12, 30, 60, 180):
            for replica in self.replicas:
                self.kill(replica)
                self.pass_time(away)
                replica.up = True
                self.pass_time(10)
                self.assertEqual([1, 1], self.counts(), away)

    def test_the_other_is_spared(self):
        """While one address does not respond, the connected server is rarely dialed."""
        self.kill(self.replicas[0])
        self.dialed.clear()
        self.pass_time(180)
        self.assertGreater(self.dialed.count("a"), 50)
        self.assertLess(self.dialed.count("b"), 20)

    def test_wakes(self):
        """When the other session ends, too, the client that waits for the first retries at once."""
        self.kill(self.replicas[0])
        self.pass_time(400, 1)
        self.replicas[0].up = True
        self.replicas[1].listener.close_sessions(Code.GOING_AWAY, "the process is gone")
        self.settle()
        self.pass_time(URGENT_DELAY)
        self.assertEqual([1, 1], self.counts())

    def test_more_servers_announced(self):
        """A client that has found no server looks at once when another one is reported."""
        dead = [f"c{number}" for number in range(20)]
        self.use("a", "b", *dead)
        self.patch(random, "uniform", lambda low, high: high)
        self.pass_time(150)
        self.assertIn(self.dialed[-1], dead)
        self.announced = 3
        self.replica(*dead)
        self.cut()
        self.pass_time(1)
        self.assertEqual([1, 1, 1], self.counts())

    def test_more_servers_announced_without_sessions(self):
        """It first looks where there is no session, however often that failed before."""
        self.use("a", "b", "c")
        self.pass_time(20)
        self.assertIn("c", self.dialed)
        self.patch(random, "uniform", lambda low, high: high)
        self.pass_time(120)
        self.announced = 3
        self.replica("c")
        self.cut()
        self.pass_time(1)
        self.assertEqual([1, 1, 1], self.counts())

    def test_fewer_servers_announced(self):
        """A server that does not know of the other one ends no session, and hides no third one."""
        self.announced = 1
        self.cut()
        self.pass_time(5)
        self.assertEqual([1, 1], self.counts())
        self.assertEqual((2, 2), (self.servers.connected, self.servers.desired))
        self.replica("c")
        self.behind["a"] = self.behind["c"]
        self.pass_time(3 * MAX_PROBE_DELAY, 5)
        self.assertEqual([1, 1, 1], self.counts())

    def test_not_announced(self):
        """A server that started without the API, and does not know the number, changes nothing."""
        self.announced = None
        self.kill(self.replicas[0])
        self.replicas[0].up = True
        self.pass_time(5)
        self.assertEqual(([1, 1], 2), (self.counts(), self.servers.desired))

    def test_two_agents_of_one_node(self):
        """Two agents of one node take the sessions from each other only every few minutes."""
        other = self.agent()
        self.addCleanup(other.close, Code.GOING_AWAY, "the test is over")
        other.use([("a", 10262), ("b", 10262)])
        self.settle()
        self.assertEqual([1, 1], self.counts())
        self.pass_time(600, 1)
        dialed, warned = len(self.dialed), len(self.warnings)
        self.pass_time(1800, 1)
        self.assertLess(len(self.dialed) - dialed, 30)
        self.assertGreater(len(self.dialed) - dialed, 6)
        self.assertLessEqual(len(self.warnings) - warned, 12)
        self.assertEqual([1, 1], self.counts())

    def test_removed_address(self):
        """The session at a removed address is drained if there is another; its stream continues."""
        near, far = self.replicas[0].stream()
        self.use("b")
        self.pass_time(3)
        self.assertEqual([0, 1], self.counts())
        near.transport.write(b"still here")
        self.settle()
        self.assertEqual((["made"], b"still here"), (near.events, bytes(far.received)))
        near.transport.abortConnection()
        self.pass_time(3)
        self.assertEqual([], self.replicas[0].listener.sessions())
        self.assertEqual(1, len(self.servers.sessions()))

    def test_all_removed(self):
        """When all addresses change, the old sessions serve until there is a new one."""
        self.use("c")
        self.pass_time(30)
        self.assertEqual([1, 1], self.counts())
        self.assertIsNone(self.servers.problem())
        self.replica("c")
        self.pass_time(60)
        self.assertEqual([0, 0, 1], self.counts())

    def test_same_server_elsewhere(self):
        """An address that leads to a connected server takes its session over."""
        near, far = self.replicas[0].stream()
        self.behind["c"] = [self.replicas[0]]
        self.behind["d"] = [self.replicas[1]]
        self.use("c", "d")
        self.pass_time(15)
        self.assertEqual([1, 1], self.counts())
        self.assertEqual({"c", "d"}, set(self.dialed[-2:]))
        addresses = {
            session.description.address
            for session in self.servers.sessions()
            if session.connected and not session.draining
        }
        self.assertTrue({"c:10262", "d:10262"} <= addresses, addresses)
        near.transport.write(b"still here")
        self.settle()
        self.assertEqual((["made"], b"still here"), (near.events, bytes(far.received)))

    def test_reconnects_elsewhere(self):
        """A session whose address is gone when its connection breaks continues at another one."""
        near, far = self.replicas[0].stream()
        self.replicas[1].up = False
        self.behind["c"] = [self.replicas[0]]
        self.patch(self.servers, "_drain_unused_locations", lambda current: None)
        self.servers.use([("c", 10262)])
        self.cut()
        self.pass_time(0.5)
        near.transport.write(b"still here")
        self.pass_time(5)
        self.assertEqual((["made"], b"still here"), (near.events, bytes(far.received)))

    def test_no_address(self):
        """An empty list of addresses changes nothing."""
        dialed = len(self.dialed)
        self.servers.use([])
        self.pass_time(5)
        self.assertEqual(([1, 1], dialed), (self.counts(), len(self.dialed)))


class NodePortTests(ReplicaTests):
    """Many addresses, each of which leads to any of the servers."""

    def test_no_storm(self):
        """An agent does not dial all of them at once, and still finds the servers."""
        self.announced = 2
        hosts = [f"n{number}" for number in range(20)]
        self.replica(*hosts)
        self.replica(*hosts)
        self.use(*hosts)
        self.assertLessEqual(len(self.dialed), 3)
        self.pass_time(20)
        self.assertEqual([1, 1], self.counts())
        self.assertLessEqual(len(self.dialed), 12)

    def test_dead_nodes(self):
        """Unresponsive addresses are passed over."""
        self.announced = 1
        self.replica("n7")
        self.use(*(f"n{number}" for number in range(8)))
        self.pass_time(60)
        self.assertEqual([1], self.counts())
        self.assertIsNone(self.servers.warning())

    def test_spread(self):
        """Different agents start at different addresses."""
        nodes = [f"n{number}" for number in range(20)]
        self.use(*nodes)
        self.servers.close(Code.GOING_AWAY, "another one begins")
        self.servers = self.agent()
        self.use(*nodes)
        first, second = set(self.dialed[:2]), set(self.dialed[2:])
        self.assertEqual((2, 2), (len(first), len(second)))
        self.assertNotEqual(first, second)


class LimitTests(ReplicaTests):
    """``--server-connections``."""

    limit = 2

    def test_limit(self):
        """There are this many sessions, and no search for more servers."""
        self.announced = 4
        hosts = ["a", "b", "c", "d"]
        for host in hosts:
            self.replica(host)
        self.use(*hosts)
        self.pass_time(5)
        self.assertEqual(2, sum(self.counts()))
        dialed = len(self.dialed)
        self.pass_time(4 * MAX_PROBE_DELAY, 5)
        self.assertEqual((2, dialed), (sum(self.counts()), len(self.dialed)))

    def test_another(self):
        """When one server is gone, another one takes its place."""
        self.announced = 3
        for host in ("a", "b", "c"):
            self.replica(host)
        self.use("a", "b", "c")
        self.pass_time(5)
        gone = next(replica for replica in self.replicas if replica.sessions())
        self.kill(gone)
        self.pass_time(60)
        self.assertEqual(2, self.servers.connected)
        self.assertEqual([], gone.sessions())


class OneOfTwoTests(ReplicaTests):
    """``--server-connections 1``."""

    limit = 1

    def test_leaving(self):
        """The agent leaves a draining server for the other address at once."""
        self.announced = 2
        self.replica("a")
        self.replica("b")
        self.use("a", "b")
        self.pass_time(1)
        [first] = self.dialed
        self.replicas["ab".index(first)].listener.drain("the server is about to stop")
        self.pass_time(1)
        self.assertEqual(2, len(self.dialed))
        self.assertNotEqual(first, self.dialed[1])
        self.assertEqual(1, self.servers.connected)


class UncountedTests(ReplicaTests):
    """Servers that do not send their number: one session for each address."""

    expected = None

    def test_one_each(self):
        """Each address is dialed by one client, which stays there."""
        self.replica("a")
        self.use("a", "b")
        self.pass_time(60)
        self.assertEqual([1], self.counts())
        self.assertEqual(1, self.dialed.count("a"))
        self.assertGreater(self.dialed.count("b"), 3)
        self.assertIsNone(self.servers.problem())
        problem = self.servers.warning()
        self.assertTrue(problem.startswith("not connected: b:10262 ("), problem)
        self.assertIn("refused", problem)

    def test_same_server(self):
        """The client of a server's second address stands by, which is not reported as a problem."""
        self.replica("a", "b")
        self.use("a", "b")
        self.pass_time(60)
        self.assertEqual([1], self.counts())
        self.assertIsNone(self.servers.warning())

    def test_one_of_two_addresses_dies(self):
        """A session goes on at its server's second address, however long a client stood by there,
        and with a server elsewhere.
        """
        self.replica("a", "b")
        self.replica("c")
        for waited in (2, 3 * MAX_PROBE_DELAY):
            self.use("a", "b", "c")
            self.pass_time(waited, 1)
            near, far = self.replicas[0].stream()
            [link] = [link for link in self.open_links if link.replica is self.replicas[0]]
            [client] = [
                client
                for client in self.servers._clients
                if client.connected and client.location != ("c", 10262)
            ]
            self.behind[client.location[0]] = []
            link.cut()
            self.pass_time(3)
            near.transport.write(b"still here")
            self.settle()
            self.assertEqual((["made"], b"still here"), (near.events, bytes(far.received)))
            self.behind["a"] = self.behind["b"] = self.replicas[:1]
        self.assertEqual([1, 1], self.counts())

    def test_nobody(self):
        """While no server responds, each address is reported with the reason."""
        self.assertEqual("no address of a server is known", self.servers.problem())
        self.use("a", "b")
        problem = self.servers.problem()
        self.assertTrue(problem.startswith("not connected: "), problem)
        self.assertIn("a:10262 (", problem)
        self.assertIn("b:10262 (", problem)
        self.assertEqual(2, self.servers.failed_attempts())

    def test_restarted_servers_count(self):
        """When servers start to send their number, it is used."""
        self.replica("a", "b", "c")
        self.use("a", "b", "c")
        self.pass_time(1)
        self.assertEqual(3, len(self.servers._group.clients))
        self.announced = 1
        self.cut()
        self.pass_time(5)
        self.assertEqual((1, [1]), (self.servers.desired, self.counts()))
        self.assertEqual(2, len(self.servers._group.clients))

    def test_bad_name(self):
        """A name that cannot be resolved is a failed attempt, and attempts continue."""
        self.replica("a")

        def tls_endpoint(host, port, skip):
            raise UnicodeError("label too long")

        self.patch(self.servers._routes, "tls_endpoint", tls_endpoint)
        self.use("a")
        self.assertEqual(1, self.servers.failed_attempts())
        self.assertIn("label too long", self.servers.problem())

    def test_closed(self):
        """Nothing starts after the end."""
        self.replica("a")
        self.servers.close(Code.GOING_AWAY, "the agent has stopped")
        self.use("a")
        self.pass_time(5)
        self.assertEqual([], self.dialed)
