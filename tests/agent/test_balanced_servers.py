"""The servers that an agent connects to if all are behind one address."""

from __future__ import annotations

import random
from dataclasses import astuple

from twisted.internet.task import deferLater

from tests.agent.replicas import Address, ReplicaTests
from tests.ops.scrapes import families
from yurttunnel.agent.connection_group import MAX_PROBE_DELAY, REPLACED_DELAY, URGENT_DELAY
from yurttunnel.agent.servers import METRICS
from yurttunnel.wire.codes import Code


class BalancerTests(ReplicaTests):
    """All servers are behind one address."""

    def setUp(self):
        """Start three servers and an agent, and connect it."""
        super().setUp()
        self.announced = 3
        for _ in range(3):
            self.replica("lb")
        self.use("lb")

    def test_all(self):
        """There is soon a session with each server, without failures."""
        self.pass_time(5)
        self.assertEqual([1, 1, 1], self.counts())
        self.assertEqual((3, 3), (self.servers.connected, self.servers.desired))
        self.assertEqual((0, []), (self.servers.failed_attempts(), self.warnings))
        self.assertIsNone(self.servers.problem())
        self.assertIsNone(self.servers.warning())

    def test_names(self):
        """Sessions behind one address have distinct names."""
        self.pass_time(5)
        names = {session.description.address for session in self.servers.sessions()}
        self.assertEqual({"lb:10262", "lb:10262 (2)", "lb:10262 (3)"}, names)

    def test_quiet(self):
        """Once all are connected, the address is dialed only every few minutes."""
        self.pass_time(5)
        before = len(self.dialed)
        self.pass_time(10 * MAX_PROBE_DELAY, 5)
        self.assertTrue(10 <= len(self.dialed) - before <= 20, len(self.dialed) - before)
        self.assertEqual([1, 1, 1], self.counts())

    def test_partly(self):
        """While servers are missing, the agent reports how many are connected."""
        self.kill(self.replicas[0])
        self.assertEqual("connected to 2 of 3 servers", self.servers.warning().partition(";")[0])

    def test_one_more_while_another_agent_has_a_session(self):
        """A client that waits because another agent has its session delays no other client."""
        self.pass_time(5)
        self.replicas[0].sessions()[0].close(Code.REPLACED, "another")
        self.settle()
        self.announced = 4
        added = self.replica("lb")
        for replica in self.replicas[1:3]:
            replica.listener.replicas_changed()
        self.pass_time(REPLACED_DELAY / 2 - 1)
        self.assertEqual([0, 1, 1, 1], self.counts())
        self.assertEqual(1, len(added.sessions()))

    def test_one_more(self):
        """A server that none has reported is found by looking."""
        self.pass_time(5)
        self.announced = 4
        self.replica("lb")
        self.pass_time(8 * MAX_PROBE_DELAY, 5)
        self.assertEqual([1, 1, 1, 1], self.counts())

    def test_stop_with_a_stream_at_one_server(self):
        """While the agent stops, all servers can reach the node until the last stream has ended,
        and then none.
        """
        self.pass_time(5)
        near, _ = self.replicas[0].stream()
        self.servers.drain("the agent is about to stop")
        self.pass_time(10)
        late, _ = self.replicas[1].stream()
        near.transport.abortConnection()
        self.pass_time(1)
        self.assertEqual(3, len(self.servers.sessions()))
        self.assertEqual(["made"], late.events)
        late.transport.abortConnection()
        self.pass_time(1)
        self.assertEqual([], self.servers.sessions())

    def test_stop_with_a_stream_in_a_session_of_before(self):
        """A last stream that ends in a succeeded session also ends all sessions."""
        self.pass_time(5)
        near, _ = self.replicas[0].stream()
        self.identifiers = "host=edge-1&ipv4=192.0.2.7"
        for _ in self.replicas:
            self.servers.update_identifiers()
            self.pass_time(10)
        self.servers.drain("the agent is about to stop")
        self.pass_time(10)
        self.assertEqual(4, len(self.servers.sessions()))
        near.transport.abortConnection()
        self.pass_time(1)
        self.assertEqual([], self.servers.sessions())

    def test_misdirected_while_it_stops(self):
        """A session that loses its connection in the drain is found again for its stream."""
        self.pass_time(5)
        near, far = self.replicas[0].stream()
        self.servers.drain("the agent is about to stop")
        self.pass_time(1)
        self.behind["lb"] = self.replicas[1:]
        next(link for link in self.links if link.replica is self.replicas[0]).cut()
        self.pass_time(0.5, 0.05)
        self.assertGreater(len(self.dialed), 3)
        self.behind["lb"] = self.replicas
        self.pass_time(3, 0.05)
        near.transport.write(b"still here")
        self.pass_time(1)
        self.assertEqual((["made"], b"still here"), (far.events, bytes(far.received)))
        self.assertEqual([0, 0, 0], self.counts())
        self.assertEqual([], self.warnings)

    def test_one_fewer(self):
        """If a server is gone for good, the address is dialed less and less often."""
        self.pass_time(5)
        self.kill(self.replicas[0])
        self.pass_time(600, 1)
        before = len(self.dialed)
        self.pass_time(600, 1)
        self.assertLessEqual(len(self.dialed) - before, 20)
        self.assertEqual(2, self.servers.connected)
        self.assertEqual([], [text for text in self.warnings if "running twice" in text])

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
        """A session to be resumed waits briefly after an attempt that reached another server."""
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
        """An unresponsive address does not keep clients from one that leads to more servers."""
        self.use("dead", "lb")
        self.announced = 4
        self.replica("lb")
        self.pass_time(60)
        self.assertEqual([1, 1, 1, 1], self.counts())

    def test_rolling_restart(self):
        """A draining server is replaced by the next one while its streams end."""
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
            self.assertEqual((["made"], b"still here"), (near.events, bytes(far.received)))
            near.transport.abortConnection()
            self.pass_time(2)
            self.kill(old)
        self.assertEqual([0, 0, 0, 1, 1, 1], self.counts())

    def test_killed_while_it_drains(self):
        """Streams of a server that is killed in its drain end soon, although other clients have
        reached its successor first.
        """
        self.pass_time(5)
        leaving = self.replicas[0]
        _, far = leaving.stream()
        leaving.listener.drain("the server is about to stop")
        self.replica("lb")
        self.behind["lb"].remove(leaving)
        self.pass_time(15)
        self.assertEqual((["made"], 4), (far.events, len(self.servers.sessions())))
        self.kill(leaving)
        self.pass_time(3, 0.05)
        self.assertEqual((["made", "lost"], 3), (far.events, len(self.servers.sessions())))

    def test_other_agent(self):
        """An agent whose session another agent of the node has taken over does not fight for it."""
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
        self.assertTrue(any("running twice" in text for text in self.warnings))

    def test_figures(self):
        """The metrics show how many servers are wanted and connected."""
        self.pass_time(5)
        self.assertEqual((3, 3, 1), astuple(self.servers.stats())[:3])
        self.pass_time(MAX_PROBE_DELAY, 5)
        stats = self.servers.stats()
        self.assertGreater(stats.already_connected, 0)
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
                ("yurttunnel_agent_already_connected_total",): stats.already_connected,
            },
            samples,
        )

    def test_identifiers(self):
        """Servers receive changed identifiers one by one; streams continue to their ends."""
        self.pass_time(5)
        ends = [replica.stream() for replica in self.replicas]
        self.servers.update_identifiers()
        self.pass_time(3)
        self.assertEqual(0, sum(session.draining for session in self.servers.sessions()))
        self.identifiers = "host=edge-1&ipv4=192.0.2.7"
        for events in range(1, 4):
            self.servers.update_identifiers()
            self.assertEqual(2, self.servers.connected)
            self.pass_time(3)
            self.assertEqual(3, self.servers.connected)
            claims = [
                len(session.identifiers.addresses)
                for replica in self.replicas
                for session in [replica.registry.find("edge-1")]
            ]
            self.assertEqual(events, sum(claims))
        for near, far in ends:
            near.transport.write(b"still here")
            self.settle()
            self.assertEqual((["made"], b"still here"), (near.events, bytes(far.received)))
        sessions = len(self.servers.sessions())
        self.servers.update_identifiers()
        self.pass_time(3)
        self.assertEqual(sessions, len(self.servers.sessions()))

    def test_stop(self):
        """A drain ends all sessions, and stops looking for servers."""
        self.pass_time(5)
        self.servers.drain("the agent is about to stop")
        self.pass_time(3)
        self.assertEqual([], self.servers.sessions())
        dialed = len(self.dialed)
        self.pass_time(2 * MAX_PROBE_DELAY, 5)
        self.assertEqual(dialed, len(self.dialed))


