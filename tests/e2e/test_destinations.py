"""Responses to callers whose destinations cannot be reached."""

from __future__ import annotations

import json
import os
import socket
from contextlib import closing
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.threads import deferToThread

from tests.black_hole import BlackHole
from tests.e2e.clients import Echo, RequestClient, connect_directly
from tests.e2e.hostile import HostileTestCase
from tests.e2e.programs import ROOT

DIAL_DEADLINE = 15.0
"""Seconds for a dial, from OPEN to OK or FAIL."""

CLOSED = """
from zope.interface import implementer
from yurttunnel.http.errors import RequestFailed
from yurttunnel.server.frontends.calls import IGate
from yurttunnel.server.frontends.kubelet.middleware import IMiddleware, IMiddlewareMaker


@implementer(IMiddleware, IGate)
class Closed:
    def wrap(self, handler):
        return handler

    def admit(self, call):
        if call.port == 22 or call.flag.startswith("--forward"):
            raise RequestFailed(403, f"{call.kind} is closed for {call.serving_node}")


@implementer(IMiddlewareMaker)
class Maker:
    name = "closed"
    informers = ()

    def make(self, clock, informers):
        return Closed()


maker = Maker()
"""
"""A plugin that closes a port, and all forwards."""


class DestinationTests(HostileTestCase):
    """Responses to CONNECT if there is no connection."""

    async def test_each_failure_has_its_status_and_a_sentence(self) -> None:
        """400, 403, 502, 503: each with a one-line body that names the destination."""
        tunnel = await self.start_tunnel()
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            refused = closed.getsockname()[1]
            to_edge = {"X-Tunnel-Proxy-Host": "edge-1"}
            cases = [
                (f"127.0.0.1:{refused}", {}, 502, "refused"),
                (f"edge-1:{refused}", {}, 502, "refused"),
                ("192.0.2.1:80", to_edge, 403, "192.0.2.1"),
                ("127.0.0.2:80", to_edge, 403, "127.0.0.2"),
                ("edge-9:80", {}, 503, "edge-9"),
                ("127.0.0.1:80", {"X-Tunnel-Proxy-Host": "edge-9"}, 503, "edge-9"),
                ("10.9.8.7:80", {}, 503, "10.9.8.7"),
                ("edge-1", {}, 400, "edge-1"),
                ("edge-1:0", {}, 400, "0"),
                ("edge-1:65536", {}, 400, "65536"),
                ("edge-1:port", {}, 400, "port"),
            ]
            for authority, headers, status, words in cases:
                answer = await self.connect(tunnel, authority, RequestClient(), headers)
                self.assertEqual(answer.status, status, f"{authority}: {answer.body}")
                self.assertIn(words, answer.body, authority)
                self.assertEqual(len(answer.body.strip().splitlines()), 1, answer.body)
                headers = {**headers, "Accept": "application/json, */*"}
                answer = await self.connect(tunnel, authority, RequestClient(), headers)
                self.assertEqual(answer.status, status, authority)
                document = json.loads(answer.body)
                self.assertEqual((document["kind"], document["code"]), ("Status", status))
                self.assertIn(words, document["message"])
        await self.still_serves(tunnel)

    async def test_a_caller_reaches_what_it_has_a_permission_for(self) -> None:
        """A user of the socket reaches the destinations of --allow-connect, and gets 403
        otherwise.
        """
        with socket.create_server(("127.0.0.1", 0)) as target:
            port = target.getsockname()[1]
            user = os.getuid()
            tunnel = await self.start_tunnel(
                server_extra=(
                    *("--allow-connect", f"user:{user}=edge-1/127.0.0.1:{port}"),
                    *("--allow-connect", f"user:{user + 1}=*/*:*"),
                    *("--allow-connect", "address:127.0.0.1=*/*:*"),
                )
            )
            answer = await self.connect(tunnel, f"127.0.0.1:{port}", RequestClient())
            self.assertEqual(answer.status, 200, answer.body)
            for authority in (f"edge-1:{port}", "127.0.0.1:1", "edge-9:80"):
                answer = await self.connect(tunnel, authority, RequestClient())
                self.assertEqual(answer.status, 403, f"{authority}: {answer.body}")
                self.assertIn(f"user:{user} may not reach", answer.body)

    async def test_a_middleware_refuses_calls(self) -> None:
        """A middleware that provides IGate decides about CONNECT and forwards: 403, and a reset."""
        plugins = Path(self.directory, "plugins")
        module = plugins / "twisted" / "plugins" / "closed.py"
        module.parent.mkdir(parents=True)
        module.write_text(CLOSED)
        echo = self.listen(Echo)
        tunnel = self.make_tunnel(
            forwards=(echo.port,), server_extra=("--middleware", "closed"), proxied=None
        )
        tunnel.server.run_under("env", f"PYTHONPATH={ROOT}:{plugins}")
        await tunnel.start()
        await self.still_serves(tunnel)
        answer = await self.connect(tunnel, "edge-1:22", RequestClient())
        self.assertEqual(
            (answer.status, answer.body.strip()), (403, "connect is closed for edge-1")
        )
        address = ("127.0.0.1", tunnel.forward_ports[0])

        def read() -> bytes:
            with socket.create_connection(address, timeout=10) as caller:
                return caller.recv(1)

        await self.assertFailure(deferToThread(read), ConnectionResetError)
        await self.eventually(
            lambda: "forward is closed for edge-1" in tunnel.server.log, "the log says why"
        )

    async def test_a_black_holed_target_is_a_504(self) -> None:
        """A target that drops every SYN costs the dial timeout, and affects its caller only."""
        tunnel = await self.start_tunnel()
        before = [(p, p.descriptors()) for p in (tunnel.server, tunnel.agent)]
        with closing(BlackHole()) as hole:
            started = reactor.seconds()
            authority = f"127.0.0.1:{hole.port}"
            dial = Deferred.fromCoroutine(self.connect(tunnel, authority, RequestClient()))
            await self.still_serves(tunnel)
            answer = await self.within(DIAL_DEADLINE + 5, dial, "the dial is answered")
            print(f"\nblack hole answered after {reactor.seconds() - started:.1f} s")
            self.assertEqual(answer.status, 504, answer.body)
            self.assertIn(str(hole.port), answer.body)
        for program, descriptors in before:
            await self.descriptors_return(program, descriptors)

    async def test_a_caller_that_leaves_during_a_dial_cancels_it(self) -> None:
        """The agent cancels a pending dial when its caller disconnects, and keeps no descriptor."""
        tunnel = await self.start_tunnel()
        await self.still_serves(tunnel)
        before = [(p, p.descriptors()) for p in (tunnel.server, tunnel.agent)]
        with closing(BlackHole()) as hole:
            endpoint = UNIXClientEndpoint(reactor, tunnel.socket_path)
            request = f"CONNECT 127.0.0.1:{hole.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            caller = await connect_directly(endpoint, RequestClient(request))
            await self.eventually(lambda: hole.callers > 0, "the agent dials")
            caller.drop()
            await caller.when_lost()
            await self.eventually(lambda: hole.callers == 0, "the dial is given up", 5)
            for program, descriptors in before:
                await self.descriptors_return(program, descriptors)

    async def test_a_forward_to_nowhere_closes_the_callers_connection(self) -> None:
        """With a refused target or a missing agent the caller's connection ends; others
        continue.
        """
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            tunnel = await self.start_tunnel(forwards=(closed.getsockname()[1],))
            await self.assert_disconnects(tunnel.forward_ports[0])
            await self.still_serves(tunnel)
            await tunnel.agent.stop()
            await self.assert_disconnects(tunnel.forward_ports[0])
