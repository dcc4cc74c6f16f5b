"""With which servers an agent has sessions, whatever addresses lead to them."""

from __future__ import annotations

import random
from dataclasses import astuple

from tests.agent.replicas import ReplicaTests
from tests.ops.scrapes import families
from yurttunnel.agent.connection_group import LONGEST_LOOK, URGENT_DELAY, ClientSettings
from yurttunnel.agent.servers import METRICS, ServerSet
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits


class BalancerTests(ReplicaTests):
    """All servers are behind one address."""

    def setUp(self):
        """Have three servers, and an agent that is connected."""
        super().setUp()
        self.told = 3
        for _ in range(3):
            self.replica("lb")
        self.use("lb")

    def test_all(self):
        """There is a session with each server, soon, and nothing has failed."""
        self.pass_time(5)
        self.assertEqual([1, 1, 1], self.counts())
        self.assertEqual((3, 3), (self.servers.connected, self.servers.desired))
        self.assertEqual((0, []), (self.servers.failed_attempts(), self.warnings()))
        self.assertIsNone(self.servers.not_connected())
        self.assertIsNone(self.servers.partly_connected())

    def test_names(self):
        """The sessions behind one address are told apart."""
        self.pass_time(5)
        names = {session.description.address for session in self.servers.sessions()}
        self.assertEqual({"lb:10262", "lb:10262 (2)", "lb:10262 (3)"}, names)

    def test_quiet(self):
        """Once all are there the address is dialed every few minutes only."""
        self.pass_time(5)
        before = len(self.dialed)
        self.pass_time(10 * LONGEST_LOOK, 5)
        self.assertTrue(10 <= len(self.dialed) - before <= 20, len(self.dialed) - before)
        self.assertEqual([1, 1, 1], self.counts())

    def test_partly(self):
        """While servers are missing it says how many."""
        self.kill(self.replicas[0])
        self.assertEqual(
            "connected to 2 of 3 servers", self.servers.partly_connected().partition(";")[0]
        )

    def test_one_more(self):
        """A server that nobody tells of is found by looking."""
        self.pass_time(5)
        self.told = 4
        self.replica("lb")
        self.pass_time(8 * LONGEST_LOOK, 5)
        self.assertEqual([1, 1, 1, 1], self.counts())

    def test_stop_with_a_stream_at_one_server(self):
        """All of them can reach the node until the last stream has ended, and then none."""
        self.pass_time(5)
        near, _ = self.replicas[0].stream()
        self.servers.drain("the agent is about to stop")
        self.pass_time(10)
        late, _ = self.replicas[1].stream()
        near.transport.abortConnection()
        self.pass_time(1)
        self.assertEqual(3, len(self.servers.sessions()))
        self.assertEqual(["made"], late.told)
        late.transport.abortConnection()
        self.pass_time(1)
        self.assertEqual([], self.servers.sessions())

    def test_one_fewer(self):
        """When one is gone for good the address is dialed less and less."""
        self.pass_time(5)
        self.kill(self.replicas[0])
        self.pass_time(600, 1)
        before = len(self.dialed)
        self.pass_time(600, 1)
        self.assertLessEqual(len(self.dialed) - before, 20)
        self.assertEqual(2, self.servers.connected)
        self.assertEqual([], [text for text in self.warnings() if "running twice" in text])

    def test_resumption(self):
        """Sessions that lose their connections find their servers again, with their streams."""
        self.pass_time(5)
        ends = [replica.stream() for replica in self.replicas]
        self.cut()
        for near, _ in ends:
            near.transport.write(b"still here")
        self.pass_time(5)
        self.assertEqual([1, 1, 1], self.counts())
        self.assertEqual([b"still here"] * 3, [bytes(far.received) for _, far in ends])
        self.assertEqual(0, self.servers.failed_attempts())

    def test_misdirected(self):
        """A session that waits to be resumed does not wait long when it is led astray."""
        self.pass_time(5)
        self.behind["lb"] = self.replicas[1:]
        self.patch(random, "uniform", lambda low, high: high)
        dialed = len(self.dialed)
        self.cut()
        self.pass_time(1, 0.05)
        self.assertGreater(len(self.dialed) - dialed, 6)
        self.behind["lb"] = self.replicas
        self.pass_time(1, 0.05)
        self.assertEqual(3, self.servers.connected)

    def test_dead_address_beside(self):
        """An address that nobody answers at keeps no client from one that leads to more."""
        self.use("dead", "lb")
        self.told = 4
        self.replica("lb")
        self.pass_time(60)
        self.assertEqual([1, 1, 1, 1], self.counts())

    def test_rolling_restart(self):
        """A server that drains is replaced by the next one while its streams end."""
        self.pass_time(5)
        for old in list(self.replicas):
            near, far = old.stream()
            self.replica("lb")
            self.behind["lb"].remove(old)
            old.listener.drain("the server is about to stop")
            self.pass_time(15)
            self.assertEqual(3, self.servers.connected)
            near.transport.write(b"still here")
            self.settle()
            self.assertEqual((["made"], b"still here"), (near.told, bytes(far.received)))
            near.transport.abortConnection()
            self.pass_time(2)
            self.kill(old)
        self.assertEqual([0, 0, 0, 1, 1, 1], self.counts())

    def test_other_agent(self):
        """An agent whose session another one of the node has taken does not fight for it."""
        self.pass_time(5)
        dialed = len(self.dialed)
        patched = self.patch(random, "uniform", lambda low, high: high)
        for replica in self.replicas:
            replica.registry.find("edge-1").tunnel.close(Code.REPLACED, "another")
        self.settle()
        self.pass_time(10)
        self.assertEqual(dialed, len(self.dialed))
        patched.restore()
        self.pass_time(60)
        self.assertEqual([1, 1, 1], self.counts())
        self.assertTrue(any("running twice" in text for text in self.warnings()))

    def test_figures(self):
        """A scrape shows how many servers are wanted and connected."""
        self.pass_time(5)
        self.assertEqual((3, 3, 1), astuple(self.servers.stats())[:3])
        self.pass_time(LONGEST_LOOK, 5)
        stats = self.servers.stats()
        self.assertGreater(stats.refusals, 0)
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in families(METRICS, stats)
            for sample in family.samples
        }
        self.assertEqual(
            {
                ("yurttunnel_agent_servers", "wanted"): 3,
                ("yurttunnel_agent_servers", "connected"): 3,
                ("yurttunnel_agent_server_addresses",): 1,
                ("yurttunnel_agent_already_connected_total",): stats.refusals,
            },
            samples,
        )

    def test_claim(self):
        """Servers are told one by one of other identifiers; streams go on to their ends."""
        self.pass_time(5)
        ends = [replica.stream() for replica in self.replicas]
        self.servers.claim_anew()
        self.pass_time(3)
        self.assertEqual(0, sum(session.going_away for session in self.servers.sessions()))
        self.claim = "host=edge-1&ipv4=192.0.2.7"
        for told in range(1, 4):
            self.servers.claim_anew()
            self.assertEqual(2, self.servers.connected)
            self.pass_time(3)
            self.assertEqual(3, self.servers.connected)
            claims = [
                len(session.identifiers.addresses)
                for replica in self.replicas
                for session in [replica.registry.find("edge-1")]
            ]
            self.assertEqual(told, sum(claims))
        for near, far in ends:
            near.transport.write(b"still here")
            self.settle()
            self.assertEqual((["made"], b"still here"), (near.told, bytes(far.received)))
        sessions = len(self.servers.sessions())
        self.servers.claim_anew()
        self.pass_time(3)
        self.assertEqual(sessions, len(self.servers.sessions()))

    def test_stop(self):
        """Draining ends all sessions, and the looking."""
        self.pass_time(5)
        self.servers.drain("the agent is about to stop")
        self.pass_time(3)
        self.assertEqual([], self.servers.sessions())
        dialed = len(self.dialed)
        self.pass_time(2 * LONGEST_LOOK, 5)
        self.assertEqual(dialed, len(self.dialed))


