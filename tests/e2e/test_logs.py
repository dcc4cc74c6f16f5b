"""The logs of real programs."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from benchmarks.ports import free_ports
from tests.e2e.clients import Peer
from tests.e2e.support import EndToEndTestCase


class LogTests(EndToEndTestCase):
    """The format and the fields of logs."""

    async def refused(self, tunnel) -> None:
        """Connect to a closed port of the node, with the request ID ``asked-7``."""
        headers = {"X-Request-Id": "asked-7", "Authorization": "Bearer planted-secret"}
        answer = await self.connect(tunnel, f"edge-1:{free_ports.take()}", Peer(), headers)
        self.assertEqual(502, answer.status)

    async def test_json(self) -> None:
        """Each line is an object; the node and the request ID are fields."""
        json_lines = ("--log-format", "json")
        tunnel = await self.start_tunnel(server_extra=json_lines, agent_extra=json_lines)
        await self.refused(tunnel)
        token = Path(tunnel.server.token_path).read_text().strip()
        await tunnel.agent.stop()
        await tunnel.server.stop()
        for program in (tunnel.agent, tunnel.server):
            entries = [json.loads(line) for line in program.log.splitlines()]
            for entry in entries:
                self.assertLessEqual({"time", "level", "namespace", "message"}, set(entry))
            self.assertNotIn(token, program.log)
            self.assertNotIn("planted-secret", program.log)
        connected = [each for each in entries if " connected from " in each["message"]]
        self.assertEqual(["edge-1"], [each["node"] for each in connected])
        (request,) = [each for each in entries if each["namespace"] == "yurttunnel.server.requests"]
        self.assertEqual(("edge-1", "asked-7"), (request["node"], request["request_id"]))

    async def test_text_without_single_requests(self) -> None:
        """The default is text, also without a terminal; ``--v 1`` shows no requests."""
        tunnel = await self.start_tunnel(server_extra=("--v", "1"))
        await self.refused(tunnel)
        await tunnel.server.stop()
        self.assertRegex(tunnel.server.log, r"(?m)#info\] edge-1: connected from 127\.0\.0\.1:\d+")
        self.assertNotIn("asked-7", tunnel.server.log)

    async def test_unread_log(self) -> None:
        """If the log is not read, requests are still served, and the server exits in time."""
        tunnel = self.make_tunnel()
        os.mkfifo(tunnel.server.log_path)
        reader = os.open(tunnel.server.log_path, os.O_RDWR)
        self.addCleanup(os.close, reader)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        tunnel.server.start()
        # It has opened the pipe; no other program must wait for it.
        os.unlink(tunnel.server.log_path)
        await tunnel.server.ready()
        tunnel.agent.start()
        await tunnel.agent.ready()
        for _ in range(100):
            await self.refused(tunnel)
        _, stacks = await tunnel.server.get("/debug/stacks")
        self.assertIn("thread log\n", stacks)
        await tunnel.server.stop()
