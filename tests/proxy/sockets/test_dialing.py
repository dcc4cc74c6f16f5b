"""Tests of clients whose endpoints refuse, are silent, or are this proxy itself."""

from __future__ import annotations

import errno
import select
import socket
from ipaddress import ip_address
from typing import Any
from unittest import mock

from twisted.internet.error import ConnectionLost
from twisted.logger import LogLevel, capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.descriptors import no_descriptor_left
from tests.proxy.sockets.lab import LOOPBACK, TcpLab, refusing, service_of
from yurttunnel.proxy.sockets.dialer import TcpDialer
from yurttunnel.proxy.sockets.dialing import MAX_REFUSALS, PLAN
from yurttunnel.proxy.sockets.listener import PAUSE_SECONDS
from yurttunnel.proxy.sockets.pacing import pacing
from yurttunnel.proxy.sockets.ports import PortAllocator
from yurttunnel.proxy.sockets.relay import Relay
from yurttunnel.proxy.state.virtual_services import Endpoint

STEPS = sum(PLAN)
"""The duration of the whole plan in seconds."""

_MOST = 4.0
"""Seconds within which a client without an endpoint is reset."""


class DialingTests(SynchronousTestCase):
    """Every client gets an endpoint as long as there is one."""

    timeout = 60

    def setUp(self) -> None:
        """Start with nothing open."""
        self.lab = TcpLab(self)
        self.until = self.lab.until
        self.dialed: list[Endpoint] = []
        real = TcpDialer.dial

        def dial(dialer: TcpDialer, endpoint: Endpoint) -> socket.socket:
            self.dialed.append(endpoint)
            return real(dialer, endpoint)

        self.patch(TcpDialer, "dial", dial)

    def assert_reset(self, opened, client) -> None:
        """The client was reset, and nothing of it remains."""
        self.until(lambda: client.read().reset)
        self.assertEqual(opened.stats().failed, 1)
        self.assertEqual(opened.stats().active, 0)
        self.assertEqual(self.lab.count.used, 0)

    def warnings_of(self, events) -> list[str]:
        """Return the logged warnings."""
        return [
            event["log_format"].format(**event)
            for event in events
            if event["log_level"] is LogLevel.warn
        ]

    def test_two_of_three_refuse_and_the_third_takes_every_client_at_once(self) -> None:
        """There is no delay; both failures are reported with their reason."""
        for version in (4, 6):
            alive = self.lab.backend(version)
            dead = [self.lab.refusing(version), self.lab.refusing(version)]
            opened, picker = self.lab.open(*dead, alive.endpoint, version=version)
            for _ in range(20):
                client, server = self.lab.join(opened, alive, version)
                client.socket.send(b"hello")
                self.until(lambda server=server: server.read().received == b"hello")
            self.assertEqual(self.lab.reactor.seconds(), 0)
            self.assertEqual(opened.stats().failed, 0)
            self.assertEqual(picker.failures[:2], [(one, "Connection refused") for one in dead])
            self.assertEqual(picker.stand, [alive.endpoint] * 20)
            self.assertEqual(picker.counted, 20)

    def test_a_silent_one_is_left_after_the_first_step(self) -> None:
        """With two silent ones after the second step, 0.75 s; others are not delayed meanwhile."""
        holes = [self.lab.black_hole(), self.lab.black_hole()]
        alive = self.lab.backend()
        opened, picker = self.lab.open(*(hole.endpoint for hole in holes), alive.endpoint)
        client = self.lab.client(opened)
        client.socket.send(b"hello")
        for hole in holes:
            self.until(lambda hole=hole: self.dialed[-1:] == [hole.endpoint])
            picker.endpoints.reverse()
            self.lab.join(opened, alive)
            picker.endpoints.reverse()
            self.lab.reactor.advance(PLAN[holes.index(hole)])
        server = self.lab.accepted(alive)
        self.until(lambda: server.read().received == b"hello")
        self.assertEqual(self.lab.reactor.seconds(), PLAN[0] + PLAN[1])
        self.assertEqual(
            picker.failures,
            [(holes[0].endpoint, "no answer within 0.25 s"),
             (holes[1].endpoint, "no answer within 0.5 s")],
        )  # fmt: skip
        self.assertEqual(self.lab.reactor.getDelayedCalls(), [])
        self.assertEqual(self.lab.descriptors.writers(), [])

    def test_one_that_was_in_time_is_taken_by_a_process_that_is_late(self) -> None:
        """At the end of a step it is connected, without having been checked yet: it has not failed,
        and the client gets it.
        """
        hole = self.lab.black_hole()
        opened, picker = self.lab.open(hole.endpoint)
        client = self.lab.client(opened)
        client.socket.send(b"hello")
        self.until(lambda: self.lab.descriptors.writers())
        (dialing,) = opened._dialings
        hole.socket.accept()
        self.assertTrue(select.select([], [dialing], [], 30)[1])
        self.lab.reactor.advance(PLAN[0])
        self.assertEqual((picker.failures, picker.stand), ([], [hole.endpoint]))
        self.assertEqual(opened.stats().active, 1)
        self.assertFalse(client.read().reset)

    def test_a_refusal_within_a_step_leads_on_at_once(self) -> None:
        """With a silent, a refusing and a live endpoint: one step, and no more."""
        hole, alive = self.lab.black_hole(), self.lab.backend()
        opened, _ = self.lab.open(hole.endpoint, self.lab.refusing(), alive.endpoint)
        client = self.lab.client(opened)
        self.until(lambda: self.dialed)
        self.lab.reactor.advance(PLAN[0])
        self.lab.accepted(alive)
        self.assertEqual(len(self.dialed), 3)
        self.assertFalse(client.read().reset)

    def refused_late(self, *left: Endpoint):
        """Make a client whose first endpoint refuses near the end of the step; return it with the
        picker, and the second endpoint, which is silent then.
        """
        refuses, slow = self.lab.black_hole(), self.lab.black_hole()
        opened, picker = self.lab.open(refuses.endpoint, slow.endpoint, *left)
        client = self.lab.client(opened)
        self.until(lambda: self.lab.descriptors.writers())
        (dialing,) = opened._dialings
        self.lab.reactor.advance(PLAN[0] * 0.8)
        outcomes = [errno.ECONNREFUSED, None]
        with mock.patch.object(self.lab.sockets.dialer, "outcome", side_effect=outcomes):
            dialing.doWrite()
        self.assertEqual(self.dialed, [refuses.endpoint, slow.endpoint])
        self.assertEqual(picker.failures, [(refuses.endpoint, "Connection refused")])
        return client, picker, slow.endpoint

    def test_endpoint_silent_for_a_partial_step_has_not_failed(self) -> None:
        """It had too little time; the next step tries another one, no later than planned."""
        alive = self.lab.backend()
        client, picker, _ = self.refused_late(alive.endpoint)
        self.lab.reactor.advance(PLAN[0] * 0.2)
        self.lab.accepted(alive)
        self.assertEqual(self.lab.reactor.seconds(), PLAN[0])
        self.assertEqual((len(picker.failures), picker.counted), (1, 1))
        self.assertFalse(client.read().reset)

    def test_endpoint_silent_for_a_whole_step_has_failed(self) -> None:
        """This also holds if it was first tried within a step."""
        _, picker, slow = self.refused_late()
        picker.endpoints.reverse()
        self.lab.reactor.advance(PLAN[0] * 0.2)
        self.lab.reactor.advance(PLAN[1])
        self.assertEqual(picker.failures[1:], [(slow, "no answer within 0.5 s")])

    def test_all_refuse_and_the_client_is_reset_within_four_seconds(self) -> None:
        """Each is tried once in each step, and no other client waits for it."""
        dead = [self.lab.refusing() for _ in range(3)]
        opened, picker = self.lab.open(*dead)
        with capturedLogs() as events:
            client = self.lab.client(opened)
            self.until(lambda: len(self.dialed) == 3)
            self.lab.reactor.pump(PLAN)
            self.assert_reset(opened, client)
        self.assertLess(self.lab.reactor.seconds(), _MOST)
        self.assertEqual(self.dialed, dead * len(PLAN))
        self.assertEqual(picker.counted, 0)
        (warning,) = self.warnings_of(events)
        self.assertIn("A client of shop/web:http TCP IPv4 is reset: no endpoint accepts", warning)
        self.assertIn(f"the last failure: {dead[2]}: Connection refused", warning)

    def test_restarted_endpoint_gets_its_client_in_the_next_step(self) -> None:
        """It refused at first, and no other endpoint serves."""
        held, endpoint = refusing()
        self.addCleanup(held.close)
        opened, _ = self.lab.open(endpoint)
        client = self.lab.client(opened)
        self.until(lambda: self.dialed)
        held.listen()
        self.lab.reactor.advance(PLAN[0])
        self.until(lambda: opened.stats().active and len(opened._relays))
        self.assertFalse(client.read().reset)

    def test_all_are_silent_and_the_client_is_reset_after_the_plan(self) -> None:
        """After four attempts at one endpoint."""
        hole = self.lab.black_hole()
        opened, picker = self.lab.open(hole.endpoint)
        client = self.lab.client(opened)
        for step, seconds in enumerate(PLAN):
            self.until(lambda step=step: len(self.dialed) == step + 1)
            self.lab.reactor.advance(seconds)
        self.assert_reset(opened, client)
        self.assertEqual(self.lab.reactor.seconds(), STEPS)
        self.assertEqual([why for _, why in picker.failures][-1], "no answer within 2 s")

    def test_of_many_that_refuse_only_so_many_are_tried_in_a_step(self) -> None:
        """Trying a thousand would delay all other clients."""
        dead = self.lab.refusing()
        many = [Endpoint(ip_address(f"127.0.1.{last}"), dead.port) for last in range(1, 200)]
        opened, _ = self.lab.open(*many)
        self.lab.client(opened)
        self.until(lambda: self.dialed)
        self.assertEqual(len(self.dialed), MAX_REFUSALS)
        self.assertEqual(len(set(self.dialed)), MAX_REFUSALS)

    def test_a_client_whose_service_loses_its_last_endpoint_is_reset_at_once(self) -> None:
        """It is reset, because a FIN would look like an empty response."""
        opened, picker = self.lab.open(self.lab.backend().endpoint)
        picker.endpoints.clear()
        with capturedLogs() as events:
            self.assert_reset(opened, self.lab.client(opened))
        self.assertIn("it has no endpoints", self.warnings_of(events)[0])

    def test_reset_clients_are_logged_once_a_minute(self) -> None:
        """Their number depends on clients; one service does not suppress another's messages."""
        services = [self.lab.open(self.lab.refusing())[0] for _ in range(2)]
        opened, other = services
        for each in services:
            each.picker.endpoints.clear()

        def be_reset(by: Any) -> None:
            client = self.lab.client(by)
            self.until(lambda: client.read().reset)

        with capturedLogs() as events:
            for each in (opened, opened, opened, other):
                be_reset(each)
            self.assertEqual(len(self.warnings_of(events)), 2)
            self.lab.reactor.advance(60)
            be_reset(opened)
        self.assertIn("(2 more like this were not shown)", self.warnings_of(events)[2])
        self.assertEqual(opened.stats().failed, 4)

    def test_an_endpoint_that_is_this_proxy_is_refused(self) -> None:
        """At any of its own addresses, with the port of any of its own proxy sockets."""
        other, _ = self.lab.open()
        alive = self.lab.backend()
        for address in ("127.0.0.1", "127.0.0.2"):
            loop = Endpoint(ip_address(address), other.port)
            opened, picker = self.lab.open(loop, alive.endpoint)
            self.lab.join(opened, alive)
            ((failed, why),) = picker.failures
            self.assertEqual(failed, loop)
            self.assertIn("a port of this proxy, which would be a loop", why)
            self.assertNotIn(loop, self.dialed)

    def test_the_port_of_a_proxy_socket_elsewhere_is_no_loop(self) -> None:
        """Another machine may listen there."""
        other, _ = self.lab.open()
        opened, _ = self.lab.open()
        self.assertFalse(opened.is_loop(Endpoint(ip_address("198.51.100.7"), other.port)))
        self.assertTrue(opened.is_loop(Endpoint(ip_address("127.0.0.1"), other.port)))

    def test_a_port_that_was_connected_to_itself_is_refused(self) -> None:
        """TCP does this if nothing listens, and the kernel chooses that very port."""
        own = socket.socket()
        self.addCleanup(own.close)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind((LOOPBACK[4], 0))
        own.connect(own.getsockname())
        self.assertEqual(TcpDialer(pacing()).outcome(own), errno.ECONNREFUSED)

    def test_endpoints_are_connected_to_by_sockets_that_find_dead_peers(self) -> None:
        """The sockets also send small messages at once."""
        alive = self.lab.backend()
        opened, _ = self.lab.open(alive.endpoint)
        self.lab.join(opened, alive)
        (relay,) = opened._relays
        for end in (relay._client, relay._server):
            for level, option in (
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.IPPROTO_TCP, socket.TCP_NODELAY)
            ):  # fmt: skip
                self.assertTrue(end._socket.getsockopt(level, option))
            idle = end._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            self.assertEqual(idle, 15)

    def test_no_descriptor_for_an_attempt_is_no_failure_of_the_endpoint(self) -> None:
        """Its client is reset; the endpoint is not ejected."""
        alive = self.lab.backend()
        opened, picker = self.lab.open(alive.endpoint)
        full = OSError(errno.EMFILE, "Too many open files")
        with mock.patch.object(self.lab.sockets.dialer, "dial", side_effect=full):
            self.assert_reset(opened, self.lab.client(opened))
        self.assertEqual((picker.failures, picker.counted), ([], 0))

    def test_no_descriptor_to_find_a_loop_is_none_either(self) -> None:
        """Nor is it a defect, after which the endpoint would seem to have a connection forever."""
        alive = self.lab.backend()
        opened, picker = self.lab.open(alive.endpoint)
        full = OSError(errno.EMFILE, "Too many open files")
        with mock.patch.object(PortAllocator, "is_loop", side_effect=full):
            self.assert_reset(opened, self.lab.client(opened))
        self.assertEqual((picker.failures, picker.counted), ([], 0))

    def test_no_watch_for_an_attempt_is_no_failure_of_the_endpoint_either(self) -> None:
        """Nor is it a defect: the kernel limits the number of watched descriptors."""
        opened, picker = self.lab.open(self.lab.black_hole().endpoint)
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(self.lab.descriptors, "addWriter", side_effect=full):
            self.assert_reset(opened, self.lab.client(opened))
        self.assertEqual((picker.failures, picker.counted), ([], 0))

    def without_ports(self, *towards: Endpoint):
        """Simulate that no local port is left for some endpoints."""
        real = self.lab.sockets.dialer.dial

        def dial(endpoint: Endpoint) -> socket.socket:
            if endpoint in towards:
                self.dialed.append(endpoint)
                raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
            return real(endpoint)

        return mock.patch.object(self.lab.sockets.dialer, "dial", dial)

    def test_no_local_port_towards_an_endpoint_leads_on_at_once(self) -> None:
        """It has not failed, and the next one is reached with the same ports."""
        full, alive = self.lab.backend(), self.lab.backend()
        opened, picker = self.lab.open(full.endpoint, alive.endpoint)
        with self.without_ports(full.endpoint):
            self.lab.join(opened, alive)
        self.assertEqual((picker.failures, picker.stand), ([], [alive.endpoint]))
        self.assertEqual((picker.counted, self.lab.reactor.seconds()), (1, 0))

    def test_no_local_port_towards_any_endpoint_is_waited_for(self) -> None:
        """Each is tried once in each step, and none has failed."""
        full = [self.lab.backend().endpoint for _ in range(2)]
        opened, picker = self.lab.open(*full)
        with capturedLogs() as events, self.without_ports(*full):
            client = self.lab.client(opened)
            self.until(lambda: self.dialed)
            self.assertEqual(self.dialed, full)
            self.lab.reactor.pump(PLAN)
            self.assert_reset(opened, client)
        self.assertEqual(self.dialed, full * len(PLAN))
        self.assertEqual((picker.failures, picker.counted), ([], 0))
        (warning,) = self.warnings_of(events)
        self.assertIn(f"the last failure: {full[1]}: Cannot assign requested address", warning)

    def test_attempt_that_cannot_start_is_skipped_at_once(self) -> None:
        """For example an address without a route."""
        alive = self.lab.backend()
        wrong = Endpoint(ip_address("0.0.0.0"), 0)
        opened, picker = self.lab.open(wrong, alive.endpoint)
        self.lab.join(opened, alive)
        self.assertEqual(picker.failures[0][0], wrong)

    def test_a_stop_ends_attempts_under_way(self) -> None:
        """Their clients are reset, and the endpoints no longer count them."""
        hole = self.lab.black_hole()
        opened, picker = self.lab.open(hole.endpoint)
        client = self.lab.client(opened)
        self.until(lambda: self.dialed)
        stopped = opened.stop(0.1)
        self.lab.reactor.advance(0.1)
        self.successResultOf(stopped)
        self.until(lambda: client.read().reset)
        self.assertEqual((picker.counted, picker.failures), (0, []))
        self.assertEqual(self.lab.reactor.getDelayedCalls(), [])

    def test_the_end_of_the_reactor_ends_attempts(self) -> None:
        """No other endpoint is tried."""
        hole = self.lab.black_hole()
        opened, picker = self.lab.open(hole.endpoint)
        client = self.lab.client(opened)
        self.until(lambda: self.dialed)
        self.lab.descriptors.connectionLost(Failure(ConnectionLost()))
        self.assertTrue(client.read().reset)
        self.assertEqual((len(self.dialed), picker.counted), (1, 0))
        self.assertEqual(self.lab.reactor.getDelayedCalls(), [])
        opened._listening.close()


