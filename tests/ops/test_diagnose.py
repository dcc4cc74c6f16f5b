"""``--diagnose``: what is collected, what is found wrong, and that no secret gets out."""

from __future__ import annotations

import datetime
import errno
import io
import itertools
import json
import os
import socket
import stat
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from yurttunnel.ops.diagnose import bundle, command, files, machine, meta_pages
from yurttunnel.ops.diagnose.bundle import Part
from yurttunnel.ops.diagnose.command import diagnose
from yurttunnel.ops.diagnose.files import files_part
from yurttunnel.ops.diagnose.machine import firewall_part, machine_part, versions_part
from yurttunnel.ops.diagnose.meta_pages import Reply, ask, page_parts
from yurttunnel.ops.diagnose.process import process_part
from yurttunnel.ops.diagnose.redaction import REDACTED, redact, redacted_arguments
from yurttunnel.ops.diagnose.subject import Subject

NOW = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
BYTE_ORDER = sys.byteorder

KEY = ec.generate_private_key(ec.SECP256R1())
KEY_PEM = KEY.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
).decode()

JOIN_TOKEN = f"{'0a' * 8}.{'1b' * 16}.sha256:{'2c' * 32}"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"


def certificate(begin: datetime.datetime, end: datetime.datetime) -> str:
    """Return a certificate for ``edge-1``, as PEM."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "edge-1")])
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 4711, begin, end)
    signed = builder.sign(KEY, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


CONNECT = socket.create_connection


class RedactionTests(SynchronousTestCase):
    """What looks like a secret goes, and everything else stays."""

    def test_secrets(self):
        """Tokens, keys, passwords and queries go, whatever stands around them."""
        key_body = KEY_PEM.splitlines()[1]
        for text, secret in (
            (f"token {JOIN_TOKEN} used", "1b" * 16),
            ("kubeadm join --token abcdef.0123456789abcdef", "0123456789abcdef"),
            (f"Authorization: Bearer {JWT}", "c2lnbmF0dXJl"),
            ("authorization: bearer opaque-1", "opaque-1"),
            ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
            ("Bearer opaque-2", "opaque-2"),
            (f"somewhere {JWT} in text", "eyJzdWIiOiJ4In0"),
            (f"a\n{KEY_PEM}b", key_body),
            (f"cut off: {KEY_PEM[:100]}", key_body[:40]),
            ("    token: opaque-3\n", "opaque-3"),
            ("    client-key-data: TFMwdExT\n", "TFMwdExT"),
            ('{"password": "with \\"quotes\\" in it"}', "quotes"),
            ("{'refresh_token': 'opaque 4'}", "opaque 4"),
            ("CLIENT_SECRET=opaque-5", "opaque-5"),
            ("https://user:opaque-6@example.org/path", "opaque-6"),
            ('{"apiKey": "opaque-8"}', "opaque-8"),
            ("api_key=opaque-9", "opaque-9"),
            ("Cookie: a=b; session=opaque-10", "opaque-10"),
            ("tokenSecret: opaque-11", "opaque-11"),
            ("run --token opaque-12 now", "opaque-12"),
            ("Authorization: Negotiate YIIopaque13", "YIIopaque13"),
            ("Negotiate YIIopaqueopaque14", "YIIopaque"),
            ("client-key-data: |\n    TFMwdExT\n    b3BhcXVl\nnext: 1", "TFMwdExT"),
            ("  client-key-data: >-\n    TFMwdExT\n    b3BhcXVl", "b3BhcXVl"),
            ("GET https://10.0.0.1:10250/exec/ns/pod/c?command=opaque-7", "opaque-7"),
            ("{b'Authorization': b'opaque-15'}", "opaque-15"),
            ('{"token": ["opaque 16"]}', "opaque 16"),
            ('no event: {"clientKeyData":"opaque-17 and', "opaque-17"),
            ("cut off: {'token': 'opaque-18\nnext", "opaque-18"),
            ('"told": "{\\"token\\": \\"opaque 19\\"}"', "opaque 19"),
            ('"told": "{\\"token\\": \\"opaque 20"', "opaque 20"),
            ('{"token": "opaque-21\\', "opaque-21"),
            ("<td>{&quot;token&quot;: &quot;opaque 22&quot;}</td>", "opaque 22"),
            ("<td>token: &#x27;opaque 23</td>", "opaque 23"),
            ("<td>{&#x27;token&#x27;: b&#x27;opaque 24&#x27;}</td>", "opaque 24"),
            ("<td>{\\&quot;token\\&quot;: \\&quot;opaque 25\\&quot;}</td>", "opaque 25"),
            ('"told": "{\\"token\\": \\"opaque 26\\', "opaque 26"),
            ('"told": "{\\"token\\": \\"with \\\\\\"quotes 27\\\\\\"\\"}"', "quotes 27"),
            ('"{\\\\\\"token\\\\\\": \\\\\\"opaque 28\\\\\\"}"', "opaque 28"),
            ('{"token": ["a", "opaque 29"]}', "opaque 29"),
        ):
            shown = redact(text)
            self.assertNotIn(secret, shown)
            self.assertIn(REDACTED, shown)

    def test_known(self):
        """Secrets that are known go wherever they stand, whatever they look like."""
        self.assertEqual(f"a {REDACTED} b", redact("a hunter2 b", ["hunter2"]))

    def test_surroundings(self):
        """What stands around a secret stays."""
        self.assertEqual(f"x\n{REDACTED}\ny", redact(f"x\n{KEY_PEM.strip()}\ny"))
        self.assertEqual(
            f"Authorization: Bearer {REDACTED}\nb", redact(f"Authorization: Bearer {JWT}\nb")
        )
        self.assertEqual(
            f"https://{REDACTED}@h:1/p?{REDACTED} and more", redact("https://u@h:1/p?q=1 and more")
        )
        self.assertEqual(
            f"<td>token: {REDACTED}</td><td>x</td>",
            redact("<td>token: &quot;a b</td><td>x</td>"),
        )
        self.assertEqual(
            f'{{"a": "{{\\"token\\": {REDACTED}", "b": 1}}',
            redact('{"a": "{\\"token\\": \\"cut off", "b": 1}'),
        )

    def test_everything_else(self):
        """Metrics, stacks, certificates and lists of files are left as they are."""
        for text in (
            'yurttunnel_server_refused_total{reason="token"} 3\n',
            "# HELP x How many tokens were refused.\n",
            "1.7953060651234567e+09 123456.75 0.1234567890123456",
            "-rw------- 0:0       119 2026-11-22T00:27:28Z S/join-token\n",
            '  File "/usr/lib/python3.11/site-packages/twisted/base.py", line 686, in run\n',
            certificate(NOW, NOW + DAY),
            "cannot negotiate TLS, a basic need",
            "--join-token-file /etc/token --node-name n",
            "subject: CN=edge-1.example.org, sha256: " + "3d" * 32,
            "http://127.0.0.1:10265/debug/sessions",
        ):
            self.assertEqual(text, redact(text))

    def test_arguments(self):
        """Values of secret flags go from a command line, in both spellings."""
        flags = ("--join-token",)
        given = ["twist", "--join-token", "hunter2", "--join-token=hunter2", "--node-name", "n"]
        shown = redacted_arguments(given, flags)
        self.assertEqual(
            ["twist", "--join-token", REDACTED, f"--join-token={REDACTED}", "--node-name", "n"],
            shown,
        )
        self.assertEqual(
            ["a", f"x{REDACTED}"], redacted_arguments(["a", f"x{KEY_PEM.strip()}"], ())
        )


class FileTests(SynchronousTestCase):
    """What is said of files, and found wrong with them."""

    def setUp(self):
        """Make a directory."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir()

    def write(self, name, content, mode=0o600):
        """Make a file."""
        path = self.directory / name
        path.write_text(content)
        path.chmod(mode)
        return path

    def look(self, *further):
        """Look at the directory."""
        return files_part([self.directory], further, NOW)

    def test_good(self):
        """Files are listed with their modes, certificates with their ends; nothing is wrong."""
        self.write("node.pem", certificate(NOW - DAY, NOW + 29 * DAY) + KEY_PEM)
        self.write("ca.crt", certificate(NOW - DAY, NOW + 3650 * DAY), 0o644)
        os.utime(self.directory / "node.pem", (0, 90061))
        part = self.look()
        self.assertEqual((), part.findings)
        self.assertRegex(
            part.text,
            r"-rw------- .* 1970-01-02T01:01:01Z \S+node\.pem\n    certificate: CN=edge-1\n",
        )
        self.assertIn("to 2026-12-21 00:00:00+00:00", part.text)

    def test_no_content(self):
        """Nothing of a key is in the text."""
        self.write("both.pem", certificate(NOW, NOW + DAY) + KEY_PEM)
        self.write("only.key", KEY_PEM)
        self.write("join-token", JOIN_TOKEN)
        text = self.look().text
        for secret in (*KEY_PEM.splitlines()[1:3], JOIN_TOKEN, JOIN_TOKEN[:16]):
            self.assertNotIn(secret, text)

    def test_ends(self):
        """Certificates that have expired, end soon, or are not yet good are found."""
        for begin, end, sentence in (
            (-30 * DAY, -DAY, "has expired"),
            (-28 * DAY, 2 * DAY, "has not been renewed"),
            (-1000 * DAY, 25 * DAY, "has not been renewed"),
            (2 * DAY, 30 * DAY, "clock is behind"),
        ):
            self.write("node.pem", certificate(NOW + begin, NOW + end))
            [finding] = self.look().findings
            self.assertIn(sentence, finding)
            self.assertIn("node.pem", finding)

    def test_earlier_certificates(self):
        """An expired one is no trouble when a link leads to a newer one."""
        name = "yurttunnel-agent-2026-01-01-00-00-00.pem"
        self.write(name, certificate(NOW - 30 * DAY, NOW - DAY))
        newer = self.write(name.replace("01-01", "11-01"), certificate(NOW - DAY, NOW + 29 * DAY))
        link = self.directory / "yurttunnel-agent-current.pem"
        link.symlink_to(newer.name)
        self.assertEqual((), self.look().findings)
        self.assertIn(f"current.pem -> {newer.name}", self.look().text)
        link.unlink()
        link.symlink_to(name)
        self.assertEqual(1, len(self.look().findings))

    def test_open_to_others(self):
        """Keys and tokens that others can read are found, certificates are for everybody."""
        self.write("a.key", KEY_PEM, 0o640)
        self.write("join-token", JOIN_TOKEN, 0o604)
        self.write("ca.crt", certificate(NOW - DAY, NOW + 29 * DAY), 0o644)
        findings = self.look().findings
        self.assertEqual(2, len(findings))
        self.assertIn("a.key holds a secret and is open to other users", findings[0])

    def test_secrets_of_a_kubeconfig(self):
        """A token or a key in a kubeconfig is a secret, however it is written; a path is none."""
        for content in (
            "user: {token: opaque}",
            "    token: opaque\n",
            '{"token": "opaque"}',
            "    client-key-data: TFMwdExT\n",
            "    client-key-data: |\n      TFMwdExT\n",
        ):
            self.write("kubelet.conf", content, 0o644)
            [finding] = self.look().findings
            self.assertIn("kubelet.conf holds a secret", finding)
        self.write("kubelet.conf", "tokenFile: /t\nclient-key: /k\ntoken: ''\n", 0o644)
        self.assertEqual((), self.look().findings)

    def test_links_of_flags(self):
        """What a link that a flag names leads to is looked into, over any number of links."""
        target = Path(self.mktemp())
        target.write_text(certificate(NOW - 30 * DAY, NOW - DAY) + KEY_PEM)
        target.chmod(0o644)
        first, second = self.directory / "first", Path(self.mktemp())
        first.symlink_to(target.absolute())
        second.symlink_to(first.absolute())
        self.assertEqual((), self.look().findings)
        part = self.look(second)
        self.assertIn(f"{second} -> {first.absolute()}", part.text)
        for sentence in ("open to other users", "has expired"):
            self.assertIn(sentence, " ".join(part.findings))
        loop = Path(self.mktemp())
        loop.symlink_to(loop.name)
        self.assertEqual((), self.look(loop).findings)

    def test_missing(self):
        """What is not there is said, and no trouble: a program may be new."""
        part = files_part([self.directory / "none"], [self.directory / "kubelet.conf"], NOW)
        self.assertEqual((), part.findings)
        self.assertEqual(2, part.text.count("No such file"))

    def test_directories_that_may_not_be_looked_into(self):
        """That is found: nothing in them has been looked at."""
        scandir, inner = os.scandir, str(self.directory / "inner")
        os.mkdir(inner)

        def refuse(path):
            if str(path) in refused:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return scandir(path)

        self.patch(os, "scandir", refuse)
        for refused in ([str(self.directory)], [inner]):
            part = self.look()
            self.assertEqual(
                (f"{refused[0]} could not be read (Permission denied).",), part.findings
            )
            self.assertIn(f"{refused[0]}: Permission denied\n", part.text)

    def test_odd_files(self):
        """Pipes, links and large files are not looked into, broken certificates are said."""
        os.mkfifo(self.directory / "pipe")
        (self.directory / "loop").symlink_to("loop")
        self.write("large.pem", certificate(NOW, NOW) + "x" * 2**20)
        self.write("bad.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        part = self.look()
        self.assertEqual((), part.findings)
        self.assertIn("it cannot be read", part.text)
        self.assertNotIn("edge-1", part.text)

    def test_many(self):
        """Only so many files are listed."""
        self.patch(files, "MOST_FILES", 3)
        for number in range(5):
            self.write(f"{number}", "")
        self.assertEqual(4, self.look().text.count("\n"))

    def test_disk(self):
        """A disk that is nearly full is found: 64 MiB are to be free."""
        for free, found in (((64 << 20) - 4096, True), (64 << 20, False)):
            usage = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096)
            self.patch(files.os, "statvfs", lambda path, usage=usage: usage)
            told = [each for each in self.look().findings if "MiB are free" in each]
            self.assertEqual(found, bool(told), free)