class FirstContactTests(ReplicaTests):
    """What happens while nothing is known yet."""

    def test_one_by_one(self):
        """Those that share an address do not dial it at the same moment."""
        self.told = 5
        self.replica("lb")
        self.servers.use([("lb", 10262)])
        self.hangs = True
        self.settle()
        self.assertEqual((1, 2), (self.servers.connected, len(self.dialed)))
        self.assertEqual(5, self.servers.desired)

    def test_same_moment(self):
        """Two that have reached one server at the same moment lose no time over it."""
        self.patch(random, "uniform", lambda low, high: high)
        self.told = 2
        self.replica("a", "b")
        self.use("a", "b")
        self.assertEqual([1], self.counts())
        self.replica("a", "b")
        self.pass_time(4)
        self.assertEqual([1, 1], self.counts())
        self.assertEqual([], self.warnings())


class SeparateTests(ReplicaTests):
    """Each server has its own address, as with EndpointSlices."""

    def setUp(self):
        """Have two servers."""
        super().setUp()
        self.told = 2
        self.replica("a")
        self.replica("b")
        self.use("a", "b")

    def test_both(self):
        """There is a session with each, at once."""
        self.assertEqual([1, 1], self.counts())
        self.assertEqual(["a", "b"], sorted(self.dialed))

    def test_new_address(self):
        """A server at a new address is connected within seconds, though no HELLO tells of it."""
        self.told = 3
        self.replica("c")
        self.use("a", "b", "c")
        self.pass_time(11)
        self.assertEqual([1, 1, 1], self.counts())

    def test_dead_address(self):
        """One that is down costs attempts there, and leaves the session with the other alone."""
        near, far = self.replicas[1].stream()
        self.kill(self.replicas[0])
        self.pass_time(60)
        self.assertEqual((1, ["made"]), (self.servers.connected, near.told))
        self.assertIn("a:10262 (", self.servers.partly_connected() or "")
        self.replicas[0].up = True
        self.pass_time(180)
        self.assertEqual([1, 1], self.counts())
        near.transport.write(b"still here")
        self.settle()
        self.assertEqual(b"still here", bytes(far.received))

    def test_who_is_back_is_not_told_as_missing(self):
        """Though its last attempt but one has failed, too."""
        for replica in self.replicas:
            self.kill(replica)
        self.pass_time(10)
        self.replicas[1].up = True
        self.pass_time(10)
        self.assertEqual([0, 1], self.counts())
        self.assertIn("a:10262 (", self.servers.partly_connected())
        self.assertNotIn("b:10262 (", self.servers.partly_connected())

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
        """While nobody answers at one address, the server that is connected is seldom dialed."""
        self.kill(self.replicas[0])
        self.dialed.clear()
        self.pass_time(180)
        self.assertGreater(self.dialed.count("a"), 50)
        self.assertLess(self.dialed.count("b"), 20)

    def test_wakes(self):
        """When the other session is over as well, who waits for the first tries at once."""
        self.kill(self.replicas[0])
        self.pass_time(400, 1)
        self.replicas[0].up = True
        self.replicas[1].listener.close_sessions(Code.GOING_AWAY, "the process is gone")
        self.settle()
        self.pass_time(URGENT_DELAY)
        self.assertEqual([1, 1], self.counts())

    def test_told_of_more(self):
        """Who has looked in vain looks at once when a server says that there is another one."""
        dead = [f"c{number}" for number in range(20)]
        self.use("a", "b", *dead)
        self.patch(random, "uniform", lambda low, high: high)
        self.pass_time(150)
        self.assertIn(self.dialed[-1], dead)
        self.told = 3
        self.replica(*dead)
        self.cut()
        self.pass_time(1)
        self.assertEqual([1, 1, 1], self.counts())

    def test_told_of_more_where_nobody_was(self):
        """It looks first where there is no session, however often that was in vain before."""
        self.use("a", "b", "c")
        self.pass_time(20)
        self.assertIn("c", self.dialed)
        self.patch(random, "uniform", lambda low, high: high)
        self.pass_time(120)
        self.told = 3
        self.replica("c")
        self.cut()
        self.pass_time(1)
        self.assertEqual([1, 1, 1], self.counts())

    def test_told_of_fewer(self):
        """A server that does not know of the other one ends no session, and hides no third."""
        self.told = 1
        self.cut()
        self.pass_time(5)
        self.assertEqual([1, 1], self.counts())
        self.assertEqual((2, 2), (self.servers.connected, self.servers.desired))
        self.replica("c")
        self.behind["a"] = self.behind["c"]
        self.pass_time(3 * LONGEST_LOOK, 5)
        self.assertEqual([1, 1, 1], self.counts())

    def test_not_told(self):
        """A server that has begun without the API, and does not know how many, changes nothing."""
        self.told = None
        self.kill(self.replicas[0])
        self.replicas[0].up = True
        self.pass_time(5)
        self.assertEqual(([1, 1], 2), (self.counts(), self.servers.desired))

    def test_two_agents_of_one_node(self):
        """They take the sessions from each other only every few minutes."""
        other = ServerSet(
            self.context,
            ClientSettings("edge-1", lambda: self.claim, Limits(), "test 1"),
            self.servers._routes.secured,
            expected=2,
        )
        self.addCleanup(other.close, Code.GOING_AWAY, "the test is over")
        other.use([("a", 10262), ("b", 10262)])
        self.settle()
        self.assertEqual([1, 1], self.counts())
        self.pass_time(600, 1)
        dialed, warned = len(self.dialed), len(self.warnings())
        self.pass_time(1800, 1)
        self.assertLess(len(self.dialed) - dialed, 30)
        self.assertGreater(len(self.dialed) - dialed, 6)
        self.assertLessEqual(len(self.warnings()) - warned, 12)
        self.assertEqual([1, 1], self.counts())

    def test_removed_address(self):
        """The session there is drained, as there is another: its stream goes on to its end."""
        near, far = self.replicas[0].stream()
        self.use("b")
        self.pass_time(3)
        self.assertEqual([0, 1], self.counts())
        near.transport.write(b"still here")
        self.settle()
        self.assertEqual((["made"], b"still here"), (near.told, bytes(far.received)))
        near.transport.abortConnection()
        self.pass_time(3)
        self.assertEqual([], self.replicas[0].listener.sessions())
        self.assertEqual(1, len(self.servers.sessions()))

    def test_all_removed(self):
        """When all addresses change, the old sessions serve until there is a new one."""
        self.use("c")
        self.pass_time(30)
        self.assertEqual([1, 1], self.counts())
        self.assertIsNone(self.servers.not_connected())
        self.replica("c")
        self.pass_time(60)
        self.assertEqual([0, 0, 1], self.counts())

    def test_same_server_elsewhere(self):
        """An address that leads to a server that is connected takes its session over."""
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
            if session.connected and not session.going_away
        }
        self.assertTrue({"c:10262", "d:10262"} <= addresses, addresses)
        near.transport.write(b"still here")
        self.settle()
        self.assertEqual((["made"], b"still here"), (near.told, bytes(far.received)))

    def test_comes_back_elsewhere(self):
        """A session whose address is gone when its connection breaks goes on by another one."""
        near, far = self.replicas[0].stream()
        self.replicas[1].up = False
        self.behind["c"] = [self.replicas[0]]
        self.patch(self.servers, "_drain_elsewhere", lambda current: None)
        self.servers.use([("c", 10262)])
        self.cut()
        self.pass_time(0.5)
        near.transport.write(b"still here")
        self.pass_time(5)
        self.assertEqual((["made"], b"still here"), (near.told, bytes(far.received)))

    def test_no_address(self):
        """Addresses that are no longer known change nothing."""
        dialed = len(self.dialed)
        self.servers.use([])
        self.pass_time(5)
        self.assertEqual(([1, 1], dialed), (self.counts(), len(self.dialed)))


