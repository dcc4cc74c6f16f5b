"""The command ``yurttunnel``: it starts programs, and queries running ones."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError as RefusedConnection
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SkipTest

from benchmarks.ports import free_ports
from tests.e2e.clients import Echo, EchoClient
from tests.e2e.hub.programs import Hub
from tests.e2e.kubectl import Kubectl, Quickstart, find_kubectls
from tests.e2e.programs import READY_SECONDS, ROOT, SHELL_READY_SECONDS
from tests.e2e.proxy.programs import IdleProxy
from tests.e2e.support import EndToEndTestCase, which
from tests.e2e.terminals import Terminal
from tests.kept_secrets import secrets_in
from yurttunnel.cli.client import Process

CHATTER = ("starting on", "Main loop terminated", "Starting reactor", "Port 1", "[-]")


REQUEST = b"POST /v1/revocations?node=edge-7 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"


def mutants(choice: random.Random, count: int) -> Iterator[bytes]:
    """Yield mutated requests: bytes changed, removed or duplicated."""
    for _ in range(count):
        data = bytearray(REQUEST)
        for _ in range(choice.randrange(1, 4)):
            index = choice.randrange(len(data))
            match choice.randrange(3):
                case 0:
                    data[index] = choice.randrange(256)
                case 1:
                    data = data[: index + 1]
                case _:
                    data[index:index] = data[: choice.randrange(len(data))]
        yield bytes(data)


class CommandCase(EndToEndTestCase):
    """A test case with a server and an agent started by the command; it runs further ones."""

    prefix: tuple[str, ...] = ()
    """The command that starts the interpreter of further ones; without it the fork server does."""

    def make_tunnel(self, **options):
        """Start both by the command."""
        tunnel = super().make_tunnel(**options)
        for program in (tunnel.server, tunnel.agent):
            program.use_yurttunnel_command()
        return tunnel

    async def run_yurttunnel(
        self, *arguments: str, prefix: tuple[str, ...] = ()
    ) -> tuple[str, str, int]:
        """Run a command to its end: standard output, standard error and status."""
        prefix = prefix or self.prefix
        output, errors, status = await self.run_module("yurttunnel.cli", *arguments, prefix=prefix)
        return output.decode(), errors.decode(), status

    async def run_unread(self, module: str, *arguments: str) -> tuple[bytes, int]:
        """Run a command whose standard output is not read; return standard error and status."""
        reader, writer = os.pipe()
        os.close(reader)
        return await self.run_into(writer, module, *arguments)

    async def run_into(self, output: int, module: str, *arguments: str) -> tuple[bytes, int]:
        """Run a command with this standard output, which is closed; return standard error and
        status."""
        try:
            ended = await deferToThread(
                subprocess.run,
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE,
                cwd=self.directory, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
            )  # fmt: skip
        finally:
            os.close(output)
        return ended.stderr, ended.returncode

    async def done(self, *arguments: str) -> str:
        """Run a command that must succeed; return its output."""
        output, errors, status = await self.run_yurttunnel(*arguments)
        self.assertEqual(0, status, errors)
        return output

    async def failed(self, *arguments: str, status: int = 1) -> str:
        """Run a command that must fail; return its one-line error."""
        output, errors, ended = await self.run_yurttunnel(*arguments)
        self.assertEqual(("", status), (output, ended), errors)
        self.assertEqual(1, errors.count("\n"), errors)
        return errors.strip()


class CommandTests(CommandCase):
    """Commands with a running server and agent."""

    async def test_running_programs(self) -> None:
        """Status, tokens, log levels and revocation work; the log has no lines of Twisted's own."""
        tunnel = await self.start_tunnel()
        server, agent = tunnel.server.state, tunnel.agent.state
        printed = json.loads(await self.done("status", "--state-dir", server, "-o", "json"))
        self.assertEqual(
            [("yurttunnel-server", tunnel.server.pid, True, 1, server)],
            [
                tuple(each[name] for name in (
                    "program", "pid", "ready", "sessions_connected", "directory"
                ))
                for each in printed
            ],
        )  # fmt: skip
        self.assertIn("of node edge-1: ready", await self.done("status", "--state-dir", agent))
        # They are found without a flag, even if others run on this machine.
        found = json.loads((await self.run_yurttunnel("status", "-o", "json"))[0])
        self.assertLessEqual({server, agent}, {each["directory"] for each in found})

        nodes = json.loads(await self.done("nodes", "--state-dir", server, "-o", "json"))
        [node] = nodes["nodes"]
        self.assertEqual(("edge-1", "connected"), (node["node"], node["state"]))
        printed = await self.done("node", "edge-1", "--state-dir", server)
        self.assertIn("state: connected\n", printed)
        unknown = await self.failed("node", "edge-7", "--state-dir", server)
        self.assertEqual("yurttunnel node: unknown node 'edge-7': did you mean edge-1?", unknown)

        token = (await self.done("token", "create", "--state-dir", server)).strip()
        listed = await self.done("token", "list", "--state-dir", server)
        self.assertIn(token.partition(".")[0], listed)
        self.assertNotIn(token.split(".")[1], listed + tunnel.server.log)
        path = Path(self.directory, "token")
        path.write_text(token)
        path.chmod(0o600)
        other = tunnel.another_agent(node="edge-2", token_path=str(path), state="B")
        other.start()
        await other.ready()
        revoked = await self.done("token", "revoke", token, "--state-dir", server)
        self.assertIn("is revoked", revoked)
        self.assertIn(
            "there is no join token with this id",
            await self.failed("token", "revoke", token, "--state-dir", server),
        )

        level = ("logs-level", "--state-dir", server)
        self.assertEqual("info\n", await self.done(*level))
        self.assertEqual(
            "warn, in 300 s info again\n", await self.done(*level, "--set", "warn", "--for", "5m")
        )
        revoked = await self.done("revoke", "edge-2", "--state-dir", server)
        self.assertEqual("node edge-2 is revoked\n", revoked)
        _, printed, _ = await self.run_yurttunnel("revoke", "egde-1", "--state-dir", server)
        self.assertEqual("unknown node 'egde-1': did you mean edge-1?\n", printed)

        async def is_removed() -> bool:
            return [each["node"] for each in await tunnel.server.agents()] == ["edge-1"]

        await self.eventually(is_removed, "the session of edge-2 has ended")
        self.assertIn("has no /v1/tokens", await self.failed("token", "list", "--state-dir", agent))
        for program in (tunnel.agent, tunnel.server):
            self.assertEqual(-signal.SIGTERM, await program.stop())
            for chatter in CHATTER:
                self.assertNotIn(chatter, program.log)

    async def test_forwards(self) -> None:
        """A forward is added and removed by command; its connections continue."""
        tunnel = await self.start_tunnel()
        target, port = self.listen(Echo), free_ports.take()
        here = ("--state-dir", tunnel.server.state)
        await self.done("forward", "add", f"{port}=edge-1/127.0.0.1:{target.port}", *here)
        client = EchoClient(reactor)
        await self.dial(port, client)
        await client.round_trip()
        listed = await self.done("forward", "ls", *here)
        here_and_there = rf"127\.0\.0\.1:{port} +edge-1 +127\.0\.0\.1:{target.port} +1 +command"
        self.assertRegex(listed, here_and_there)
        other = f"{free_ports.take()}=edge-7/127.0.0.1:80"
        _, errors, status = await self.run_yurttunnel("forward", "add", other, *here)
        self.assertEqual(0, status)
        self.assertEqual(
            "node edge-7 is not connected now: until it is, connections to this port are reset; did"
            " you mean edge-1?\n",
            errors,
        )
        await self.done("forward", "rm", other.partition("=")[0], *here)
        refusal = await self.failed("forward", "add", f"{port}=edge-1/127.0.0.1:1", *here)
        self.assertIn("is open already", refusal)
        await self.done("forward", "rm", str(port), *here)
        self.assertEqual(1, (await self.done("forward", "ls", *here)).count("\n"))
        with self.assertRaises(RefusedConnection):
            await self.dial(port, EchoClient(reactor))
        await client.round_trip()

    async def test_diagnose(self) -> None:
        """It finds the flags of the process, and its bundle contains no secrets."""
        tunnel = self.make_tunnel()
        tunnel.agent.disable_fork_server()
        await tunnel.start()
        bundle = os.path.join(self.directory, "bundle.tar.gz")
        output, errors, _ = await self.run_yurttunnel(
            "diagnose", "--program", "agent", "--state-dir", tunnel.agent.state, "-o", bundle
        )
        self.assertEqual("", errors)
        self.assertIn(f"{bundle}\nyurttunnel-agent: ", output)
        with tarfile.open(bundle) as archive:
            names = {member.name.rpartition("/")[2] for member in archive}
        self.assertLessEqual({"summary.txt", "process.txt"}, names)

    def sit_down(self, name: str, **variables: str) -> Terminal:
        """Open a terminal that finds the command; its state is in a directory with this name."""
        command = Path(self.directory, "bin", "yurttunnel")
        if not command.exists():
            command.parent.mkdir()
            command.write_text(f'#!/bin/sh\nexec {sys.executable} -m yurttunnel.cli "$@"\n')
            command.chmod(0o755)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            # What root has is not for tests.
            "YURTTUNNEL_STATE_DIR": f"{self.directory}/{name}",
            **variables,
        }
        log = Path(self.directory, f"{name}.log")
        terminal = Terminal(which("bash"), self.directory, log, environment)
        self.addCleanup(terminal.close)
        return terminal

    async def test_a_hub_and_a_proxy(self) -> None:
        """They have admin sockets, too, for status, discovery and log levels."""
        hub = Hub(reactor, self.directory, "https://127.0.0.1:1")
        proxy = IdleProxy(reactor, self.directory)
        for program, name, state in (
            (hub, "hub", hub.state),
            (proxy, "proxy", proxy.state),
        ):
            self.addCleanup(program.kill)
            program.use_yurttunnel_command()
            program.disable_fork_server()
            program.start()
            await self.eventually(
                Path(state, "yurttunnel.sock").exists, "there is a socket", READY_SECONDS
            )
            here = ("--state-dir", state)
            output, _, _ = await self.run_yurttunnel("status", "-o", "json", *here)
            [printed] = json.loads(output)
            self.assertEqual(
                (f"yurt{name}", program.pid, "edge-1"),
                (printed["program"], printed["pid"], printed["node"]),
            )
            text, _, _ = await self.run_yurttunnel("status", *here)
            self.assertRegex(text, rf"^yurt{name} \S+ of node edge-1: ")
            level = ("logs-level", "--program", name, *here)
            self.assertEqual("info\n", await self.done(*level))
            await self.done(*level, "--set", "debug", "--for", "1m")
            self.assertIn("debug", await self.done(*level))
            bundle = os.path.join(self.directory, f"{name}.tar.gz")
            output, errors, _ = await self.run_yurttunnel(
                "diagnose", "--program", name, *here, "-o", bundle
            )
            self.assertEqual("", errors)
            self.assertIn(f"{bundle}\nyurt{name}: ", output)
            own = Process(Path(state, "yurttunnel.sock"))
            self.assertEqual(["/v1/process"], (await deferToThread(own.get, "/v1"))["paths"])
            self.assertEqual(-signal.SIGTERM, await program.stop())

    async def test_what_to_do_next(self) -> None:
        """A server on a terminal prints the command for a node, which works as printed."""
        names = ("tunnel-agent-connect", "meta", "secure", "insecure")
        ports = {name: free_ports.take() for name in names}
        server = self.sit_down("S", YURTTUNNEL_BIND_ADDRESS="127.0.0.1")
        given = [f"--{name}-port={port}" for name, port in ports.items()]
        server.type(f"yurttunnel server --standalone {' '.join(given)}")
        line = await self.eventually(
            lambda: server.find_line("YURTTUNNEL_JOIN_TOKEN=.*"),
            "the command is told",
            SHELL_READY_SECONDS,
        )
        self.assertIn(f"http://127.0.0.1:{ports['meta']}/", server.screen())
        token = Path(self.directory, "S", "join-token")
        self.assertIn(str(token), "".join(server.screen().split()))
        self.assertIn(token.read_text().strip(), line)
        agent = self.sit_down(
            "A", YURTTUNNEL_META_PORT=str(free_ports.take()), YURTTUNNEL_NODE_NAME="edge-9"
        )
        agent.type(line)
        connected = f"connected to 127.0.0.1:{ports['tunnel-agent-connect']} as edge-9"
        await self.eventually(
            lambda: connected in agent.log, "it is connected", SHELL_READY_SECONDS
        )
        await self.eventually(
            lambda: agent.find_line("yurttunnel forward add 9000=edge-9/127.0.0.1:80"),
            "it tells what to do on the server",
            SHELL_READY_SECONDS,
        )

    def _end_process(self, process: subprocess.Popen) -> None:
        process.kill()
        process.wait()

    async def test_other_users(self) -> None:
        """Other users are rejected: by the mode of the socket, and otherwise by their user ID."""
        if os.geteuid() != 0:
            raise SkipTest("only root can become another user")
        which("setpriv")
        tunnel = await self.start_tunnel()
        sockets = Path(tunnel.server.state, "yurttunnel.sock")
        request = f"""
import socket
with socket.socket(socket.AF_UNIX) as caller:
    caller.connect({str(sockets)!r})
    caller.sendall(b"POST /v1/tokens HTTP/1.0\\r\\n\\r\\n")
    for data in iter(lambda: caller.recv(4096), b""):
        print(data.decode(), end="")
"""
        as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        command = (*as_nobody, "/usr/bin/python3", "-c", request)
        which("/usr/bin/python3")
        _, errors, _ = await self.run_command(*command)
        self.assertIn(b"PermissionError", errors)
        for path in (self.directory, tunnel.server.state):
            os.chmod(path, 0o755)
        os.chmod(sockets, 0o666)
        output, errors, _ = await self.run_command(*command)
        self.assertIn(b" 403 ", output, errors)
        self.assertIn(b"user id 65534 is not allowed", output)
        os.chmod(tunnel.server.state, 0o700)

    async def test_a_killed_process(self) -> None:
        """A stale socket is reported as such, and is replaced by the next process."""
        tunnel = await self.start_tunnel()
        status = ("status", "--state-dir", tunnel.server.state)
        tunnel.server.kill()
        self.assertIn("has ended", await self.failed(*status))
        tunnel.server.start()
        await tunnel.server.ready()
        await self.done(*status)

    async def test_watch(self) -> None:
        """A node that disconnects gets a line, and the command continues."""
        tunnel = await self.start_tunnel()
        path = os.path.join(self.directory, "watch.log")
        with open(path, "wb") as file:
            watching = subprocess.Popen(
                [sys.executable, "-m", "yurttunnel.cli", "nodes", "--watch",
                 "--state-dir", tunnel.server.state],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=self.directory,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        self.addCleanup(self._end_process, watching)

        def is_printed(pattern: str) -> bool:
            return re.search(pattern, Path(path).read_text()) is not None

        await self.eventually(lambda: is_printed(r"(?m)^edge-1 +connected "), "it is connected", 30)
        await tunnel.agent.stop()
        await self.eventually(lambda: is_printed(r"(?m)^edge-1 +lost "), "it was lost", 30)
        watching.send_signal(signal.SIGINT)
        await self.eventually(lambda: watching.poll() is not None, "the command has ended", 30)
        self.assertEqual(130, watching.returncode)
        self.assertNotIn("Traceback", Path(path).read_text())
        state = ("--state-dir", tunnel.server.state)
        self.assertEqual((b"", 141), await self.run_unread("yurttunnel.cli", "nodes", "-w", *state))

    async def test_no_secret(self) -> None:
        """No page on a socket or a meta port contains a key or the secret of a token."""
        tunnel = await self.start_tunnel()
        gone = tunnel.another_agent(node="edge-2", state="B")
        gone.start()
        await gone.ready()
        await gone.stop()
        made = (await self.done("token", "create", "--state-dir", tunnel.server.state)).strip()
        secrets = {
            *secrets_in(tunnel.server.state, tunnel.agent.state, gone.state),
            made.split(".")[1].encode(),
        }
        # Each has a key of its own, of several lines.
        for program in (tunnel.server, tunnel.agent, gone):
            self.assertLess(1, len(secrets_in(program.state)))
        pages = ["/", "/healthz", "/readyz", "/metrics", "/agents", "/debug", "/debug/sessions"]
        pages += ["/debug/reactor", "/debug/stacks", "/debug/memory", "/debug/log-level"]
        of_nodes = ["/nodes", "/nodes/edge-1", "/nodes/edge-2"]
        for program, more in ((tunnel.server, of_nodes), (tunnel.agent, [])):
            process = Process(Path(program.state, "yurttunnel.sock"))
            own = (await deferToThread(process.get, "/v1"))["paths"]
            texts = {
                page: await deferToThread(process.get_text, page) for page in (*pages, *more, *own)
            }
            for page in ("/", "/?q=edge", "/?node=edge-1", "/?node=edge-2", *more):
                status, texts[f"{page} of the meta port"] = await program.get(page)
                self.assertEqual(200, status, page)
            for page, text in texts.items():
                for secret in secrets:
                    self.assertNotIn(secret, text.encode(), page)
                self.assertNotIn("PRIVATE KEY", text, page)

    async def test_bytes_of_all_kinds(self) -> None:
        """An invalid request closes its connection and has no other effect."""
        tunnel = await self.start_tunnel()
        before = tunnel.server.descriptors()
        path = os.path.join(tunnel.server.state, "yurttunnel.sock")
        for data in (
            b"\0" * 1000,
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /v1/tokens HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 65536,
            b"GET /" + b"a" * 70000,
            b"GET /v1/tokens HTTP/1.1\r\n" + b"X: y\r\n" * 500,
            *mutants(random.Random(7), 100),
        ):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(path)
                caller.setblocking(False)
                try:
                    caller.send(data)
                except OSError as error:
                    self.fail(f"the socket takes nothing: {error}")
        await self.descriptors_return(tunnel.server, before)
        await self.done("status", "--state-dir", tunnel.server.state)
        self.assertEqual("edge-1", (await tunnel.server.agents())[0]["node"])


class InClusterTests(CommandCase):
    """``kubectl yurttunnel``, which queries the servers of a cluster."""

    async def test_plugin(self) -> None:
        """A real kubectl finds the plugin, which finds the server with kubectl's permissions."""
        versions = find_kubectls()
        if not versions:
            raise SkipTest("kubectl is not installed")
        quickstart = Quickstart(reactor, self.directory)
        self.addCleanup(lambda: Deferred.fromCoroutine(quickstart.stop(20)))
        quickstart.start()
        await quickstart.wait_for_instructions()
        kubectl = Kubectl(reactor, [*versions.values()][-1], quickstart)
        kubectl.add_plugin(Path(self.directory, "bin"))
        # The node has no network of its own: a pod's port 10265 is the one of this server.
        await kubectl.output(
            *("run", "server", "--image=none", "--labels=k8s-app=yurt-tunnel-server"),
            *("--", "sleep", "1000"),
        )
        where = ("--namespace=default", f"--meta-port={quickstart.meta_port}")

        async def printed() -> str:
            finished = await kubectl.run("yurttunnel", "nodes", *where)
            return finished.out.decode()

        table = await self.eventually(printed, "the pod of the server runs", 60, interval=0.5)
        self.assertRegex(table, r"(?m)^edge-1 +connected ")
        status = await kubectl.output("yurttunnel", "status", *where)
        self.assertEqual("server: ready, nodes connected: 1", status.splitlines()[0])
        node = json.loads(await kubectl.output("yurttunnel", "node", "edge-1", "-ojson", *where))
        self.assertEqual("edge-1", node["node"])
        offered = await kubectl.output("__complete", "yurttunnel", "nod")
        self.assertEqual({"node", "nodes"}, {line.split()[0] for line in offered.splitlines()[:2]})
        finished = await kubectl.run("yurttunnel", "logs-level")
        self.assertEqual(
            (
                64,
                b"kubectl yurttunnel: logs-level is for a process: in a server's pod, kubectl exec"
                b" POD -- yurttunnel logs-level\n",
            ),
            (finished.status, finished.error),
        )


class WithoutProgramsTests(CommandCase):
    """Commands without a running program, and invalid ones, in interpreters of their own."""

    prefix = ("env",)

    async def test_one_line(self) -> None:
        """Each error is one line, with the fix."""
        nothing = os.path.join(self.directory, "S")
        self.assertEqual(
            f"yurttunnel status: nothing runs at {nothing}/yurttunnel.sock: the socket does not"
            " exist",
            await self.failed("status", "--state-dir", nothing),
        )
        for arguments, sentence in (
            (["stauts"], "yurttunnel: there is no command 'stauts': did you mean status?"),
            (
                ["token"],
                "yurttunnel: token is the beginning of a command: token create|list|revoke",
            ),
            (["revoke"], "yurttunnel revoke: NODE is missing: give it"),
            (
                ["forward", "add"],
                "yurttunnel forward add: LISTEN=NODE/HOST:PORT is missing: give it",
            ),
            (
                ["forward", "rm", "foo"],
                "yurttunnel forward rm: 'foo' is neither PORT (on the loopback address) nor"
                " ADDRESS:PORT",
            ),
            (
                ["token", "create", "--lifetime", "400d"],
                "yurttunnel token create: --lifetime: '400d' is no lifetime of a token: give one"
                " second to 365 days, as 24h",
            ),
            (
                ["man", "forward"],
                "yurttunnel man: forward is the beginning of a command: forward add|rm|ls",
            ),
            (
                ["status", "-o", "yaml"],
                "yurttunnel status: --output: 'yaml' is none of these: text, json",
            ),
            (
                ["nodes", "edge-1"],
                "yurttunnel nodes: unexpected argument 'edge-1': did you mean yurttunnel node"
                " edge-1?",
            ),
            (
                ["get", "nodes"],
                "yurttunnel: there is no command 'get': yurttunnel --help lists the commands",
            ),
        ):
            self.assertEqual(sentence, await self.failed(*arguments, status=64))
        self.assertIn("--no-such-flag", await self.failed("server", "--no-such-flag", status=64))
        self.assertEqual(
            "the Kubernetes API: there is no API: KUBERNETES_SERVICE_HOST and"
            " KUBERNETES_SERVICE_PORT are not set, so this is no pod; give --kubeconfig FILE;"
            " behind a hub, give --master http://127.0.0.1:10261",
            await self.failed("proxy"),
        )

    async def test_a_token_that_is_not_there(self) -> None:
        """An agent without a token fails before it has created anything."""
        state, file = (os.path.join(self.directory, name) for name in ("A", "no-token"))
        printed = await self.failed(
            *("agent", "--standalone", "--state-dir", state, "--node-ip", "10.0.0.5"),
            *("--tunnelserver-addr", "192.0.2.7", "--join-token-file", file),
        )
        self.assertEqual(f"--join-token-file {file}: No such file or directory", printed)
        self.assertFalse(os.path.exists(state))

    async def test_nobody_reads(self) -> None:
        """Output into a closed pipe, as with head, ends the command like other programs."""
        for module, arguments in (
            ("yurttunnel.cli", ("--help",)),
            ("yurttunnel.cli", ("server", "--help")),
            ("yurttunnel.cli", ("nodes", "--help-all")),
            ("yurttunnel.cli", ("man", "server")),
            ("twisted", ("yurttunnel-server", "--help")),
        ):
            ended = await self.run_unread(module, *arguments)
            self.assertEqual((b"", 141), ended, arguments)

    async def test_a_full_disk(self) -> None:
        """A full disk gives a one-line error."""
        sentence = b"standard output cannot be written: No space left on device\n"
        for module, arguments in (
            ("yurttunnel.cli", ("--help",)),
            ("yurttunnel.cli", ("completion", "bash")),
            ("twisted", ("yurttunnel-server", "--help")),
        ):
            full = os.open("/dev/full", os.O_WRONLY)
            ended = await self.run_into(full, module, *arguments)
            self.assertEqual((sentence, 1), ended, arguments)

    async def test_help(self) -> None:
        """All commands are listed, and each has help."""
        listed = await self.done("--help")
        for name in ("server", "agent", "quickstart", "hub", "proxy", "token create", "status"):
            self.assertIn(f"  {name} ", listed)
        for arguments in (("token", "create", "--help"), ("help", "token", "create")):
            self.assertIn("--lifetime", await self.done(*arguments))
        for arguments in (("server", "--help"), ("server", "-h"), ("--help", "server")):
            self.assertIn("--standalone", await self.done(*arguments))
        family = await self.done("forward", "--help")
        self.assertEqual(
            [
                "Usage: yurttunnel forward COMMAND [flags]",
                "forward add",
                "forward rm",
                "forward ls",
            ],
            [line.strip().partition("  ")[0] for line in family.splitlines() if "forward" in line][
                :4
            ],
        )
