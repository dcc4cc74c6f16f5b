"""From a request to a connected socket, or to a failure with its reason."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from twisted.internet import error
from twisted.internet.interfaces import ISystemHandle
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from tests.agent.fakes import FakeLookups, FakeRequest
from yurttunnel.agent.dial_attempts import interleave_families
from yurttunnel.agent.dialed_sockets import CLOSED_SECONDS
from yurttunnel.agent.dialer import Dialer, DialLimits
from yurttunnel.agent.policy import DestinationPolicy, parse_pattern
from yurttunnel.agent.resolver import NodeResolver
from yurttunnel.tunnel.statistics import DIAL_SECONDS_BOUNDS, Durations
from yurttunnel.wire.codes import Code
from yurttunnel.wire.hello import Limits


@implementer(ISystemHandle)
class Socket(StringTransport):
    """A connected socket with the methods that the dialer and the relay use."""

    aborted = False

    def __init__(self) -> None:
        super().__init__()
        self.handle = socket.socket()

    def getHandle(self) -> socket.socket:
        """Return a socket for its options; it is not connected."""
        return self.handle

    def abortConnection(self) -> None:
        """Record the call."""
        self.aborted = True


class DialerTests(SynchronousTestCase):
    """A dialer without a network, whose attempts the test completes."""

    def setUp(self) -> None:
        """Allow its node, a domain and two networks."""
        self.reactor = MemoryReactorClock()
        self.names = FakeLookups()
        self.resolver = NodeResolver(
            self.names,
            {"edge-1": [ip_address("10.0.0.5")], "localhost": [ip_address("127.0.0.1")]},
            max_lookups=2,
        )
        patterns = ["*.example.org", "192.0.2.0/24", "2001:db8::/32"]
        policy = DestinationPolicy(
            "edge-1", [ip_address("10.0.0.5")], [parse_pattern(text) for text in patterns]
        )
        limits = DialLimits(max_pending=3, max_concurrent=2, max_timeout=30.0, max_addresses=4)
        self.durations = Durations(DIAL_SECONDS_BOUNDS)
        self.dialer = Dialer(self.reactor, policy, self.resolver, "edge-1", self.durations, limits)

    def tearDown(self) -> None:
        """Check that nothing remains."""
        self.dialer.stop()
        self.assertEqual(self.reactor.getDelayedCalls(), [], "a timer was left over")

    def ask(self, host: str, port: int = 10250, timeout: float = 10.0) -> FakeRequest:
        """Pass a request to the dialer."""
        request = FakeRequest(host, port, timeout)
        self.dialer.stream_requested(request)
        return request

    def connect(self, index: int = -1) -> Socket:
        """Complete the attempt with a connected socket."""
        connected = self.socket()
        self.reactor.tcpClients[index][2].buildProtocol(None).makeConnection(connected)
        return connected

    def socket(self) -> Socket:
        """Return a socket, which is closed when the test ends."""
        made = Socket()
        self.addCleanup(made.handle.close)
        return made

    def refuse(self, index: int = -1, reason: Exception | None = None) -> None:
        """Fail an attempt."""
        factory = self.reactor.tcpClients[index][2]
        factory.clientConnectionFailed(
            self.reactor.connectors[index], Failure(reason or error.ConnectionRefusedError())
        )

    def attempts(self) -> list[str]:
        """List the addresses that were tried."""
        return [client[0] for client in self.reactor.tcpClients]

    def assert_failed(self, request: FakeRequest, code: Code, *words: str) -> None:
        """Check the failure."""
        self.assertIsNotNone(request.failure)
        assert request.failure is not None
        self.assertEqual(request.failure[0], code, request.failure)
        for word in words:
            self.assertIn(word, request.failure[1])


class AddressTests(DialerTests):
    """Destinations that need no lookup."""

    def test_an_address_is_connected_to_and_joined_to_the_stream(self) -> None:
        """The request is accepted only once the socket is connected; then data flows."""
        request = self.ask("10.0.0.5")
        host, port, _, timeout, _ = self.reactor.tcpClients[0]
        self.assertEqual((host, port, timeout), ("10.0.0.5", 10250, 10.0))
        self.assertFalse(request.answered)
        self.reactor.advance(0.2)
        self.connect()
        stream = request.stream
        assert stream is not None
        self.assertIsNotNone(stream.protocol)
        self.assertEqual(sum(self.durations.buckets), 1)
        self.assertAlmostEqual(self.durations.total_seconds, 0.2)

    def test_the_socket_is_quick_and_probed(self) -> None:
        """The socket has TCP_NODELAY and keepalive: a target whose host has gone is detected even
        on an idle stream.
        """
        self.ask("10.0.0.5")
        handle = self.connect().handle
        self.assertTrue(handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        self.assertTrue(handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    def test_the_ends_of_connections_are_known(self) -> None:
        """The ends of an open connection, and of a recently closed one, are known."""
        self.ask("10.0.0.5")
        connected = self.socket()
        protocol = self.reactor.tcpClients[-1][2].buildProtocol(None)
        protocol.makeConnection(connected)
        sockets = connected.getHost(), connected.getPeer()
        self.assertTrue(self.dialer.sockets.contains(*sockets))
        protocol.connectionLost(Failure(error.ConnectionLost()))
        self.assertTrue(self.dialer.sockets.contains(*sockets))
        self.reactor.advance(CLOSED_SECONDS)
        self.assertFalse(self.dialer.sockets.contains(*sockets))

    def test_bytes_of_the_socket_go_into_the_stream(self) -> None:
        """The joined connection relays."""
        request = self.ask("10.0.0.5")
        protocol = self.reactor.tcpClients[0][2].buildProtocol(None)
        protocol.makeConnection(self.socket())
        protocol.dataReceived(b"220 ready")
        assert request.stream is not None
        self.assertEqual(request.stream.written, [b"220 ready"])

    def test_the_node_is_reached_by_its_own_name_without_a_lookup(self) -> None:
        """The node's name resolves to its address even if no name server knows it."""
        self.ask("EDGE-1.")
        self.assertEqual(self.attempts(), ["10.0.0.5"])
        self.assertEqual(self.names.asked, [])

    def test_what_is_connected_to_is_what_the_policy_saw(self) -> None:
        """A mapped or unspecified address is dialed in its plain form."""
        self.ask("::ffff:10.0.0.5")
        self.ask("0.0.0.0")
        self.assertEqual(self.attempts(), ["10.0.0.5", "127.0.0.1"])

    def test_the_agents_own_maximum_bounds_the_timeout(self) -> None:
        """The agent's own maximum applies, whatever timeout the server requests."""
        self.ask("10.0.0.5", timeout=3600.0)
        self.assertEqual(self.reactor.tcpClients[0][3], 30.0)

    def test_a_request_without_time_left_fails_at_once(self) -> None:
        """A request without time left fails at once, and nothing is dialed."""
        self.assert_failed(self.ask("10.0.0.5", timeout=0.0), Code.TIMEOUT, "10.0.0.5:10250")
        self.assertEqual(self.attempts(), [])

    def test_each_failure_of_the_kernel_has_its_code_and_sentence(self) -> None:
        """Each failure of the kernel has its code, and a text with target, node and reason."""
        for reason, code, words in [
            (error.ConnectionRefusedError(), Code.REFUSED, "connection refused"),
            (error.TimeoutError(), Code.TIMEOUT, "no answer in time"),
            (error.TCPTimedOutError(), Code.TIMEOUT, "no answer in time"),
            (error.NoRouteError(errno.ENETUNREACH), Code.UNREACHABLE, "network is unreachable"),
            (error.ConnectError(errno.EHOSTUNREACH), Code.UNREACHABLE, "no route to host"),
            (error.ConnectError(errno.EPERM), Code.UNREACHABLE, "not permitted"),
            (error.ConnectBindError(errno.EMFILE), Code.OVERLOADED, "too many open files"),
            (error.ConnectError(errno.ENOSPC), Code.OVERLOADED, "no space left"),
            (error.ConnectError(errno.EADDRNOTAVAIL), Code.OVERLOADED, "every local port"),
            (error.ConnectError(), Code.UNREACHABLE, ""),
        ]:
            request = self.ask("10.0.0.5")
            self.refuse(reason=reason)
            assert request.failure is not None
            self.assertEqual(request.failure[0], code, reason)
            self.assertIn("connect 10.0.0.5:10250 from edge-1: ", request.failure[1])
            self.assertIn(words, request.failure[1])

    def test_a_denied_destination_is_not_dialed(self) -> None:
        """A denied destination is not dialed; the error names the flag that would allow it."""
        request = self.ask("10.0.0.6", 22)
        self.assert_failed(request, Code.DENIED, "--allow-destination 10.0.0.6:22 ")
        self.assertEqual(self.attempts(), [])

    def test_a_denied_own_name_is_reported_with_its_addresses(self) -> None:
        """The error of a denied own name has the address that the flag would need."""
        request = self.ask("localhost", 22)
        self.assert_failed(request, Code.DENIED, "localhost:22 leads to 127.0.0.1:22")

    def test_a_destination_that_cannot_be_understood_is_refused(self) -> None:
        """A malformed destination is rejected before the kernel or a resolver sees it."""
        for host, port in [("2130706433", 80), ("a b", 80), ("", 80), ("10.0.0.5", 0)]:
            request = self.ask(host, port)
            assert request.failure is not None
            self.assertEqual(request.failure[0], Code.BAD_DESTINATION)
        self.assertEqual((self.attempts(), self.names.asked), ([], []))