class LongGraceServerTests(ReplicaTests):
    """The same with servers that wait long for agents connected elsewhere."""

    grace = 1000.0

    def test_a_new_server_beside_an_outage(self):
        """If a client reaches an unknown server and gives up its session, the callers of that
        session get an error once the agent is back at its server.
        """
        self.announced = 3
        for _ in range(3):
            self.replica("lb")
        self.use("lb")
        self.pass_time(5)
        ends = [replica.stream() for replica in self.replicas]
        self.announced = 4
        self.replica("lb")
        self.cut()
        self.pass_time(10)
        self.assertEqual([1, 1, 1, 1], self.counts())
        self.assertEqual([far.events[-1] for _, far in ends], [near.events[-1] for near, _ in ends])
        self.assertIn("lost", [near.events[-1] for near, _ in ends])


class OutageTestCase(ReplicaTests):
    """An agent's network is down for most of the sessions' resume window."""

    grace = float("inf")
    outage = 20

    def come_back(self, *hosts):
        """Lose all servers, which are behind these addresses, and find them again in time."""
        self.announced = 3
        for host in hosts:
            self.replica(host)
        for seed in range(5):
            random.seed(seed)
            self.use(*dict.fromkeys(hosts))
            self.pass_time(10)
            ends = [replica.stream() for replica in self.replicas if replica.sessions()]
            self.assertEqual(self.limit or 3, len(ends))
            for replica in self.replicas:
                replica.up = False
            self.cut()
            self.pass_time(self.outage)
            for replica in self.replicas:
                replica.up = True
            self.pass_time(9)
            self.assertEqual(self.limit or 3, sum(self.counts()))
            self.assertEqual(self.limit or 3, self.servers.connected)
            for near, far in ends:
                self.assertEqual((["made"], []), (near.events, far.reasons))
                near.transport.abortConnection()
            self.pass_time(1)
            self.assertEqual(self.limit or 3, len(self.servers.sessions()))


