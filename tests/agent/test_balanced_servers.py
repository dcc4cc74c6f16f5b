"""Which servers an agent is connected to, where all are behind one address."""

from __future__ import annotations

import random
from dataclasses import astuple

from tests.agent.replicas import ReplicaTests
from tests.ops.scrapes import families
from yurttunnel.agent.connection_group import LONGEST_LOOK, URGENT_DELAY
from yurttunnel.agent.servers import METRICS
from yurttunnel.wire.codes import Code


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

    def test_stop_with_a_stream_in_a_session_of_before(self):
        """When the last stream ends in a session that has been succeeded, all end, too."""
        self.pass_time(5)
        near, _ = self.replicas[0].stream()
        self.claim = "host=edge-1&ipv4=192.0.2.7"
        for _ in self.replicas:
            self.servers.claim_anew()
            self.pass_time(10)
        self.servers.drain("the agent is about to stop")
        self.pass_time(10)
        self.assertEqual(4, len(self.servers.sessions()))
        near.transport.abortConnection()
        self.pass_time(1)
        self.assertEqual([], self.servers.sessions())

    def test_misdirected_while_it_stops(self):
        """A session whose connection is lost while all end is found again for its stream's sake."""
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
        self.assertEqual((["made"], b"still here"), (far.told, bytes(far.received)))
        self.assertEqual([0, 0, 0], self.counts())
        self.assertEqual([], self.warnings())

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

    def test_killed_while_it_drains(self):
        """Streams of a server that is killed before they have ended end soon, though others have
        come to its successor first.
        """
        self.pass_time(5)
        leaving = self.replicas[0]
        _, far = leaving.stream()
        leaving.listener.drain("the server is about to stop")
        self.replica("lb")
        self.behind["lb"].remove(leaving)
        self.pass_time(15)
        self.assertEqual((["made"], 4), (far.told, len(self.servers.sessions())))
        self.kill(leaving)
        self.pass_time(3, 0.05)
        self.assertEqual((["made", "lost"], 3), (far.told, len(self.servers.sessions())))

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


class PatientServerTests(ReplicaTests):
    """The same, of servers that wait long for agents that are connected elsewhere."""

    grace = 1000.0

    def test_a_new_server_beside_an_outage(self):
        """Where a client is led to a server that it does not know and gives up its session, the
        callers of that are told once the agent is back with its server.
        """
        self.told = 3
        for _ in range(3):
            self.replica("lb")
        self.use("lb")
        self.pass_time(5)
        ends = [replica.stream() for replica in self.replicas]
        self.told = 4
        self.replica("lb")
        self.cut()
        self.pass_time(10)
        self.assertEqual([1, 1, 1, 1], self.counts())
        self.assertEqual([far.told[-1] for _, far in ends], [near.told[-1] for near, _ in ends])
        self.assertIn("lost", [near.told[-1] for near, _ in ends])


class OutageTestCase(ReplicaTests):
    """The network of an agent is down for most of the time for which its sessions wait."""

    grace = float("inf")
    outage = 20

    def come_back(self, *hosts):
        """Lose all servers, which are behind these addresses, and find them again in time."""
        self.told = 3
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
                self.assertEqual((["made"], []), (near.told, far.reasons))
                near.transport.abortConnection()
            self.pass_time(1)
            self.assertEqual(self.limit or 3, len(self.servers.sessions()))


class OutageTests(OutageTestCase):
    """There are to be sessions with all servers."""

    def test_separate_addresses(self):
        """Each session is looked for where it was, and all are found again."""
        self.come_back("a", "b", "c")

    def test_one_address(self):
        """However long there was no answer, no time is lost over attempts that are led astray."""
        self.come_back("lb", "lb", "lb")

    def test_misdirected_after_a_new_claim(self):
        """A session that ends, since the node has new addresses, is kept while its server lives,
        however often others refuse it.
        """
        self.told = 3
        for _ in range(3):
            self.replica("lb")
        self.use("lb")
        self.pass_time(5)
        near, far = self.replicas[0].stream()
        self.claim = "host=edge-1&ipv4=192.0.2.7"
        for _ in self.replicas:
            self.servers.claim_anew()
            self.pass_time(10)
        self.behind["lb"] = self.replicas[1:]
        self.cut()
        self.pass_time(3, 0.05)
        self.behind["lb"] = self.replicas
        self.pass_time(26)
        near.transport.write(b"still here")
        self.pass_time(1)
        self.assertEqual((["made"], b"still here"), (far.told, bytes(far.received)))


class FewOfThreeOutageTests(OutageTestCase):
    """``--server-connections`` is less than there are servers, each at its own address."""

    limit = 2

    def test_come_back(self):
        """A session of which another server takes the place is found again for its streams."""
        self.come_back("a", "b", "c")

    def test_killed(self):
        """When its server is killed another one takes its place as soon as ever."""
        self.told = 3
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
        """A session that is set aside, as its address answers no more, is found by another one."""
        self.told = 2
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
            self.assertEqual((["made"], b"still here"), (far.told, bytes(far.received)))
            near.transport.abortConnection()
            self.behind = {"a": self.replicas, "b": self.replicas}


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
