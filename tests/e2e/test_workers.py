"""A server of several processes (``--workers``), as its agents and callers see it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import ssl
import sys
from functools import partial
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from benchmarks.ports import free_ports
from tests.e2e.clients import (
    AnswerAtEnd,
    Download,
    Echo,
    EchoClient,
    EndFirst,
    Question,
    Sink,
    Source,
)
from tests.e2e.faults import FaultProxy
from tests.e2e.programs import Agent, Program, Tunnel
from tests.e2e.support import EndToEndTestCase
from yurttunnel.pki.enrolment_issuer import NODE_FILE
from yurttunnel.tunnel.connection import ALPN
from yurttunnel.tunnel.placement import placement_protocol
from yurttunnel.wire import frames
from yurttunnel.wire.hello import NO_SESSION, Hello, Limits

MEBIBYTE = 1024 * 1024

IN_WORKER = "edge-1"
"""A node whose sessions are in worker 1 of two processes."""

IN_FIRST = "edge-5"
"""A node whose sessions are in the first of two."""


def worker_pids(server: Program) -> list[int]:
    """The processes that the server has started."""
    tasks = Path(f"/proc/{server.pid}/task")
    children = " ".join(path.read_text() for path in tasks.glob("*/children"))
    return [int(word) for word in children.split()]


def tls_download(state: str, port: int, node: str, target: int) -> str:
    """Download all that a target at ``node`` sends, by CONNECT over TLS; its SHA-256. It blocks."""
    context = ssl.create_default_context(cafile=f"{state}/ca.crt")
    context.load_cert_chain(f"{state}/client.crt", f"{state}/client.key")
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with context.wrap_socket(plain, server_hostname="localhost") as connection:
        fields = f"Host: 127.0.0.1:{target}\r\nX-Tunnel-Proxy-Host: {node}\r\n"
        connection.sendall(f"CONNECT 127.0.0.1:{target} HTTP/1.1\r\n{fields}\r\n".encode())
        # The 200 is in a record of its own.
        answer = connection.recv(4096)
        if not answer.startswith(b"HTTP/1.1 200 ") or not answer.endswith(b"\r\n\r\n"):
            raise AssertionError(f"the answer was {answer!r}")
        digest = hashlib.sha256()
        while data := connection.recv(65536):
            digest.update(data)
    return digest.hexdigest()


def say_all_at_once(state: str, port: int) -> bytes:
    """Be the agent of ``state``, with a PING in one piece with the HELLO; all that is answered.

    Until the PONG has come, which ends the answer, or until nothing comes for 5 s. It blocks.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(f"{state}/{NODE_FILE}")
    context.set_alpn_protocols([ALPN.decode(), placement_protocol(IN_WORKER).decode()])
    hello = Hello(Limits(), NO_SESSION, os.urandom(16))
    pong = frames.offset_frame(frames.PONG, 0, 7)
    answer = b""
    plain = socket.create_connection(("127.0.0.1", port), timeout=5)
    with contextlib.suppress(TimeoutError), context.wrap_socket(plain) as connection:
        connection.sendall(hello.encode() + frames.offset_frame(frames.PING, 0, 7))
        while pong not in answer and (data := connection.recv(65536)):
            answer += data
    return answer


class WorkersTestCase(EndToEndTestCase):
    """Starts a server of two processes with a node in each."""

    proxy: FaultProxy

    async def start_both(self, proxied: bool = False, **options) -> tuple[Tunnel, Agent]:
        """Start a server, and the agents of both nodes; the one in the worker by a proxy."""

        def by_proxy(port: int) -> int:
            self.proxy = self.fault_proxy(port)
            return self.proxy.port

        extra = ("--workers", "2", *options.pop("server_extra", ()))
        tunnel = await self.start_tunnel(
            server_extra=extra, proxied=by_proxy if proxied else None, **options
        )
        other = tunnel.another_agent(node=IN_FIRST, state="B")
        other.start()
        await other.ready()
        return tunnel, other

    async def to(self, tunnel: Tunnel, node: str, target, peer):
        """Connect ``peer`` to a target at ``node`` by the CONNECT socket."""
        headers = {"X-Tunnel-Proxy-Host": node}
        answer = await self.connect(tunnel, f"127.0.0.1:{target.port}", peer, headers)
        self.assertEqual(answer.status, 200, answer.body)
        return peer

    async def download(self, tunnel: Tunnel, node: str, source) -> None:
        """Download all of ``source``, and compare the hashes of both ends."""
        before = len(source.peers)
        peer = await self.to(tunnel, node, source, Download())
        await self.within(60, peer.when_lost(), f"the download from {node} ends")
        self.assertTrue(peer.clean, peer.lost_reason)
        self.assertEqual(peer.digest, source.peers[before].payload.digest)