class LimitTests(DialerTests):
    """Limits, and ends caused by others."""

    def test_more_pending_dials_than_the_limit_are_refused(self) -> None:
        """Pending dials above the limit are rejected; one that ends makes room for another."""
        for last in range(3):
            self.assertFalse(self.ask(f"192.0.2.{last}", 80).answered)
        self.assert_failed(self.ask("10.0.0.5"), Code.OVERLOADED, "3 others are")
        self.refuse()
        self.assertFalse(self.ask("10.0.0.5").answered)

    def test_a_burst_to_one_target_is_queued(self) -> None:
        """A burst to one target is served in order, in whatever form the target is spelled; another
        target does not wait.
        """
        requests = [self.ask(host) for host in ("10.0.0.5", "::ffff:10.0.0.5", "10.0.0.5")]
        self.assertEqual(len(self.attempts()), 2)
        self.connect(0)
        self.assertEqual(len(self.attempts()), 3)
        other = self.ask("10.0.0.5", 10255)
        self.assertEqual(len(self.attempts()), 4)
        for index in (1, 2, 3):
            self.connect(index)
        for request in (*requests, other):
            self.assertIsNotNone(request.stream, request.failure)

    def test_a_canceled_dial_makes_room(self) -> None:
        """A cancelled dial makes room for the next; one that was waiting is never dialed."""
        first, _, third = [self.ask("10.0.0.5") for _ in range(3)]
        assert first.cancel is not None
        assert third.cancel is not None
        third.cancel()
        first.cancel()
        self.assertEqual(len(self.attempts()), 2)
        self.ask("10.0.0.5")
        self.assertEqual(len(self.attempts()), 3)

    def test_a_queued_name_has_its_own_timeout(self) -> None:
        """A dial that waits for its turn, and then for a lookup, times out once, for the lookup."""
        first, *_ = [self.ask("db.example.org", timeout=8.0) for _ in range(2)]
        third = self.ask("db.example.org", timeout=3.0)
        assert first.cancel is not None
        first.cancel()
        self.reactor.advance(3.0)
        self.assert_failed(third, Code.TIMEOUT, "the name servers did not answer")

    def test_a_dial_waits_no_longer_than_its_time(self) -> None:
        """A dial waits no longer than its timeout, which includes the wait for its turn; the error
        says what it waited for.
        """
        self.ask("10.0.0.5", timeout=8.0)
        self.ask("10.0.0.5", timeout=8.0)
        waiting = self.ask("10.0.0.5", timeout=3.0)
        self.reactor.advance(3.0)
        self.assert_failed(waiting, Code.TIMEOUT, "not answered 2 earlier dials in time")
        patient = self.ask("10.0.0.5", timeout=8.0)
        self.reactor.advance(2.0)
        self.refuse(0)
        self.assertEqual(self.reactor.tcpClients[-1][3], 6.0)
        self.assertFalse(patient.answered)

    def test_a_silent_target_leaves_room_for_others(self) -> None:
        """If there is no room, the newest waiting dial of a silent target is evicted, but not for
        that target itself.
        """
        limits = DialLimits(max_pending=4, max_concurrent=2)
        self.dialer.limits = limits
        silent = [self.ask("10.0.0.5") for _ in range(4)]
        self.assert_failed(self.ask("10.0.0.5"), Code.OVERLOADED, "4 others are in progress")
        other = self.ask("10.0.0.5", 10255)
        self.assertEqual(len(self.attempts()), 3)
        self.assertFalse(other.answered)
        self.assert_failed(silent[3], Code.OVERLOADED, "4 others are in progress")
        self.assertFalse(any(request.answered for request in silent[:3]))
        # Now the two have three and one; one more each is fair, and then none is evicted.
        self.ask("10.0.0.5", 10255)
        self.assertTrue(silent[2].answered)
        self.assert_failed(self.ask("10.0.0.5", 10255), Code.OVERLOADED)

    def test_a_burst_that_fails_at_once_does_not_nest(self) -> None:
        """Dials that fail at once, however many wait, do not recurse."""
        self.dialer.stop()
        self.dialer = Dialer(
            self.reactor, self.dialer.policy, self.resolver, "edge-1", self.durations
        )
        requests = [self.ask("10.0.0.5") for _ in range(1000)]

        def raises(*arguments: object) -> None:
            raise OSError(errno.ENODEV, "No such device")

        self.reactor.connectTCP = raises
        self.refuse(0)
        self.assertEqual(751, sum(request.answered for request in requests))

    def test_the_share_of_one_target_is_a_quarter(self) -> None:
        """As many dials as a session has streams may be pending, a quarter of them per target."""
        limits = DialLimits()
        self.assertEqual(Limits().max_streams, limits.max_pending)
        self.assertEqual(limits.max_pending, 4 * limits.max_concurrent)

    def test_a_caller_that_left_at_once_is_not_dialed_for(self) -> None:
        """Nothing is dialed for a caller that has left already, and its place is free."""
        request = FakeRequest("10.0.0.5", 10250)
        request.on_cancel = lambda callback: callback()
        self.dialer.stream_requested(request)
        self.assertEqual(self.attempts(), [])
        self.assertFalse(request.answered)

    def test_a_cancelled_request_stops_its_attempt_and_gets_no_answer(self) -> None:
        """A late result of a cancelled attempt changes nothing, and a late socket is aborted."""
        request = self.ask("10.0.0.5")
        assert request.cancel is not None
        request.cancel()
        self.assertTrue(self.reactor.connectors[0].stoppedConnecting)
        self.assertTrue(self.connect().aborted)
        self.refuse(reason=error.UserError())
        request.cancel()
        self.assertFalse(request.answered)

    def test_stopping_ends_every_dial_and_refuses_new_ones(self) -> None:
        """Stopping ends attempts and lookups, and rejects new dials."""
        dialing = self.ask("10.0.0.5")
        looking_up = self.ask("db.example.org")
        self.dialer.stop()
        late = self.ask("10.0.0.5")
        for request in (dialing, looking_up, late):
            assert request.failure is not None
            self.assertEqual(request.failure[0], Code.GOING_AWAY)
        self.assertTrue(self.reactor.connectors[0].stoppedConnecting)
        self.names.answer("192.0.2.1")
        self.assertEqual(len(self.attempts()), 1)

    def test_a_defect_fails_the_one_request(self) -> None:
        """A defect fails one request, without an exception in the session and its other streams."""
        self.resolver.own_addresses = lambda name: 1 / 0  # type: ignore[method-assign,assignment,return-value] # a defect
        self.assert_failed(self.ask("db.example.org"), Code.INTERNAL, "internal error")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)