class ProcessTests(SynchronousTestCase):
    """The running process, in a made-up /proc and in the real one."""

    # 127.0.0.1:10265 and [::1]:10266, as x86 writes them; the last one of TCP is no listener.
    REST = "00000000:00000000 00:00000000 00000000 0 0"
    TCP = (
        "sl local_address rem_address st and so on\n"
        f"0: 0100007F:2819 00000000:0000 0A {REST} 4711 1 0\n"
        f"1: 0100007F:281B 0100007F:9C40 01 {REST} 4712 1 0\n"
    )
    TCP6 = f"sl\n0: {'0' * 24}01000000:281A {'0' * 32}:0000 0A {REST} 4713 1 0\n"

    def setUp(self):
        """Make a /proc with one process."""
        self.patch(sys, "byteorder", "little")
        self.proc = Path(self.mktemp())
        (self.proc / "net").mkdir(parents=True)
        (self.proc / "net" / "tcp").write_text(self.TCP)
        (self.proc / "net" / "tcp6").write_text(self.TCP6)
        self.add(1, {})
        self.add(42, {0: "/dev/null", 3: "socket:[4711]", 4: "socket:[4713]", 5: "pipe:[9]"})

    def add(self, pid, descriptors):
        """Add a process."""
        directory = self.proc / str(pid)
        (directory / "fd").mkdir(parents=True)
        for number, target in descriptors.items():
            (directory / "fd" / str(number)).symlink_to(target)
        (directory / "cmdline").write_text("twist\0yurttunnel-agent\0--join-token\0hunter2\0")
        (directory / "status").write_text("Name:\ttwist\nState:\tS (sleeping)\n")
        (directory / "limits").write_text(
            "Max open files            8                 16   files\n"
        )

    def look(self, host="127.0.0.1", port=10265):
        """Look for the process."""
        return process_part("yurttunnel-agent", host, port, ("--join-token",), self.proc)

    def test_found(self):
        """It is found by its socket, on either family, and described without secrets."""
        for part in (self.look(), self.look("::1", 10266)):
            self.assertEqual((), part.findings)
            self.assertIn("pid: 42\n", part.text)
            self.assertIn("descriptors: 4 of 8\n  file: 1\n  pipe: 1\n  socket: 2\n", part.text)
            self.assertNotIn("hunter2", part.text)

    def test_not_there(self):
        """Without a listener there is nothing to describe."""
        for host, port in (("127.0.0.1", 10267), ("127.0.0.2", 10265), ("::1", 10265)):
            self.assertIn("no socket of this machine", self.look(host, port).text)

    def test_of_another_user(self):
        """When its descriptors cannot be seen, that is said with what to do."""
        for name in (self.proc / "42" / "fd").iterdir():
            name.unlink()
        self.assertIn("as its user or root", self.look().findings[0])

    def test_descriptors(self):
        """Descriptors near their limit are found."""
        for number in range(6, 9):
            (self.proc / "42" / "fd" / str(number)).symlink_to("/dev/null")
        self.assertIn("7 of 8 descriptors", self.look().findings[0])

    def test_stopped(self):
        """A process that is stopped is found."""
        (self.proc / "42" / "status").write_text("State:\tT (stopped)\n")
        self.assertIn("SIGSTOP", self.look().findings[0])

    def test_real(self):
        """In the real /proc this process is found by a socket of its own."""
        self.patch(sys, "byteorder", BYTE_ORDER)
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                listener = socket.create_server((host, 0), family=family)
            except OSError:
                continue  # A machine without IPv6.
            with listener:
                part = process_part("p", host, listener.getsockname()[1], ())
            self.assertIn(f"pid: {os.getpid()}\n", part.text)
            self.assertRegex(part.text, r"descriptors: \d+ of \d+\n")
            self.assertIn("State:", part.text)