class WorkersTests(WorkersTestCase):
    """What does not depend on where a node's session is, and what ends with one process."""

    async def test_streams_of_both_processes_carry_every_byte(self) -> None:
        """Downloads and uploads by CONNECT and --forward arrive whole from both, at once.

        They are counted in one set of figures, and the agents are in one list.
        """
        size = 8 * MEBIBYTE
        source, sink = self.listen(lambda: Source(size)), self.listen(Sink)
        tunnel, _ = await self.start_both(forwards=(source.port,))
        self.assertEqual(len(worker_pids(tunnel.server)), 1)
        for node in (IN_WORKER, IN_FIRST):
            await self.download(tunnel, node, source)
            upload = await self.to(tunnel, node, sink, Source(size))
            await self.within(60, upload.when_read_ended(), f"the upload to {node} ends")
            self.assertEqual(upload.answer.decode(), upload.payload.digest)
            self.assertEqual(sink.peers[-1].digest, upload.payload.digest)
        forwarded = await self.dial(tunnel.forward_ports[0], Download())
        await self.within(60, forwarded.when_lost(), "the forwarded download ends")
        self.assertEqual(forwarded.digest, source.peers[-1].payload.digest)

        async def counted() -> bool:
            received = await tunnel.server.metric(
                "yurttunnel_server_bytes_total", direction="received"
            )
            return received >= 3 * size

        await self.eventually(counted, "the bytes of the worker are counted, too")
        agents = await tunnel.server.agents()
        self.assertEqual([agent["node"] for agent in agents], [IN_WORKER, IN_FIRST])

    async def test_a_half_close_goes_through_a_worker(self) -> None:
        """An answer that begins at the end of the request comes whole; so does the reverse."""
        answering, ending = self.listen(AnswerAtEnd), self.listen(EndFirst)
        tunnel, _ = await self.start_both()
        for node in (IN_WORKER, IN_FIRST):
            asking = await self.to(tunnel, node, answering, Question(b"all", finish=True))
            await self.within(20, asking.when_read_ended(), "the answer has come")
            self.assertEqual(asking.answer, b"got:all")
            telling = await self.to(tunnel, node, ending, AnswerAtEnd())
            await self.within(20, telling.when_read_ended(), "the greeting has come")
            await self.within(20, ending.peers[-1].when_read_ended(), "the target has all")
            self.assertEqual(ending.peers[-1].text, b"got:hello")

    async def test_a_refused_dial_says_the_same_by_a_worker(self) -> None:
        """The status and the sentence of an error do not tell in which process the node is."""
        tunnel, _ = await self.start_both()
        answers = [
            await self.connect(tunnel, "127.0.0.1:1", Download(), {"X-Tunnel-Proxy-Host": node})
            for node in (IN_WORKER, IN_FIRST)
        ]
        one, other = [(each.status, re.sub(r"edge-\d", "NODE", each.body)) for each in answers]
        self.assertEqual(one, other)
        self.assertEqual(one[0], 502)

    async def test_a_killed_worker_takes_its_own_streams_only(self) -> None:
        """After kill -9 the streams of its nodes end, others go on, and its nodes come back."""
        echo = self.listen(Echo)
        source = self.listen(lambda: Source(MEBIBYTE))
        tunnel, _ = await self.start_both()
        lost, kept = EchoClient(reactor), EchoClient(reactor)
        await self.to(tunnel, IN_WORKER, echo, lost)
        await self.to(tunnel, IN_FIRST, echo, kept)
        await lost.round_trip()
        await kept.round_trip()
        (worker,) = worker_pids(tunnel.server)
        os.kill(worker, signal.SIGKILL)
        await self.within(5, lost.when_ended(), "the stream of the worker has ended")
        await self.within(5, kept.round_trip(), "the other stream goes on")
        # Of a process that ends its callers may know earlier than the one that has started it.
        ended = "worker 1 has ended: it was killed by signal 9; "
        await self.eventually(lambda: ended in tunnel.server.log, "its end is noticed", 5)

        async def back() -> bool:
            agents = await tunnel.server.agents()
            return [agent["node"] for agent in agents if agent["connected"]] == [
                IN_WORKER,
                IN_FIRST,
            ]

        await self.eventually(back, "the agent is back", 30)
        self.assertNotEqual(worker_pids(tunnel.server), [worker])
        await self.download(tunnel, IN_WORKER, source)
        await self.within(5, kept.round_trip(), "the other stream still goes on")
        self.assertEqual(await tunnel.server.metric("yurttunnel_server_worker_restarts_total"), 1)

    async def test_a_worker_ends_with_the_first_process(self) -> None:
        """After kill -9 of the first process no other is left."""
        tunnel, _ = await self.start_both()
        (worker,) = worker_pids(tunnel.server)
        os.kill(tunnel.server.pid, signal.SIGKILL)
        await self.eventually(
            lambda: not Path(f"/proc/{worker}/fd").exists(), "the worker has ended", 10
        )

    async def test_a_session_goes_on_in_its_worker(self) -> None:
        """Streams outlive connections that are reset, as they do in one process."""
        size = 48 * MEBIBYTE
        source = self.listen(lambda: Source(size))
        tunnel, _ = await self.start_both(proxied=True)
        peer = await self.to(tunnel, IN_WORKER, source, Download())
        for cut in (1, 2):
            await self.eventually(
                lambda cut=cut: peer.received > cut * size // 3, "a third has arrived", 30
            )
            self.assertEqual(self.proxy.for_all("reset"), 1)
        await self.within(60, peer.when_lost(), "the download ends")
        self.assertEqual(peer.received, size)
        self.assertEqual(peer.digest, source.peers[0].payload.digest)

        async def resumed() -> bool:
            return await tunnel.server.metric("yurttunnel_server_resumptions_total") == 2

        await self.eventually(resumed, "both returns are counted")

    async def test_a_revoked_node_is_cut_off_at_once(self) -> None:
        """Its session in the worker ends, and it does not come in again; the other stays."""
        echo = self.listen(Echo)
        tunnel, _ = await self.start_both()
        cut, kept = EchoClient(reactor), EchoClient(reactor)
        await self.to(tunnel, IN_WORKER, echo, cut)
        await self.to(tunnel, IN_FIRST, echo, kept)
        state = tunnel.server.state
        _, errors, status = await self.run_command(
            sys.executable, "-m", "twisted", "yurttunnel-server", "--standalone",
            "--state-dir", state, "--revoke-node", IN_WORKER,
        )  # fmt: skip
        self.assertEqual(status, 0, errors)
        await self.within(5, cut.when_ended(), "the stream of the revoked node has ended")

        async def refused() -> bool:
            name = "yurttunnel_server_refused_agents_total"
            return await tunnel.server.metric(name, reason="revoked") > 0

        await self.eventually(refused, "the agent has been refused when it came back", 30)
        await self.within(5, kept.round_trip(), "the other stream goes on")
        agents = await tunnel.server.agents()
        self.assertEqual([agent["node"] for agent in agents], [IN_FIRST])

    async def test_sigterm_lets_the_streams_of_workers_end(self) -> None:
        """A stream in a worker that ends in time ends whole, and then the server is gone."""
        size = 32 * MEBIBYTE
        source = self.listen(lambda: Source(size))
        tunnel, _ = await self.start_both(drain=20)
        peer = await self.to(tunnel, IN_WORKER, source, Download())
        peer.transport.pauseProducing()
        workers = worker_pids(tunnel.server)
        os.kill(tunnel.server.pid, signal.SIGTERM)
        for worker in workers:
            # As systemd does it, and a terminal.
            os.kill(worker, signal.SIGTERM)
        await self.eventually(
            lambda: "Closed)" in tunnel.server.log, "the server has begun to stop", 10
        )
        peer.transport.resumeProducing()
        await self.within(30, peer.when_lost(), "the download ends")
        self.assertEqual(peer.digest, source.peers[0].payload.digest)
        self.assertEqual(await tunnel.server.ended(15), -signal.SIGTERM)
        for worker in workers:
            self.assertFalse(Path(f"/proc/{worker}").exists())

    async def test_the_audit_log_has_the_streams_of_workers(self) -> None:
        """A stream's line is the same whichever process carried it, with its bytes."""
        source = self.listen(lambda: Source(100_000))
        path = Path(self.directory, "audit.json")
        tunnel, _ = await self.start_both(server_extra=("--audit-log-path", str(path)))
        for node in (IN_WORKER, IN_FIRST):
            await self.download(tunnel, node, source)

        def lines() -> list[dict]:
            text = path.read_text() if path.exists() else ""
            return [json.loads(line) for line in text.splitlines()]

        await self.eventually(lambda: len(lines()) == 2, "both lines are written")
        one, other = sorted(lines(), key=lambda line: line["node"])
        for line, node in ((one, IN_WORKER), (other, IN_FIRST)):
            self.assertEqual(line["node"], node)
            self.assertEqual(line["result"], "ended")
            self.assertEqual(line["bytes_to_caller"], 100_000)
            self.assertTrue(re.fullmatch(rf"unix:uid=\d+,gid=\d+,pid={os.getpid()}", line["who"]))

    async def test_callers_over_tls_reach_both_nodes(self) -> None:
        """Their connections stay in the first process, and their bytes go by way of the worker."""
        size = 4 * MEBIBYTE
        source = self.listen(lambda: Source(size))
        port = free_ports.take()
        tunnel, _ = await self.start_both(server_extra=("--connect-endpoint", f"ssl:{port}"))
        for node in (IN_WORKER, IN_FIRST):
            download = partial(tls_download, tunnel.server.state, port, node, source.port)
            digest = await self.within(60, deferToThread(download), f"the download from {node}")
            self.assertEqual(digest, source.peers[-1].payload.digest)

    async def test_no_process_keeps_descriptors(self) -> None:
        """After many passed connections all processes have as many descriptors as before."""
        source = self.listen(lambda: Source(1000))
        tunnel, _ = await self.start_both()
        (worker,) = worker_pids(tunnel.server)

        def descriptors() -> list[int]:
            pids = (tunnel.server.pid, worker)
            return [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]

        await self.download(tunnel, IN_WORKER, source)
        before = descriptors()
        for _ in range(50):
            await self.download(tunnel, IN_WORKER, source)
        await self.eventually(
            lambda: all(now <= then for now, then in zip(descriptors(), before, strict=True)),
            f"the descriptors are back to {before}",
            20,
        )

    async def test_frames_behind_a_hello_belong_to_the_session(self) -> None:
        """In a worker too, where the agent is let in later than its HELLO is read."""
        tunnel, _ = await self.start_both()
        await tunnel.agent.stop()
        answering = deferToThread(say_all_at_once, tunnel.agent.state, tunnel.server.agent_port)
        answer = await self.within(20, answering, "the server has answered")
        self.assertTrue(answer.endswith(frames.offset_frame(frames.PONG, 0, 7)), answer)

    async def test_debug_looks_into_workers(self) -> None:
        """It says in which process a node's sessions are, and that one is asked for the page."""
        echo = self.listen(Echo)
        tunnel, _ = await self.start_both()
        client = EchoClient(reactor)
        await self.to(tunnel, IN_WORKER, echo, client)
        (worker,) = worker_pids(tunnel.server)
        path = f"/debug/sessions?node={IN_WORKER}"

        async def elsewhere() -> bool:
            answer = json.loads((await tunnel.server.get(path))[1])
            self.assertEqual(answer["sessions"], [])
            expected = [{"worker": 1, "pid": worker, "sessions": 1}]
            return answer["sessions_of_workers"] == expected

        await self.eventually(elsewhere, "the worker's session is counted")
        _, body = await tunnel.server.get(f"{path}&worker=1")
        # Answers that come later are in chunks.
        self.assertIn(f'"destination": "127.0.0.1:{echo.port}"', body)
        _, body = await tunnel.server.get("/debug/stacks?worker=1")
        self.assertIn("server/workers/program.py", body)
        _, body = await tunnel.server.get("/debug")
        self.assertIn(f"1 (pid {worker})", body)

    async def test_the_status_page_has_the_streams_of_workers(self) -> None:
        """With what they have carried, a few seconds later."""
        echo = self.listen(Echo)
        tunnel, _ = await self.start_both()
        client = EchoClient(reactor)
        await self.to(tunnel, IN_WORKER, echo, client)
        await client.round_trip()

        async def shown() -> bool:
            status, page = await tunnel.server.get("/")
            return status == 200 and f"127.0.0.1:{echo.port}" in page

        await self.eventually(shown, "the stream is on the page", 15)


class WorkersFlagTests(EndToEndTestCase):
    """What cannot be had together."""

    async def test_twisted_transports_cannot_be_passed_on(self) -> None:
        """The server says so, and does not start."""
        _, errors, status = await self.run_command(
            sys.executable, "-m", "twisted", "yurttunnel-server", "--standalone",
            "--state-dir", self.directory, "--workers", "2", "--transport", "twisted",
        )  # fmt: skip
        self.assertNotEqual(status, 0)
        self.assertIn(b"--workers needs --transport direct", errors)