class NameTests(DialerTests):
    """Destinations that are resolved."""

    def test_addresses_of_a_name_are_tried_in_order(self) -> None:
        """A refused connection moves on at once; the first connected socket wins."""
        request = self.ask("db.example.org")
        self.assertEqual(self.names.asked[0][0], "db.example.org")
        self.names.answer("192.0.2.1", "192.0.2.2")
        self.assertEqual(self.attempts(), ["192.0.2.1"])
        self.refuse(0)
        self.assertEqual(self.attempts(), ["192.0.2.1", "192.0.2.2"])
        self.connect(1)
        self.assertIsNotNone(request.stream)

    def test_a_slow_address_gets_company_after_250_ms(self) -> None:
        """After 250 ms the next address is tried concurrently, with alternating families; the
        losers are stopped (RFC 8305).
        """
        request = self.ask("db.example.org")
        self.names.answer("2001:db8::1", "2001:db8::2", "192.0.2.1")
        self.reactor.advance(0.249)
        self.assertEqual(self.attempts(), ["2001:db8::1"])
        self.reactor.advance(0.001)
        self.assertEqual(self.attempts(), ["2001:db8::1", "192.0.2.1"])
        self.reactor.advance(0.25)
        self.assertEqual(self.attempts(), ["2001:db8::1", "192.0.2.1", "2001:db8::2"])
        self.connect(1)
        self.assertIsNotNone(request.stream)
        stopped = [connector.stoppedConnecting for connector in self.reactor.connectors]
        self.assertEqual(stopped, [True, False, True])
        self.assertTrue(self.connect(0).aborted)

    def test_every_attempt_ends_with_the_dial(self) -> None:
        """Lookups and earlier attempts use up the time of later ones."""
        request = self.ask("db.example.org", timeout=1.0)
        self.reactor.advance(0.5)
        self.names.answer("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")
        self.reactor.advance(0.25)
        self.assertEqual([client[3] for client in self.reactor.tcpClients], [0.5, 0.25])
        self.reactor.rightNow += 0.25
        self.refuse(0, error.TimeoutError())
        self.refuse(1, error.TimeoutError())
        self.assert_failed(request, Code.TIMEOUT)
        self.assertEqual(len(self.attempts()), 2)

    def test_a_response_is_reported_before_a_timeout(self) -> None:
        """The text has every address, the code is the most specific one."""
        request = self.ask("db.example.org")
        self.names.answer("192.0.2.1", "192.0.2.2")
        self.refuse(0, error.ConnectionRefusedError())
        self.refuse(1, error.TimeoutError())
        self.assert_failed(request, Code.REFUSED, "192.0.2.1: connection refused", "192.0.2.2: no")

    def test_no_more_addresses_are_tried_when_descriptors_run_out(self) -> None:
        """If descriptors run out, no more addresses are tried: the next would need one, too."""
        request = self.ask("db.example.org")
        self.names.answer("192.0.2.1", "192.0.2.2")
        self.refuse(0, error.ConnectBindError(errno.EMFILE))
        self.assert_failed(request, Code.OVERLOADED)
        self.assertEqual(len(self.attempts()), 1)

    def test_at_most_the_limit_of_addresses_is_tried(self) -> None:
        """A name with hundreds of addresses does not use hundreds of sockets."""
        request = self.ask("db.example.org")
        self.names.answer(*(f"192.0.2.{last}" for last in range(1, 100)))
        for index in range(4):
            self.refuse(index)
        self.assert_failed(request, Code.REFUSED)
        self.assertEqual(len(self.attempts()), 4)

    def test_a_forbidden_address_of_a_name_is_skipped(self) -> None:
        """A name server cannot direct the agent to its own loopback."""
        request = self.ask("db.example.org", 22)
        self.names.answer("127.0.0.1", "192.0.2.1")
        self.assertEqual(self.attempts(), ["192.0.2.1"])
        self.refuse()
        self.assertTrue(request.answered)
        denied = self.ask("db.example.org", 22)
        self.names.answer("127.0.0.1")
        self.assert_failed(denied, Code.DENIED, "db.example.org:22 leads to 127.0.0.1:22")

    def test_a_name_without_addresses_fails(self) -> None:
        """A name without addresses fails with its own code."""
        request = self.ask("db.example.org")
        self.names.answer()
        self.assert_failed(request, Code.NAME_NOT_RESOLVED, "connect db.example.org:10250 from")

    def test_a_name_that_no_pattern_names_is_not_looked_up(self) -> None:
        """A name without a pattern is not resolved: queries can exfiltrate data."""
        self.assert_failed(self.ask("secret.example.net"), Code.DENIED, "secret.example.net:10250")
        self.assertEqual(self.names.asked, [])

    def test_silent_name_servers_use_up_the_deadline_only(self) -> None:
        """A late response of name servers changes nothing."""
        request = self.ask("db.example.org", timeout=5.0)
        self.reactor.advance(4.9)
        self.assertFalse(request.answered)
        self.reactor.advance(0.1)
        self.assert_failed(request, Code.TIMEOUT, "name servers")
        self.names.answer("192.0.2.1")
        self.assertEqual(self.attempts(), [])

    def test_concurrent_dials_share_a_lookup(self) -> None:
        """Concurrent lookups of one name are shared; a cancelled one does not affect the others."""
        limits = DialLimits(max_concurrent=10, max_pending=10)
        self.dialer.stop()
        self.dialer = Dialer(
            self.reactor, self.dialer.policy, self.resolver, "edge-1", self.durations, limits
        )
        requests = [self.ask("db.example.org") for _ in range(5)]
        assert requests[0].cancel is not None
        requests[0].cancel()
        self.assertEqual(len(self.names.asked), 1)
        self.names.answer("192.0.2.1")
        self.assertEqual(self.attempts(), ["192.0.2.1"] * 4)
        self.ask("db.example.org")
        self.assertEqual(len(self.names.asked), 1)

    def test_a_lookup_that_hangs_is_shared_with_those_who_wait_only(self) -> None:
        """A hanging lookup is shared with current waiters only; its late result is ignored."""
        request = self.ask("db.example.org", timeout=5.0)
        self.reactor.advance(5.0)
        self.assert_failed(request, Code.TIMEOUT, "name servers")
        again = self.ask("db.example.org", timeout=5.0)
        self.assertEqual(len(self.names.asked), 2)
        self.names.answer("192.0.2.1")
        self.assertFalse(self.attempts())
        self.ask("db.example.org", timeout=5.0)
        self.names.answer("192.0.2.2")
        self.assertEqual(self.attempts(), ["192.0.2.2"] * 2)
        self.assertFalse(again.answered)

    def test_lookups_that_never_end_are_bounded(self) -> None:
        """A lookup counts until it ends, even if nobody waits for it any longer."""
        for _ in range(2):
            request = self.ask("db.example.org")
            assert request.cancel is not None
            request.cancel()
        self.assert_failed(self.ask("db.example.org"), Code.OVERLOADED, "name lookups")
        self.names.answer("192.0.2.1")
        self.assertFalse(self.ask("db.example.org").answered)
        self.assertEqual(self.resolver.lookups, 2)

    def test_a_failed_lookup_is_reported(self) -> None:
        """A lookup that the system cannot make fails with the reason, and its place is free."""
        request, other = self.ask("db.example.org"), self.ask("db.example.org")
        self.names.fail(OSError(errno.EMFILE, "Too many open files"))
        for each in (request, other):
            self.assert_failed(each, Code.OVERLOADED, "not be looked up: Too many open files")
        self.assertEqual(self.resolver.lookups, 0)

    def test_a_zone_that_is_no_interface_is_unreachable(self) -> None:
        """A zone without an interface makes the reactor raise before any attempt: unreachable."""

        def raises(*arguments: object) -> None:
            raise OSError(errno.ENODEV, "No such device")

        self.reactor.connectTCP = raises
        self.assert_failed(self.ask("10.0.0.5"), Code.UNREACHABLE, "no such device")


class InterleaveTests(SynchronousTestCase):
    """The order of a name's addresses."""

    def test_families_alternate(self) -> None:
        """The order within a family is kept."""
        texts = ["fd00::1", "fd00::2", "fd00::3", "10.0.0.1"]
        ordered = interleave_families([ip_address(text) for text in texts])
        self.assertEqual(
            [str(address) for address in ordered], ["fd00::1", "10.0.0.1", "fd00::2", "fd00::3"]
        )