class NodePortTests(ReplicaTests):
    """Many addresses, each leads to any of the servers."""

    def test_no_storm(self):
        """An agent does not dial all of them at once, and finds the servers all the same."""
        self.told = 2
        hosts = [f"n{number}" for number in range(20)]
        self.replica(*hosts)
        self.replica(*hosts)
        self.use(*hosts)
        self.assertLessEqual(len(self.dialed), 3)
        self.pass_time(20)
        self.assertEqual([1, 1], self.counts())
        self.assertLessEqual(len(self.dialed), 12)

    def test_dead_nodes(self):
        """Those that do not answer are passed over."""
        self.told = 1
        self.replica("n7")
        self.use(*(f"n{number}" for number in range(8)))
        self.pass_time(60)
        self.assertEqual([1], self.counts())
        self.assertIsNone(self.servers.partly_connected())

    def test_spread(self):
        """Different agents begin at different addresses."""
        self.use(*(f"n{number}" for number in range(20)))
        first = set(self.dialed)
        self.assertEqual(2, len(first))
        self.servers._routes.use([])
        self.dialed.clear()
        random.seed(6)
        self.servers._routes.use([(f"n{number}", 10262) for number in range(20)])
        self.pass_time(1)
        self.assertNotEqual(first, set(self.dialed[:2]))


