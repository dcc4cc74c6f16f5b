"""Secrets on the command line of a process, as other processes see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.hidden_arguments import masked
from yurttunnel.pki.discovery import BootstrapToken
from yurttunnel.pki.token import JoinToken

ROOT = Path(__file__).parents[2]

HIDES = """
import sys
from pathlib import Path
from yurttunnel.ops.hidden_arguments import hide_argument
hide_argument(sys.argv[1])
sys.stdout.buffer.write(Path("/proc/self/cmdline").read_bytes())
"""


class HideArgumentTests(SynchronousTestCase):
    """A secret is masked wherever it is a whole value, and nowhere else."""

    def seen(self, *arguments: str) -> list[str]:
        """Hide the first argument in a process; return all arguments as others see them."""
        ran = subprocess.run(
            [sys.executable, "-c", HIDES, *arguments], capture_output=True, cwd=ROOT, timeout=60
        )
        self.assertEqual(b"", ran.stderr)
        return ran.stdout.decode().split("\0")[3:-1]

    def test_hidden(self) -> None:
        """A secret is masked as an argument and after an equals sign."""
        seen = self.seen("id.s3", "--join-token", "id.s3", "", "--join-token=id.s3", "edge-1")
        hidden = ["00.00", "--join-token", "00.00", "", "--join-token=00.00", "edge-1"]
        self.assertEqual(hidden, seen)

    def test_others(self) -> None:
        """Arguments that merely contain the secret are unchanged."""
        others = ["s3cret.txt", "as3cret", "--file=s3cret/x"]
        self.assertEqual(["000000", *others], self.seen("s3cret", *others))

    def test_tokens_keep_their_form(self) -> None:
        """A masked token has a valid form, so that diagnosis can parse the command line."""
        token = JoinToken("0123456789abcdef", "a" * 32, "b" * 64)
        hidden = JoinToken.parse(masked(str(token).encode()).decode())
        self.assertEqual({"0"}, {*hidden.token_id, *hidden.secret, *hidden.pin})
        own = BootstrapToken.parse(masked(b"abcdef.0123456789abcdef").decode())
        self.assertEqual("000000.0000000000000000", own.bearer)

    def test_none(self) -> None:
        """An empty secret masks nothing."""
        self.assertEqual(["", "--node-name", "edge-1"], self.seen("", "--node-name", "edge-1"))
