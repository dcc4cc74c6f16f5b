"""The removal of secrets."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.ops.diagnose.samples import DAY, JOIN_TOKEN, JWT, KEY_PEM, NOW, certificate
from yurttunnel.ops.diagnose.redaction import REDACTED, redact, redacted_arguments


class RedactionTests(SynchronousTestCase):
    """Text that looks like a secret is removed, all other text stays."""

    def test_secrets(self):
        """Tokens, keys, passwords and queries are removed, whatever the text around them."""
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

    def test_known_secrets(self):
        """Known secrets are removed everywhere, whatever they look like."""
        self.assertEqual(f"a {REDACTED} b", redact("a hunter2 b", ["hunter2"]))

    def test_surroundings(self):
        """The text around a secret stays."""
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

    def test_other_text(self):
        """Metrics, stacks, certificates and lists of files stay unchanged."""
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
        """Values of secret flags are removed from a command line, in both spellings."""
        flags = ("--join-token",)
        arguments = ["twist", "--join-token", "hunter2", "--join-token=hunter2", "--node-name", "n"]
        shown = redacted_arguments(arguments, flags)
        self.assertEqual(
            ["twist", "--join-token", REDACTED, f"--join-token={REDACTED}", "--node-name", "n"],
            shown,
        )
        self.assertEqual(
            ["a", f"x{REDACTED}"], redacted_arguments(["a", f"x{KEY_PEM.strip()}"], ())
        )