class LimitTests(ReplicaTests):
    """``--server-connections``."""

    limit = 2

    def test_limit(self):
        """There are sessions with so many servers, and no looking for more."""
        self.told = 4
        hosts = ["a", "b", "c", "d"]
        for host in hosts:
            self.replica(host)
        self.use(*hosts)
        self.pass_time(5)
        self.assertEqual(2, sum(self.counts()))
        dialed = len(self.dialed)
        self.pass_time(4 * LONGEST_LOOK, 5)
        self.assertEqual((2, dialed), (sum(self.counts()), len(self.dialed)))

    def test_another(self):
        """When one of them is gone another one takes its place."""
        self.told = 3
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
        """A server that drains is left for the other address at once."""
        self.told = 2
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


class TogetherTests(ReplicaTests):
    """Servers that start together behind one address, and become known one after the other."""

    def alone(self):
        """Have an agent that is connected to the one server that is known so far."""
        self.told = 1
        first = self.replica("lb")
        self.use("lb")
        self.pass_time(10)
        self.assertEqual(([1], None), (self.counts(), self.servers.partly_connected()))
        return first

    def test_told_meanwhile(self):
        """Each is found soon when agents are told of it, and until then it says what is missing."""
        first = self.alone()
        for servers in (2, 3, 4):
            self.replica("lb")
            self.told = servers
            first.listener.replicas_changed()
            self.settle()
            self.assertEqual(
                f"connected to {servers - 1} of {servers} servers", self.servers.partly_connected()
            )
            self.pass_time(20)
            self.assertEqual([1] * servers, self.counts())
            self.assertIsNone(self.servers.partly_connected())

    def test_told_of_fewer(self):
        """That a server has gone is no reason to look for anything, nor to leave one."""
        first = self.alone()
        self.replica("lb")
        self.told = 2
        first.listener.replicas_changed()
        self.pass_time(20)
        before = len(self.dialed)
        self.told = 1
        first.listener.replicas_changed()
        self.pass_time(60)
        self.assertEqual(([1, 1], before), (self.counts(), len(self.dialed)))

    def test_all_agents_are_told_at_once(self):
        """So that they spread what they do about it over some seconds."""
        bounds = []
        first = self.alone()
        for _ in range(2):
            self.replica("lb")
        self.told = 3
        self.patch(random, "uniform", lambda low, high: bounds.append(high) or high)
        before = len(self.dialed)
        first.listener.replicas_changed()
        self.pass_time(URGENT_DELAY - 0.5)
        self.assertEqual((before, {URGENT_DELAY}), (len(self.dialed), set(bounds)))
        self.pass_time(20)
        self.assertEqual([1, 1, 1], self.counts())

    def test_the_same_number_is_told_once(self):
        """Whatever makes the server count again."""
        first = self.alone()
        told = []
        first.listener.replicas_changed()
        self.settle()
        (session,) = self.servers.sessions()
        session.on_servers_told.append(told.append)
        for self.told in (1, 1, 2, 2, 2, None, 2):
            first.listener.replicas_changed()
            self.settle()
        self.assertEqual([2], told)

    def test_number_that_nobody_knows(self):
        """As many are connected as are expected; it is not said that these are all."""
        for _ in range(2):
            first = self.replica("lb")
        self.use("lb")
        self.pass_time(20)
        self.assertEqual([1, 1], self.counts())
        self.assertIsNone(self.servers.not_connected())
        self.assertIn("how many servers there are is not known", self.servers.partly_connected())
        self.told = 2
        first.listener.replicas_changed()
        self.settle()
        self.assertIsNone(self.servers.partly_connected())