class OutageTests(OutageTestCase):
    """There are sessions with all servers."""

    def test_separate_addresses(self):
        """Each session is looked for at its previous address, and all are found again."""
        self.come_back("a", "b", "c")

    def test_one_address(self):
        """However long the outage was, no time is lost over attempts that reach other servers."""
        self.come_back("lb", "lb", "lb")

    def test_misdirected_after_new_identifiers(self):
        """A session that drains because the node has new addresses is kept while its server is
        alive, however often other servers reject it.
        """
        self.announced = 3
        for _ in range(3):
            self.replica("lb")
        self.use("lb")
        self.pass_time(5)
        near, far = self.replicas[0].stream()
        self.identifiers = "host=edge-1&ipv4=192.0.2.7"
        for _ in self.replicas:
            self.servers.update_identifiers()
            self.pass_time(10)
        self.behind["lb"] = self.replicas[1:]
        self.cut()
        self.pass_time(3, 0.05)
        self.behind["lb"] = self.replicas
        self.pass_time(26)
        near.transport.write(b"still here")
        self.pass_time(1)
        self.assertEqual((["made"], b"still here"), (far.events, bytes(far.received)))


class FewOfThreeOutageTests(OutageTestCase):
    """``--server-connections`` is less than the number of servers, each at its own address."""

    limit = 2

    def test_come_back(self):
        """A session that was replaced by one with another server is found again for its streams."""
        self.come_back("a", "b", "c")

    def test_killed(self):
        """If its server is killed, another one takes its place as soon as possible."""
        self.announced = 3
        for host in ("a", "b", "c"):
            self.replica(host)
        self.use("a", "b", "c")
        self.pass_time(1)
        killed = next(replica for replica in self.replicas if replica.sessions())
        _, far = killed.stream()
        self.kill(killed)
        self.pass_time(2)
        self.assertEqual(self.limit, self.servers.connected)
        self.pass_time(31)
        self.assertEqual(Code.SESSION_LOST, far.reasons[0].value.code)
        self.assertEqual(self.limit, len(self.servers.sessions()))