class ConnectionLimitTests(SynchronousTestCase):
    """Limits of what is in progress."""

    def serve(self, **limits):
        """Open a proxy socket with limits; return it with the lab and its endpoint."""
        lab = TcpLab(self, **limits)
        alive = lab.backend()
        opened, picker = lab.open(alive.endpoint)
        return lab, alive, opened, picker

    def full(self, lab, alive, opened, count: int, says: str) -> None:
        """``count`` clients with different addresses are served; the next one waits for an end."""
        joined = [lab.join(opened, alive, source=f"127.0.1.{n + 1}") for n in range(count)]
        with capturedLogs() as events:
            late = lab.client(opened)
            late.socket.send(b"late")
            for _ in range(20):
                lab.reactor.turn()
                lab.reactor.advance(0.1)
        self.assertEqual(opened.stats().total, count)
        (warning,) = [event for event in events if event["log_level"] is LogLevel.warn]
        self.assertIn(says, warning["log_format"].format(**warning))
        # It pauses, instead of retrying all the time.
        lab.reactor.turn()
        self.assertNotIn(opened._listener, lab.descriptors.readers())
        for end in joined[0]:
            end.socket.close()
        lab.until(lambda: opened.stats().active < count)
        lab.reactor.advance(0.1)
        server = lab.accepted(alive)
        lab.until(lambda: server.read().received == b"late")

    def test_the_connections_of_the_process_are_bounded(self) -> None:
        """The next client waits until one ends; this is logged once, with the reason."""
        lab, alive, opened, _ = self.serve(max_connections=3)
        self.full(lab, alive, opened, 3, "raise LimitNOFILE")

    def test_the_connections_of_a_service_are_bounded(self) -> None:
        """Other services are served meanwhile."""
        lab, alive, opened, _ = self.serve(max_per_service=2)
        self.full(lab, alive, opened, 2, "the maximum of one service")
        other, _ = lab.open(alive.endpoint)
        lab.join(other, alive)

    def test_an_address_has_as_many_as_it_leaves_free(self) -> None:
        """This holds for the limit of the process, and of a service: its next client is reset,
        which is logged. Clients from other addresses are accepted, and so is its next one when one
        of its own has ended.
        """
        for limits in ({"max_connections": 4}, {"max_per_service": 4}):
            lab, alive, opened, _ = self.serve(**limits)
            joined = [lab.join(opened, alive) for _ in range(2)]
            with capturedLogs() as events:
                late = lab.client(opened)
                lab.until(lambda late=late: late.read().reset)
            (warning,) = [event for event in events if event["log_level"] is LogLevel.warn]
            self.assertIn("has used up its share", warning["log_format"].format(**warning))
            other, _ = lab.join(opened, alive, source="127.0.1.1")
            for end in joined[0]:
                end.socket.close()
            lab.until(lambda opened=opened: opened.stats().active == 2)
            lab.join(opened, alive)
            self.assertFalse(other.read().reset)
            stats = opened.stats()
            self.assertEqual((stats.active, stats.total, stats.failed), (3, 5, 1))

    def test_the_clients_that_wait_for_endpoints_are_bounded(self) -> None:
        """A silent endpoint does not use up all descriptors."""
        lab = TcpLab(self, max_dialing=2)
        opened, _ = lab.open(lab.black_hole().endpoint)
        for _ in range(4):
            lab.client(opened)
        with capturedLogs() as events:
            lab.until(lambda: opened._listener not in lab.descriptors.readers())
        self.assertEqual(opened.stats().active, 2)
        warning = events[-1]["log_format"].format(**events[-1])
        self.assertIn("2 clients of shop/web:http TCP IPv4 wait for endpoints", warning)

    def test_full_service_is_logged_once_a_minute(self) -> None:
        """Even though clients may leave, and new ones be accepted, at any rate."""
        lab, alive, opened, _ = self.serve(max_per_service=4)
        joined = [lab.join(opened, alive, source=f"127.0.{number}.1") for number in range(1, 5)]
        with capturedLogs() as events:
            for number in range(5, 15):
                late = lab.client(opened, source=f"127.0.{number}.1")
                lab.until(lambda: opened._listener not in lab.descriptors.readers())
                for end in joined.pop(0):
                    end.socket.close()
                lab.until(lambda: opened.stats().active == 3)
                lab.reactor.advance(PAUSE_SECONDS)
                joined.append((late, lab.accepted(alive)))
        (warning,) = [event for event in events if event["log_level"] is LogLevel.warn]
        self.assertIn("the maximum of one service", warning["log_format"].format(**warning))

    def test_accepting_pauses_without_descriptors(self) -> None:
        """It neither spins nor ends, and the waiting clients are served."""
        lab, alive, opened, _ = self.serve()
        client, server = lab.join(opened, alive)
        late = [lab.client(opened) for _ in range(3)]
        with no_descriptor_left(), capturedLogs() as events:
            for _ in range(20):
                lab.reactor.turn()
                self.assertNotIn(opened._listener, lab.descriptors.readers())
                lab.reactor.advance(0.1)
            client.socket.send(b"still there")
            lab.until(lambda: server.read().received == b"still there")
        (warning,) = [event for event in events if event["log_level"] is LogLevel.warn]
        self.assertIn(
            f"Port {opened.port} accepts no connections for now: Too many open files",
            warning["log_format"].format(**warning),
        )
        lab.reactor.advance(0.1)
        for one in late:
            one.socket.send(b"late")
            taken = lab.accepted(alive)
            lab.until(lambda taken=taken: taken.read().received == b"late")

    def test_updates_are_seen_by_clients_that_wait(self) -> None:
        """A new endpoint serves them."""
        lab = TcpLab(self)
        hole, alive = lab.black_hole(), lab.backend()
        opened, picker = lab.open(hole.endpoint)
        client = lab.client(opened)
        lab.until(lambda: opened._dialings)
        opened.update(service_of(hole.endpoint, alive.endpoint))
        picker.endpoints.append(alive.endpoint)
        lab.reactor.advance(PLAN[0])
        lab.accepted(alive)
        self.assertFalse(client.read().reset)