class UncountedTests(ReplicaTests):
    """Servers that do not say how many they are: one session for each address."""

    expected = None

    def test_one_each(self):
        """Each address is dialed by one client, which stays with it."""
        self.replica("a")
        self.use("a", "b")
        self.pass_time(60)
        self.assertEqual([1], self.counts())
        self.assertEqual(1, self.dialed.count("a"))
        self.assertGreater(self.dialed.count("b"), 3)
        self.assertIsNone(self.servers.not_connected())
        problem = self.servers.partly_connected()
        self.assertTrue(problem.startswith("not connected: b:10262 ("), problem)
        self.assertIn("refused", problem)

    def test_same_server(self):
        """The second address of a server stands by, which is no problem."""
        self.replica("a", "b")
        self.use("a", "b")
        self.pass_time(60)
        self.assertEqual([1], self.counts())
        self.assertIsNone(self.servers.partly_connected())

    def test_nobody(self):
        """While nobody answers each address is named with the reason."""
        self.assertEqual("no address of a server is known", self.servers.not_connected())
        self.use("a", "b")
        problem = self.servers.not_connected()
        self.assertTrue(problem.startswith("not connected: "), problem)
        self.assertIn("a:10262 (", problem)
        self.assertIn("b:10262 (", problem)
        self.assertEqual(2, self.servers.failed_attempts())

    def test_restarted_servers_count(self):
        """When servers begin to say how many they are, their word is taken."""
        self.replica("a", "b", "c")
        self.use("a", "b", "c")
        self.assertEqual(3, len(self.servers._group.clients))
        self.told = 1
        self.cut()
        self.pass_time(5)
        self.assertEqual((1, [1]), (self.servers.desired, self.counts()))
        self.assertEqual(2, len(self.servers._group.clients))

    def test_bad_name(self):
        """A name that cannot be asked for is a failed attempt, not the end of attempts."""
        self.replica("a")

        def secured(host, port):
            raise UnicodeError("label too long")

        self.patch(self.servers._routes, "secured", secured)
        self.use("a")
        self.assertEqual(1, self.servers.failed_attempts())
        self.assertIn("label too long", self.servers.not_connected())

    def test_closed(self):
        """Nothing begins after the end."""
        self.replica("a")
        self.servers.close(Code.GOING_AWAY, "the agent has stopped")
        self.use("a")
        self.pass_time(5)
        self.assertEqual([], self.dialed)
