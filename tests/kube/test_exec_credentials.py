"""Credentials from a program, which the test plays."""

from __future__ import annotations

import errno
import json
import os

from twisted.internet import reactor
from twisted.internet.defer import CancelledError
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.kube import exec_credentials
from yurttunnel.kube.client import CALL_SECONDS, KubeClient
from yurttunnel.kube.configuration import KubeConfiguration
from yurttunnel.kube.credentials import CredentialsUnavailable
from yurttunnel.kube.errors import ApiUnreachable
from yurttunnel.kube.exec_credentials import PLUGIN_SECONDS, ExecCredentials, Plugin
from yurttunnel.kube.resources import NODES

V1 = "client.authentication.k8s.io/v1"


class Process:
    """A running process; with ``children`` its outputs stay open when it has exited."""

    def __init__(self, protocol, command, arguments, environment):
        self.protocol = protocol
        self.command = command
        self.arguments = arguments
        self.environment = environment
        self.signals = []
        self.children = False
        self.reason = None
        self.exited = False
        self.has_input = True

    def write(self, data):
        """Accept no input."""
        assert not data

    def closeStdin(self):
        """Close its standard input."""
        self.has_input = False

    def signalProcess(self, signal):
        """Exit by the signal."""
        if self.reason is not None:
            raise ProcessExitedAlready
        self.signals.append(signal)
        self.end(ProcessTerminated(signal=signal))

    def end(self, reason):
        """Exit."""
        self.reason = reason
        if not self.children:
            self.tell()

    def loseConnection(self):
        """Close the outputs at this end."""
        if self.reason is not None:
            self.tell()

    def tell(self):
        """Report the exit, once."""
        if not self.exited:
            self.exited = True
            self.protocol.processEnded(Failure(self.reason))


class Reactor(MemoryReactorClock):
    """Records processes."""

    def __init__(self):
        super().__init__()
        self.processes = []
        self.full = False

    def spawn(self, reactor, protocol, command, arguments, environment):
        """Record a process, unless no descriptor is left."""
        if self.full:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        process = Process(protocol, command, arguments, environment)
        self.processes.append(process)
        protocol.makeConnection(process)