class OneOfThreeOutageTests(FewOfThreeOutageTests):
    """The same with a single session."""

    limit = 1

    def test_another_address_of_the_server(self):
        """A session set aside because its address does not respond is found at another one."""
        self.announced = 2
        for _ in range(2):
            self.replica("a", "b")
        self.use("a", "b")
        for seed in range(4):
            random.seed(seed)
            self.pass_time(10)
            near, far = next(each for each in self.replicas if each.sessions()).stream()
            self.behind[self.dialed[-1]] = []
            self.cut()
            self.pass_time(20)
            near.transport.write(b"still here")
            self.pass_time(1)
            self.assertEqual((["made"], b"still here"), (far.events, bytes(far.received)))
            near.transport.abortConnection()
            self.behind = {"a": self.replicas, "b": self.replicas}


class OneOfTwoBalancedTests(ReplicaTests):
    """``--server-connections`` is 1, and two servers are behind one address."""

    limit = 1

    def setUp(self):
        """Start both servers behind a random balancer, and connect the agent to one of them."""
        super().setUp()
        self.turns = iter(lambda: random.randrange(2), None)
        self.announced = 2
        for _ in range(2):
            self.replica("lb")
        self.use("lb")
        self.pass_time(1)

    def test_misdirected(self):
        """A session finds its server again, with its streams, after attempts that reached the other
        one.
        """
        near, far = next(each for each in self.replicas if each.sessions()).stream()
        for number in range(1, 11):
            self.cut()
            near.transport.write(b"x")
            self.pass_time(2, 0.05)
            self.assertEqual((b"x" * number, []), (bytes(far.received), far.reasons))
            self.assertEqual(1, sum(self.counts()))

    def test_misdirected_unnoticed(self):
        """Attempts that reach the other server do not make it a route to the node."""
        owner = next(each for each in self.replicas if each.sessions())
        other = next(each for each in self.replicas if each is not owner)
        owner.stream()
        changes = []
        other.registry.on_direct_changed.append(changes.append)
        dialed = len(self.dialed)
        for _ in range(10):
            self.cut()
            self.pass_time(2, 0.05)
        self.assertGreater(len(self.dialed) - dialed, 12)
        self.assertEqual([], changes)

    def test_refused_in_between(self):
        """The same if the session was set aside because no server was reached in between."""
        near, far = next(each for each in self.replicas if each.sessions()).stream()
        for number in range(1, 11):
            for replica in self.replicas:
                replica.up = False
            self.cut()
            self.pass_time(0.5, 0.05)
            for replica in self.replicas:
                replica.up = True
            near.transport.write(b"x")
            self.pass_time(3, 0.05)
            self.assertEqual((b"x" * number, []), (bytes(far.received), far.reasons))
            self.assertEqual(1, self.servers.connected)

    def test_killed(self):
        """If its server is gone, the agent starts a session with the other one soon."""
        killed = next(each for each in self.replicas if each.sessions())
        _, far = killed.stream()
        self.kill(killed)
        self.pass_time(2, 0.05)
        self.assertEqual((1, []), (self.servers.connected, far.reasons))
        self.pass_time(31)
        self.assertEqual(Code.SESSION_LOST, far.reasons[0].value.code)
        self.assertEqual(1, len(self.servers.sessions()))

    def test_killed_on_a_slow_link(self):
        """The same if each attempt takes long."""
        killed = next(each for each in self.replicas if each.sessions())
        killed.stream()
        connect = Address.connect
        self.patch(Address, "connect", lambda *given: deferLater(self.clock, 0.3, connect, *given))
        self.kill(killed)
        self.pass_time(2.5, 0.05)
        self.assertEqual(1, self.servers.connected)

    def test_misdirected_without_streams(self):
        """A session without streams is not looked for: the first server that is reached serves."""
        dialed = len(self.dialed)
        self.cut()
        self.pass_time(2, 0.05)
        self.assertEqual((dialed + 1, 1), (len(self.dialed), self.servers.connected))

    def test_misdirected_for_long(self):
        """If only the other server is reached for long, a session with that serves the node, and
        the previous one is found again for its streams.
        """
        found = next(each for each in self.replicas if each.sessions())
        near, far = found.stream()
        self.behind["lb"] = [each for each in self.replicas if each is not found]
        self.cut()
        self.pass_time(3, 0.05)
        self.assertEqual(1, self.servers.connected)
        self.behind["lb"] = self.replicas
        near.transport.write(b"x")
        self.pass_time(20)
        self.assertEqual((b"x", []), (bytes(far.received), far.reasons))