class PageTests(SynchronousTestCase):
    """What is asked of the process, and found wrong in its answers."""

    def parts(self, **replies):
        """Return all parts by name; pages without a reply of their own are fine."""
        self.asked = []

        def ask(host, port, path, seconds=0.0):
            self.asked.append(path)
            return replies.get(path.replace("/", "_"), Reply(200, "ok\n"))

        self.patch(meta_pages, "ask", ask)
        return {part.name: part for part in page_parts("yurttunnel-server", "127.0.0.1", 10265)}

    def findings(self, **replies):
        """Return all that is wrong."""
        return [each for part in self.parts(**replies).values() for each in part.findings]

    def test_good(self):
        """A process that is well gives nothing to say, and each page is kept."""
        parts = self.parts(readyz=Reply(200, "listeners: ok\nready\n"))
        self.assertEqual(list(meta_pages.PAGES), self.asked)
        self.assertEqual(len(self.asked), len(parts))
        self.assertEqual("HTTP 200\n\nok\n", parts["pages/debug-stacks"].text)
        self.assertEqual([], [each for part in parts.values() for each in part.findings])

    def test_not_ready(self):
        """Why it is not ready is said, and so are warnings."""
        body = "listeners: port 10262 is not bound\ncertificate: ok\nnot ready\n"
        self.assertEqual(
            ["yurttunnel-server is not ready: listeners: port 10262 is not bound."],
            self.findings(readyz=Reply(503, body)),
        )
        [finding] = self.findings(readyz=Reply(200, "a: ok\nb: one is away\nready\n"))
        self.assertIn("is ready, with warnings: b: one is away", finding)

    def test_lag(self):
        """A reactor that is late is found."""
        late = {"lag_seconds": {"latest": 0.0, "worst_of_last_minute": 2.5}}
        [finding] = self.findings(debug_reactor=Reply(200, json.dumps(late)))
        self.assertIn("late by up to 2.5 s", finding)

    def test_agents(self):
        """Sessions without a connection are found, some by name."""
        agents = [{"node": f"edge-{number}", "connected": number == 0} for number in range(9)]
        [finding] = self.findings(agents=Reply(200, json.dumps(agents)))
        self.assertIn("8 of 9 sessions", finding)
        self.assertIn("edge-1, edge-2, edge-3, edge-4, edge-5 and others", finding)

    def test_nonsense(self):
        """Pages that are something else than expected are kept, and break nothing."""
        for body in ("{", "[]", "{}", "null", "7"):
            reply = Reply(200, body)
            self.assertEqual([], self.findings(agents=reply, debug_reactor=reply))

    def test_silent(self):
        """After a page without an answer no other is asked for, and the reason is told once."""
        parts = self.parts(readyz=Reply(problem="no answer from 127.0.0.1:10265 within 5 s"))
        self.assertEqual(["healthz", "readyz"], self.asked)
        self.assertIn("hangs", parts["pages/readyz"].findings[0])
        self.assertIn("not asked for: no answer", parts["pages/metrics"].text)
        self.assertEqual((), parts["pages/metrics"].findings)

    def test_not_running(self):
        """A process that is not there is told as such."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        reply = ask("127.0.0.1", port, "healthz")
        self.assertEqual(f"nothing listens on 127.0.0.1:{port}", reply.problem)
        [finding] = self.findings(healthz=reply)
        self.assertIn("does not run here", finding)

    def test_hanging(self):
        """A process that accepts and does not answer costs no more than the deadline."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            reply = ask("127.0.0.1", listener.getsockname()[1], "healthz", seconds=0.05)
        self.assertIn("no answer", reply.problem)

    def test_dripping(self):
        """Nor does one whose answer has no end, however quickly its pieces come."""
        now = itertools.count()
        self.patch(meta_pages, "time", SimpleNamespace(monotonic=lambda: next(now)))
        pieces = []
        connection = mock.MagicMock()
        connection.__enter__.return_value.recv = lambda size: pieces.append(b"x") or b"x"
        self.patch(socket, "create_connection", lambda *_, **__: connection)
        reply = ask("127.0.0.1", 10265, "healthz", seconds=10)
        self.assertEqual("no answer from 127.0.0.1:10265 within 10 s", reply.problem)
        self.assertLess(len(pieces), 11)

    def answered(self, data):
        """Return the reply that is made of what a program answers."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            client = socket.create_connection(("127.0.0.1", port))
            server, _ = listener.accept()
            self.patch(socket, "create_connection", lambda *_, **__: client)
            server.sendall(data)
            server.close()
            reply = ask("127.0.0.1", port, "healthz")
        self.patch(socket, "create_connection", CONNECT)
        return reply

    def test_another_program(self):
        """What does not answer in HTTP is another program."""
        for data in (b"SSH-2.0-x\r\n", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b""):
            self.assertIn("another program", self.answered(data).problem, data)

    def test_head(self):
        """The status and the body of an answer, whose reason may be missing."""
        for head in (
            b"HTTP/1.1 503 Service Unavailable\r\nA: b",
            b"HTTP/1.1 503 ",
            b"HTTP/1.1 503",
        ):
            self.assertEqual(Reply(503, "no"), self.answered(head + b"\r\n\r\nno"))


class MachineTests(SynchronousTestCase):
    """Versions, kernel and rules."""

    def test_versions(self):
        """Python and the libraries are named."""
        text = versions_part().text
        self.assertIn(f"python: {sys.version}", text)
        self.assertRegex(text, r"\nTwisted: \d+\.\d+")

    def test_settings(self):
        """The kernel's settings are read, those that are not there are said."""
        text = machine_part().text
        self.assertRegex(text, r"net/ipv4/ip_local_port_range: \d+ \d+\n")
        self.assertRegex(text, r"clock synchronised: (yes|no|unknown)\n")
        self.assertIn("unknown (No such file", machine_part(Path(self.mktemp())).text)

    def test_clock(self):
        """A clock that nobody sets is found."""
        self.patch(machine, "_clock_synchronised", lambda: "no")
        self.assertIn("Nothing sets the clock", machine_part().findings[0])
        self.patch(machine, "_clock_synchronised", lambda: "unknown")
        self.assertEqual((), machine_part().findings)

    def test_rules(self):
        """Of the firewall's rules only the program's own are kept."""
        programs = Path(self.mktemp())
        programs.mkdir()
        save = programs / "iptables-nft-save"
        save.write_text(
            "#!/bin/sh\necho ':TUNNEL-PORT - [0:0]'; echo ':OTHER'; echo $* >&2; exit 3\n"
        )
        save.chmod(0o755)
        self.patch(os, "environ", {"PATH": f"{programs}:/bin:/usr/bin"})
        text = firewall_part(lambda text: [x for x in text.splitlines() if b"TUNNEL" in x]).text
        self.assertIn(
            "iptables-nft-save -t nat:\n    exit status 3: -t nat\n    :TUNNEL-PORT", text
        )
        self.assertIn("iptables-nft-save -t filter:\n    exit status 3: -t filter\n", text)
        self.assertNotIn("OTHER", text)

    def test_tables(self):
        """Those of nftables that a program has are kept, of both families."""
        programs = Path(self.mktemp())
        programs.mkdir()
        nft = programs / "nft"
        nft.write_text(
            '#!/bin/sh\n[ "$1" = -n ] && exec echo "table $4 $5 {"\n'
            "for each in 'ip own' 'ip6 own' 'inet own-1b2c' 'ip other' 'ip owner' 'ip not own'; do"
            ' echo "table $each"; done\n'
        )
        nft.chmod(0o755)
        self.patch(os, "environ", {"PATH": f"{programs}:/bin:/usr/bin"})
        text = firewall_part(lambda text: [], "own").text
        for table in ("ip own", "ip6 own", "inet own-1b2c"):
            self.assertIn(f"nft -n list table {table}:\n    table {table} {{\n", text)
        self.assertEqual(3, text.count("nft -n"))
        self.assertNotIn("other", text)
        self.assertNotIn("nft", firewall_part(lambda text: []).text.replace("-nft", ""))

    def test_missing_program(self):
        """A program that is not installed is said."""
        self.patch(machine, "_SYSTEM_PATH", "")
        self.patch(os, "environ", {"PATH": ""})
        self.assertIn("it is not installed", firewall_part(lambda text: []).text)


