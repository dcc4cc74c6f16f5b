"""``/debug`` and ``--diagnose`` of real programs: running, hanging, and stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import tarfile
from pathlib import Path

from twisted.internet import reactor

from benchmarks.ports import free_ports
from tests.e2e.clients import Echo, EchoClient, RequestClient
from tests.e2e.programs import Program
from tests.e2e.support import EndToEndTestCase, which

GARBAGE_STREAMS = 200
"""Enough streams for several collections, if each left more than ten objects."""

BEARER = "opaque-bearer-of-a-caller"

KUBE_CONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: opaque-token-of-a-kubeconfig}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


class DiagnoseTestCase(EndToEndTestCase):
    """A test case with diagnoses."""

    async def diagnose(
        self, *arguments: str, prefix: tuple[str, ...] = ()
    ) -> tuple[str, int, dict[str, str]]:
        """Diagnose with a program's command line; return the output, the status, and the files.

        ``prefix`` is put before the interpreter.
        """
        name = f"{self.directory}/{len(os.listdir(self.directory))}.tar.gz"
        output, errors, status = await self.run_module(
            "twisted", *arguments, "--diagnose", "--output", name, prefix=prefix
        )
        self.assertEqual(b"", errors)
        self.assertEqual(0o600, stat.S_IMODE(os.stat(name).st_mode))
        with tarfile.open(name) as archive:
            found = {
                member.name.partition("/")[2]: archive.extractfile(member).read().decode()
                for member in archive
            }
        self.assertIn(name, output.decode())
        self.assertEqual(status, 0 if found["summary.txt"] == "nothing\n" else 1)
        return output.decode(), status, found

    async def post(self, program: Program, path: str) -> str:
        """Change something through a page of ``/debug``, with a separate client."""
        url = f"http://127.0.0.1:{program.meta_port}{path}"
        output, errors, status = await self.run_command(
            "curl", "-sS", "--noproxy", "*", "--max-time", "10", "-X", "POST", url
        )
        self.assertEqual(status, 0, errors)
        return output.decode()


class DebugTests(DiagnoseTestCase):
    """The pages over real connections."""

    async def test_both_show_the_same_stream(self) -> None:
        """Server and agent show a stream with the same request ID."""
        target = self.listen(Echo)
        tunnel = await self.start_tunnel()
        client = await self.connected(tunnel, target, EchoClient(reactor))
        await client.round_trip()
        found = []
        for program in (tunnel.server, tunnel.agent):
            status, body = await program.get("/debug/sessions")
            self.assertEqual(status, 200)
            found.append(re.findall(r'"(?:opened|destination|request_id)": "(.*)"', body))
        (here, at_server, first), (there, at_agent, second) = found
        self.assertEqual((here, there), ("here", "by the peer"))
        self.assertEqual((at_server, first), (at_agent, second))
        self.assertEqual(at_server, f"127.0.0.1:{target.port}")

    async def test_memory_is_traced_by_a_real_thread(self) -> None:
        """Allocations are shown while memory is traced, and the tunnel works."""
        tunnel = await self.start_tunnel()
        self.assertIn("traced", await self.post(tunnel.server, "/debug/memory?frames=1"))
        await tunnel.server.agents()
        status, body = await tunnel.server.get("/debug/memory")
        self.assertEqual(status, 200)
        self.assertRegex(body, r"traced: \d+\.\d MiB now")
        self.assertRegex(body, r'KiB in \d+ blocks\n  File "')
        self.assertIn("no longer", await self.post(tunnel.server, "/debug/memory?frames=0"))

    async def test_ended_streams_are_no_garbage(self) -> None:
        """What ended streams leave is freed at once, without the garbage collector."""
        target = self.listen(Echo)
        tunnel = await self.start_tunnel()
        programs = (tunnel.server, tunnel.agent)
        before = [await self.collected(program) for program in programs]
        for _ in range(GARBAGE_STREAMS):
            client = await self.connected(tunnel, target, EchoClient(reactor, 0))
            await client.round_trip()
            client.transport.loseConnection()
            await client.when_lost()
        await self.eventually(tunnel.has_no_stream, "all streams have ended")
        for program, earlier in zip(programs, before, strict=True):
            self.assertLess(await self.collected(program) - earlier, GARBAGE_STREAMS)

    async def collected(self, program: Program) -> int:
        """Return the number of objects that the garbage collector has freed so far."""
        _, body = await program.get("/debug/memory")
        return sum(map(int, re.findall(r"(\d+) collected", body)))

    async def test_the_log_level_changes_what_is_logged(self) -> None:
        """A higher level hides lower ones, without a restart."""
        tunnel = await self.start_tunnel()
        self.assertIn("warn", await self.post(tunnel.server, "/debug/log-level?level=warn"))
        before = tunnel.server.log
        self.assertIn("log level warn for 600 s", before)
        await tunnel.agent.stop()
        self.assertEqual(before, tunnel.server.log)
        await self.post(tunnel.server, "/debug/log-level?level=info")
        again = tunnel.another_agent(token_path=None)
        again.start()
        await again.ready()
        await self.eventually(
            lambda: "connected from" in tunnel.server.log[len(before) :], "it is told"
        )

    async def test_other_addresses_than_loopback_are_refused(self) -> None:
        """With the meta port on all addresses, /debug answers loopback only."""
        address = own_address()
        if address is None:
            self.skipTest("this machine has no address but loopback")
        extra = ("--insecure-bind-address", "0.0.0.0")
        tunnel = self.make_tunnel(server_extra=extra)
        tunnel.server.start()
        await tunnel.server.ready()
        status, _ = await tunnel.server.get("/debug/sessions")
        self.assertEqual(status, 200)
        tunnel.server.meta_host = address
        status, _ = await tunnel.server.get("/healthz")
        self.assertEqual(status, 200)
        status, body = await tunnel.server.get("/debug/sessions")
        self.assertEqual((status, "only for this machine" in body), (403, True))

    async def test_callers_of_the_tunnel_are_refused(self) -> None:
        """The agent's /debug is not reached by CONNECT, nor through a port of the server.

        The rest of its meta port is reached if it is allowed.
        """
        tunnel = self.make_tunnel()
        where = f"127.0.0.1:{tunnel.agent.meta_port}"
        tunnel.agent.arguments += ["--allow-destination", where]
        await tunnel.start()
        ask = f"POST /debug/log-level?level=warn HTTP/1.0\r\nHost: {where}\r\n\r\n".encode()
        question = RequestClient(ask)
        answer = await self.connect(tunnel, where, question)
        self.assertEqual(answer.status, 200, answer.body)
        await question.when_read_ended()
        self.assertIn(b" 403 ", question.answer)
        url = f"http://127.0.0.1:{tunnel.server.insecure_port}/debug/sessions"
        output, errors, status = await self.run_command(
            "curl", "-sS", "--noproxy", "*", "--max-time", "10", "-H", f"Host: {where}", url
        )
        self.assertEqual(status, 0, errors)
        self.assertIn(b"not served through the tunnel", output)
        status, _ = await tunnel.agent.get("/debug/sessions")
        self.assertEqual(200, status)
        self.assertNotIn("log level warn", tunnel.agent.log)


class DiagnoseTests(DiagnoseTestCase):
    """The bundle."""

    async def test_running_programs_and_no_secrets(self) -> None:
        """The bundle has all pages of a running program, its process and files, and no secret."""
        target = self.listen(Echo)
        tunnel = await self.start_tunnel()
        authority = f"127.0.0.1:{target.port}"
        client = EchoClient(reactor)
        await self.connect(tunnel, authority, client, {"Proxy-Authorization": f"Bearer {BEARER}"})
        await client.round_trip()
        token = Path(tunnel.server.token_path).read_text().strip()
        second = self.second_agent(tunnel, token)
        second.disable_fork_server()
        second.start()
        await second.ready()
        seen = Path(f"/proc/{second.pid}/cmdline").read_text()
        self.assertIn("--join-token", seen)
        self.assertNotIn(token.split(".")[1], seen)
        secrets = [token, token.split(".")[1], BEARER, *key_lines(self.directory)]
        self.assertGreater(len(secrets), 6)

        for program, node in ((tunnel.server, "edge-1"), (tunnel.agent, ""), (second, "")):
            screen, _, found = await self.diagnose(*program.arguments)
            self.assertNotIn("not ready", screen)
            self.assertIn("HTTP 200", found["pages/healthz.txt"])
            self.assertIn("ready\n", found["pages/readyz.txt"])
            self.assertIn("_build_info", found["pages/metrics.txt"])
            self.assertIn(node, found["pages/agents.txt"])
            self.assertIn("streams", found["pages/debug-sessions.txt"])
            self.assertIn("MainThread", found["pages/debug-stacks.txt"])
            self.assertIn(f"pid: {program.pid}\n", found["process.txt"])
            self.assertIn("certificate: ", found["files.txt"])
            self.assertIn("Twisted: ", found["versions.txt"])
            everything = screen + "".join(found.values())
            for secret in secrets:
                self.assertNotIn(secret, everything)
        self.assertIn("--join-token", found["process.txt"])
        self.assertIn(
            authority, (await self.diagnose(*tunnel.agent.arguments))[2]["pages/debug-sessions.txt"]
        )

    def second_agent(self, tunnel, token: str) -> Program:
        """Return an agent with its token on the command line."""
        return tunnel.another_agent(
            state="B", token_path=None, node="edge-2", extra=("--join-token", token)
        )

    async def test_programs_that_do_not_run(self) -> None:
        """Everything available without the program is collected, and the status is 1."""
        kube_config = Path(self.directory, "kube.conf")
        kube_config.write_text(KUBE_CONFIG)
        port = str(free_ports.take())
        server = ("yurttunnel-server", "--kube-config", str(kube_config), "--meta-port", port,
                  "--cert-dir", f"{self.directory}/pki", "--enable-iptables=false")  # fmt: skip
        agent = ("yurttunnel-agent", "--kube-config", str(kube_config), "--meta-port", port,
                 "--cert-dir", f"{self.directory}/pki", "--node-name", "edge-1",
                 "--node-ip", "127.0.0.1")  # fmt: skip
        for arguments in (server, agent):
            screen, status, found = await self.diagnose(*arguments)
            self.assertEqual(status, 1)
            self.assertIn("does not run here", screen)
            self.assertIn("kube.conf", found["files.txt"])
            self.assertNotIn("opaque-token-of-a-kubeconfig", "".join(found.values()))
            self.assertNotIn("firewall.txt", found)
        self.assertFalse(os.path.exists(f"{self.directory}/pki"))

    async def test_own_firewall_rules(self) -> None:
        """The bundle has the rules of the project's own chains only."""
        if os.geteuid() != 0:
            self.skipTest("only root can make firewall rules")
        own = "-N TUNNEL-PORT; -A OUTPUT -p tcp -j TUNNEL-PORT; -N ANOTHER; -A INPUT -j ANOTHER"
        rules = "".join(
            f"{which('iptables-nft')} -t nat {rule.strip()} && " for rule in own.split(";")
        )
        prefix = (which("unshare"), "-n", "sh", "-c", f'{rules} exec "$@"', "sh")
        kube_config = Path(self.directory, "kube.conf")
        kube_config.write_text(KUBE_CONFIG)
        arguments = ("yurttunnel-server", "--kube-config", str(kube_config),
                     "--cert-dir", f"{self.directory}/pki")  # fmt: skip
        _, _, found = await self.diagnose(*arguments, prefix=prefix)
        self.assertIn("    -A OUTPUT -p tcp -j TUNNEL-PORT\n", found["firewall.txt"])
        self.assertNotIn("ANOTHER", found["firewall.txt"])

    async def test_a_program_that_hangs(self) -> None:
        """A process that does not respond costs a timeout, and is described from outside."""
        tunnel = await self.start_tunnel()
        tunnel.server.signal(signal.SIGSTOP)
        try:
            screen, status, found = await self.diagnose(*tunnel.server.arguments)
        finally:
            tunnel.server.signal(signal.SIGCONT)
        self.assertEqual(status, 1)
        self.assertIn("hangs", screen)
        self.assertIn("is stopped", screen)
        self.assertIn(f"pid: {tunnel.server.pid}\n", found["process.txt"])
        self.assertIn("not requested", found["pages/metrics.txt"])

    async def test_output_alone_is_refused(self) -> None:
        """--output without --diagnose is rejected with a message."""
        server = self.make_tunnel().another_server(state="S2", extra=("--output", "x"))
        server.start()
        self.assertGreater(await server.ended(20), 0)
        self.assertIn("--output has no effect without --diagnose", server.log)


def key_lines(directory: str) -> list[str]:
    """Return a line of each private key below ``directory``."""
    lines = []
    for path in Path(directory).rglob("*"):
        if path.is_file() and not path.is_symlink() and path.suffix in (".key", ".pem"):
            match = re.search(r"PRIVATE KEY-----\n(\S+)\n", path.read_text())
            if match:
                lines.append(match[1])
    return lines


def own_address() -> str | None:
    """Return an address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # No packet is sent: this only looks the route up.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])