class TogetherTests(ReplicaTests):
    """Servers that start together behind one address, and become known one after the other."""

    def alone(self):
        """Connect an agent to the only server that is known so far."""
        self.announced = 1
        first = self.replica("lb")
        self.use("lb")
        self.pass_time(10)
        self.assertEqual(([1], None), (self.counts(), self.servers.warning()))
        return first

    def test_number_changes_meanwhile(self):
        """Each server is found soon after agents receive the new number; until then the missing
        ones are reported.
        """
        first = self.alone()
        for servers in (2, 3, 4):
            self.replica("lb")
            self.announced = servers
            first.listener.replicas_changed()
            self.settle()
            self.assertEqual(
                f"connected to {servers - 1} of {servers} servers", self.servers.warning()
            )
            self.pass_time(20)
            self.assertEqual([1] * servers, self.counts())
            self.assertIsNone(self.servers.warning())

    def test_fewer_servers_announced(self):
        """A lower number starts no search, and ends no session."""
        first = self.alone()
        self.replica("lb")
        self.announced = 2
        first.listener.replicas_changed()
        self.pass_time(20)
        before = len(self.dialed)
        self.announced = 1
        first.listener.replicas_changed()
        self.pass_time(60)
        self.assertEqual(([1, 1], before), (self.counts(), len(self.dialed)))

    def test_all_agents_are_notified_at_once(self):
        """Agents that receive a number at once spread their attempts over some seconds."""
        bounds = []
        first = self.alone()
        for _ in range(2):
            self.replica("lb")
        self.announced = 3
        self.patch(random, "uniform", lambda low, high: bounds.append(high) or high)
        before = len(self.dialed)
        first.listener.replicas_changed()
        self.pass_time(URGENT_DELAY - 0.5)
        self.assertEqual((before, {URGENT_DELAY}), (len(self.dialed), set(bounds)))
        self.pass_time(20)
        self.assertEqual([1, 1, 1], self.counts())

    def test_the_same_number_is_announced_once(self):
        """An unchanged number is sent only once, whatever makes the server count again."""
        first = self.alone()
        events = []
        first.listener.replicas_changed()
        self.settle()
        (session,) = self.servers.sessions()
        session.on_servers.append(events.append)
        for self.announced in (1, 1, 2, 2, 2, None, 2):
            first.listener.replicas_changed()
            self.settle()
        self.assertEqual([2], events)

    def test_unknown_number(self):
        """With an unknown number as many servers are connected as expected, and the agent does not
        report that these are all.
        """
        for _ in range(2):
            first = self.replica("lb")
        self.use("lb")
        self.pass_time(20)
        self.assertEqual([1, 1], self.counts())
        self.assertIsNone(self.servers.problem())
        self.assertIn("the total number of servers is not known", self.servers.warning())
        self.announced = 2
        first.listener.replicas_changed()
        self.settle()
        self.assertIsNone(self.servers.warning())