class CommandTests(SynchronousTestCase):
    """The bundle, the summary and the exit status."""

    def setUp(self):
        """Replace what collects."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir()
        self.output = self.directory / "bundle.tar.gz"
        self.found = [Part("versions", "python\n")]
        self.patch(command, "_collect", lambda subject: self.found)
        self.screen = io.StringIO()

    def run_it(self, output=None, **changes):
        """Diagnose; give the exit status."""
        subject = Subject("yurttunnel-server", "127.0.0.1", 1, (), (), **changes)
        return diagnose(subject, output or self.output, self.screen)

    def content(self):
        """Return the files in the bundle by name."""
        with tarfile.open(self.output) as archive:
            return {
                Path(member.name).name: archive.extractfile(member).read().decode()
                for member in archive
            }

    def test_well(self):
        """When nothing is wrong the status is 0; the bundle is for its owner only."""
        self.assertEqual(0, self.run_it())
        self.assertIn(str(self.output.absolute()), self.screen.getvalue())
        self.assertIn("nothing looks wrong", self.screen.getvalue())
        self.assertEqual(0o600, stat.S_IMODE(self.output.stat().st_mode))
        self.assertEqual({"summary.txt": "nothing\n", "versions.txt": "python\n"}, self.content())

    def test_wrong(self):
        """What is wrong is said in sentences, and the status is 1."""
        self.found = [Part("a", "", ("A is wrong.",)), Part("b", "", ("B is\nwrong.",))]
        self.assertEqual(1, self.run_it())
        self.assertTrue(self.screen.getvalue().endswith("- A is wrong.\n- B is wrong.\n"))
        self.assertIn("A is wrong.", self.content()["summary.txt"])

    def test_one_screen(self):
        """The summary has at most so many lines, none too long; the bundle has all."""
        self.found = [Part("a", "", tuple(f"{number} {'x' * 5000}" for number in range(99)))]
        self.run_it()
        lines = self.screen.getvalue().splitlines()
        self.assertLess(len(lines), 24)
        self.assertLess(max(map(len, lines)), 500)
        self.assertIn("84 more", lines[-1])
        self.assertEqual(99, self.content()["summary.txt"].count("\n"))

    def test_secrets(self):
        """Secrets are in neither."""
        text = f"hunter2 {JOIN_TOKEN} Bearer opaque {KEY_PEM}"
        self.found = [Part("a", text, (text,))]
        self.run_it(secrets=("hunter2", ""))
        shown = self.screen.getvalue() + "".join(self.content().values())
        for secret in ("hunter2", "1b" * 16, "opaque", KEY_PEM.splitlines()[1]):
            self.assertNotIn(secret, shown)

    def test_file_that_is_there(self):
        """An existing file, or a link, is not written to; the flag is named."""
        self.output.write_text("precious")
        error = self.assertRaises(command.NotWritten, self.run_it)
        sentence = f"--output: {self.output}: File exists: name another file"
        self.assertEqual(sentence, str(error))
        self.assertEqual("", self.screen.getvalue())
        self.assertEqual("precious", self.output.read_text())
        link = self.directory / "link.tar.gz"
        link.symlink_to(self.directory / "elsewhere")
        self.assertRaises(command.NotWritten, self.run_it, link)
        self.assertFalse((self.directory / "elsewhere").exists())

    def test_directory_of_another_user(self):
        """Who calls sudo gets the bundle where he is; for root alone his directory is refused."""
        if os.geteuid() != 0:
            raise SkipTest("only root can give a directory away")
        os.chown(self.directory, 12345, 12345)
        for asking in ({}, {"SUDO_UID": "54321"}, {"SUDO_UID": "x"}):
            self.patch(os, "environ", asking)
            with self.assertRaisesRegex(command.NotWritten, "belongs to another user"):
                self.run_it()
        self.patch(os, "environ", {"SUDO_UID": "12345"})
        self.assertEqual(0, self.run_it())
        self.assertEqual(0, self.output.stat().st_uid)

    def test_failure(self):
        """When the bundle cannot be written whole, nothing is left of it."""

        def fail(*arguments):
            raise OSError(28, "No space left on device")

        self.patch(bundle, "redact", fail)
        with self.assertRaisesRegex(command.NotWritten, "No space left on device"):
            self.run_it()
        self.assertFalse(self.output.exists())

    def test_default_name(self):
        """Without a name the file is in the working directory, with program and time."""
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.directory)
        subject = Subject("yurttunnel-server", "127.0.0.1", 1, (), ())
        diagnose(subject, None, self.screen)
        [name] = os.listdir()
        self.assertRegex(name, r"^yurttunnel-server-diagnosis-\d{8}T\d{6}Z\.tar\.gz$")


class CollectTests(SynchronousTestCase):
    """All parts together."""

    def collect(self, host="127.0.0.1"):
        """Collect for a process that does not run; give the parts by name."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        subject = Subject("yurttunnel-agent", host, port, (Path(self.mktemp()),), ())
        return {part.name: part for part in command._collect(subject)}

    def test_parts(self):
        """Every part is there, also when the process is not."""
        parts = self.collect()
        self.assertLess(
            {"command-line", "versions", "machine", "files", "process", "pages/metrics"},
            parts.keys(),
        )
        self.assertNotIn("firewall", parts)

    def test_unspecified_address(self):
        """A port on every address is asked on loopback."""
        for host in ("0.0.0.0", "127.0.0.1"):
            self.assertIn("127.0.0.1:", self.collect(host)["pages/healthz"].findings[0])

    def test_defect(self):
        """A part that fails is told, and costs no other one."""
        self.patch(command, "machine_part", lambda: 1 / 0)
        parts = self.collect()
        self.assertIn("ZeroDivisionError", parts["machine-error"].text)
        self.assertIn("ZeroDivisionError", parts["machine-error"].findings[0])
        self.assertIn("files", parts)