class DefectTests(SynchronousTestCase):
    """A defect at any step of a dial affects one connection only: its client is reset."""

    timeout = 60

    def setUp(self) -> None:
        """One endpoint is silent, and another one may be used instead."""
        self.lab = TcpLab(self)
        self.hole, self.alive = self.lab.black_hole(), self.lab.backend()
        self.opened, self.picker = self.lab.open(self.hole.endpoint, self.alive.endpoint)

    def defect(self, target: object, name: str) -> None:
        """Have a call raise an unexpected exception."""
        self.patch(target, name, mock.Mock(side_effect=ZeroDivisionError))

    def assert_costs_one(self, client) -> None:
        """The client is reset and removed, the defect is logged, and the next one is served."""
        self.lab.until(lambda: client.read().reset)
        self.assertEqual(self.opened.stats().active, 0)
        self.assertEqual(self.lab.count.used, 0)
        self.assertEqual(self.lab.descriptors.writers(), [])
        self.assertEqual(self.lab.reactor.getDelayedCalls(), [])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def waiting(self):
        """Return a client whose endpoint is silent."""
        client = self.lab.client(self.opened)
        self.lab.until(lambda: self.lab.descriptors.writers())
        return client

    def test_when_an_endpoint_is_picked(self) -> None:
        """In the first step; the port continues to accept."""
        self.defect(self.picker, "pick")
        self.assert_costs_one(self.lab.client(self.opened))

    def test_when_a_step_ends(self) -> None:
        """In a timer, where no caller would handle the client."""
        client = self.waiting()
        self.defect(self.picker, "failed")
        self.lab.reactor.advance(PLAN[0])
        self.assert_costs_one(client)

    def test_when_the_next_endpoint_is_picked(self) -> None:
        """Between two steps."""
        client = self.waiting()
        self.defect(self.picker, "pick")
        self.lab.reactor.advance(PLAN[0])
        self.assert_costs_one(client)

    def test_when_a_dial_is_checked(self) -> None:
        """The endpoint no longer counts it."""
        client = self.waiting()
        self.defect(TcpDialer, "outcome")
        self.hole.socket.accept()
        self.assert_costs_one(client)
        self.assertEqual(self.picker.counted, 0)

    def test_when_a_connection_stands(self) -> None:
        """At once, or after waiting."""
        self.defect(self.picker, "connected")
        client = self.waiting()
        self.hole.socket.accept()
        self.assert_costs_one(client)

    def test_when_both_are_joined(self) -> None:
        """The connection to the endpoint is closed, too."""
        self.picker.endpoints.reverse()
        self.defect(Relay, "start")
        client = self.lab.client(self.opened)
        server = self.lab.accepted(self.alive)
        self.lab.until(lambda: server.read().reset)
        self.assert_costs_one(client)

    def test_when_it_is_given_up(self) -> None:
        """The picker fails at every call, including the report of the end."""
        client = self.waiting()
        for call in ("failed", "ended", "pick"):
            self.defect(self.picker, call)
        self.lab.reactor.advance(PLAN[0])
        self.assert_costs_one(client)

    def test_the_next_client_is_served(self) -> None:
        """Nothing else has changed."""
        client = self.waiting()
        with mock.patch.object(self.picker, "failed", side_effect=ZeroDivisionError):
            self.lab.reactor.advance(PLAN[0])
        self.lab.until(lambda: client.read().reset)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.picker.endpoints.reverse()
        client, server = self.lab.join(self.opened, self.alive)
        client.socket.send(b"hello")
        self.lab.until(lambda: server.read().received == b"hello")