class ExecCredentialsTests(SynchronousTestCase):
    """Runs of the program, and its output."""

    def setUp(self):
        """Create credentials; the program exists on every machine."""
        self.reactor = Reactor()
        self.reactor.advance(1_750_000_000)
        self.plugin = Plugin("sh", ("-c", "x"), {"X": "y"}, hint="install it")
        self.source = ExecCredentials(self.plugin, self.reactor.spawn)

    def tearDown(self):
        """Assert that nothing is left."""
        self.assertEqual([], self.reactor.getDelayedCalls())

    @property
    def process(self):
        """The newest process."""
        return self.reactor.processes[-1]

    def current(self):
        """Request credentials."""
        return self.source.current(self.reactor)

    def answer(self, status, **more):
        """Let the program return credentials."""
        body = {"apiVersion": V1, "kind": "ExecCredential", "status": status, **more}
        self.end(json.dumps(body).encode())

    def end(self, output, reason=None, errors=b""):
        """Let the program write and exit."""
        self.process.protocol.errReceived(errors)
        self.process.protocol.outReceived(output[:5])
        self.process.protocol.outReceived(output[5:])
        self.process.end(reason or ProcessDone(0))

    def unavailable(self, asked):
        """Return the one line of a failure."""
        text = str(self.failureResultOf(asked, CredentialsUnavailable).value)
        self.assertNotIn("\n", text)
        return text

    def test_call(self):
        """The program's environment describes the request."""
        asked = self.current()
        process = self.process
        self.assertTrue(process.command.endswith("/sh"))
        self.assertEqual(["sh", "-c", "x"], process.arguments)
        self.assertEqual("y", process.environment["X"])
        info = json.loads(process.environment["KUBERNETES_EXEC_INFO"])
        expected = {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}
        self.assertEqual(expected, info)
        self.answer({"token": "secret\n"})
        self.assertEqual("secret", self.successResultOf(asked).token)

    def test_no_input(self):
        """A program that asks for a password reads the end of its input at once."""
        asked = self.current()
        self.assertFalse(self.process.has_input)
        self.answer({"token": "x"})
        self.successResultOf(asked)

    def test_cluster(self):
        """The program gets the cluster's description if configured."""
        self.source = ExecCredentials(
            Plugin("sh", cluster={"server": "https://x"}), self.reactor.spawn
        )
        asked = self.current()
        info = json.loads(self.process.environment["KUBERNETES_EXEC_INFO"])
        self.assertEqual({"server": "https://x"}, info["spec"]["cluster"])
        self.answer({"token": "x"})
        self.successResultOf(asked)

    def test_certificate(self):
        """The program may return a certificate and its key."""
        asked = self.current()
        self.answer({"clientCertificateData": "C", "clientKeyData": "K"})
        found = self.successResultOf(asked)
        self.assertEqual((b"C", b"K", ""), (found.certificate, found.key, found.token))

    def test_kept(self):
        """Credentials without an expiry are kept."""
        asked = self.current()
        self.answer({"token": "x"})
        self.successResultOf(asked)
        self.reactor.advance(1_000_000)
        self.successResultOf(self.current())
        self.assertEqual(1, len(self.reactor.processes))

    def test_expired(self):
        """A minute before they expire, new ones are requested."""
        asked = self.current()
        # An hour after the beginning of the test.
        self.answer({"token": "x", "expirationTimestamp": "2025-06-15T16:06:40Z"})
        self.successResultOf(asked)
        self.reactor.advance(3539)
        self.assertEqual("x", self.successResultOf(self.current()).token)
        self.reactor.advance(1)
        asked = self.current()
        self.answer({"token": "y"})
        self.assertEqual("y", self.successResultOf(asked).token)

    def test_forgotten(self):
        """Rejected credentials are replaced."""
        asked = self.current()
        self.answer({"token": "x"})
        self.source.forget(self.successResultOf(asked))
        self.assertNoResult(self.current())
        self.answer({"token": "y"})
        self.assertEqual(2, len(self.reactor.processes))

    def test_replaced_meanwhile(self):
        """Credentials that have already replaced the rejected ones are kept."""
        asked = self.current()
        self.answer({"token": "x"})
        old = self.successResultOf(asked)
        self.source.forget(old)
        asked = self.current()
        self.answer({"token": "y"})
        self.successResultOf(asked)
        self.source.forget(old)
        self.assertEqual("y", self.successResultOf(self.current()).token)
        self.assertEqual(2, len(self.reactor.processes))

    def test_once_for_all(self):
        """The program runs once for all waiting callers, even if one cancels."""
        asked = [self.current() for _ in range(3)]
        asked[0].cancel()
        self.failureResultOf(asked[0], CancelledError)
        self.answer({"token": "x"})
        self.assertEqual("x", self.successResultOf(asked[1]).token)
        self.assertEqual("x", self.successResultOf(asked[2]).token)
        self.assertEqual(1, len(self.reactor.processes))

    def test_nobody_waits(self):
        """The program is killed if all callers cancel; the next caller starts it again."""
        asked = self.current()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(1, len(self.process.signals))
        asked = self.current()
        self.answer({"token": "x"})
        self.successResultOf(asked)

    def test_deadline(self):
        """A program that exceeds the timeout is killed."""
        asked = self.current()
        self.reactor.advance(PLUGIN_SECONDS)
        self.assertIn("longer than 25 s", self.unavailable(asked))
        self.assertEqual(1, len(self.process.signals))

    def test_children(self):
        """Children that keep the outputs open delay neither the waiting callers nor the next run.

        This holds whether the program exits or is killed.
        """
        for exits in (True, False):
            asked = self.current()
            self.process.children = True
            if exits:
                self.end(b"")
            self.reactor.advance(PLUGIN_SECONDS)
            self.assertIn("longer than 25 s", self.unavailable(asked))
            self.assertTrue(self.process.exited)
        asked = self.current()
        self.process.children = True
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        asked = self.current()
        self.assertEqual(4, len(self.reactor.processes))
        self.answer({"token": "x"})
        self.assertEqual("x", self.successResultOf(asked).token)

    def test_named_by_calls(self):
        """The timeout error of a call that waits for a program names the program."""
        configuration = KubeConfiguration("https://api", "default", lambda: b"", self.source)
        client = KubeClient(self.reactor, configuration)
        asked = client.get(NODES, "n1")
        self.reactor.advance(CALL_SECONDS - 1)
        text = str(self.failureResultOf(asked, ApiUnreachable).value)
        self.assertIn("the credential plugin failed: sh was killed: it took longer", text)
        self.successResultOf(client.close())

    def test_failure(self):
        """The error of a program that fails has the end of its standard error, and the hint."""
        asked = self.current()
        self.end(b"", ProcessTerminated(exitCode=3), b"x" * 1000 + b"no\nlogin")
        text = self.unavailable(asked)
        for part in ("plugin failed: sh exited with status 3", "no login", "install it"):
            self.assertIn(part, text)
        self.assertLess(len(text), 500)

    def test_not_installed(self):
        """A missing program is reported."""
        self.source = ExecCredentials(Plugin("no-such-program-here", hint="install it"))
        text = self.unavailable(self.current())
        self.assertIn("plugin failed: no-such-program-here is not installed", text)
        self.assertIn("install it", text)
        self.unavailable(self.current())

    def test_cannot_be_started(self):
        """A failed start without descriptors fails all callers; a later start succeeds."""
        self.reactor.full = True
        for _ in range(2):
            text = self.unavailable(self.current())
            self.assertIn("plugin failed: sh cannot be started: ", text)
            self.assertIn("Too many open files; install it", text)
        self.reactor.full = False
        asked = self.current()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(1, len(self.process.signals))

    def test_command_that_cannot_be(self):
        """An argument with a NUL is reported, too."""
        asked = ExecCredentials(Plugin("sh", ("a\0b",))).current(reactor)
        self.assertIn("sh cannot be started: embedded null byte", self.unavailable(asked))

    def test_too_much(self):
        """A program with endless output is killed."""
        self.patch(exec_credentials, "MAX_OUTPUT", 10)
        asked = self.current()
        self.process.protocol.outReceived(b"x" * 11)
        self.assertIn("more than 10 bytes", self.unavailable(asked))

    def test_bad_answers(self):
        """An invalid response is an error without its content, which is secret."""
        for output in (
            b"secret",
            b"[]",
            b'{"kind": "ExecCredential"}',
            b'{"kind": "secret", "apiVersion": "x", "status": {}}',
            b"[" * 100_000,
        ):
            asked = self.current()
            self.end(output)
            self.assertNotIn("secret", self.unavailable(asked))
        for status in (
            None,
            {},
            {"clientCertificateData": "C"},
            {"token": "secret", "expirationTimestamp": "soon"},
            {"clientCertificateData": "é", "clientKeyData": "K"},
        ):
            asked = self.current()
            self.answer(status)
            self.assertNotIn("secret", self.unavailable(asked))
        asked = self.current()
        self.answer({"token": "x"}, apiVersion="client.authentication.k8s.io/v1alpha1")
        self.assertIn("is not an ExecCredential of", self.unavailable(asked))
