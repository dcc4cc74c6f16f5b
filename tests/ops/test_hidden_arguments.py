"""A secret on the command line of a process, as others see it."""

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
    """It is covered wherever it stands by itself, and nothing else is."""

    def seen(self, *arguments: str) -> list[str]:
        """Have a process hide the first one of its arguments; what is seen of all then."""
        ran = subprocess.run(
            [sys.executable, "-c", HIDES, *arguments], capture_output=True, cwd=ROOT, timeout=60
        )
        self.assertEqual(b"", ran.stderr)
        return ran.stdout.decode().split("\0")[3:-1]

    def test_hidden(self) -> None:
        """As an argument of its own, and behind an equals sign."""
        seen = self.seen("id.s3", "--join-token", "id.s3", "", "--join-token=id.s3", "edge-1")
        hidden = ["00.00", "--join-token", "00.00", "", "--join-token=00.00", "edge-1"]
        self.assertEqual(hidden, seen)

    def test_others(self) -> None:
        """What merely has it in it stays as it is."""
        others = ["s3cret.txt", "as3cret", "--file=s3cret/x"]
        self.assertEqual(["000000", *others], self.seen("s3cret", *others))

    def test_tokens_keep_their_form(self) -> None:
        """Who diagnoses the process reads its command line as the process has."""
        token = JoinToken("0123456789abcdef", "a" * 32, "b" * 64)
        hidden = JoinToken.parse(masked(str(token).encode()).decode())
        self.assertEqual({"0"}, {*hidden.token_id, *hidden.secret, *hidden.pin})
        own = BootstrapToken.parse(masked(b"abcdef.0123456789abcdef").decode())
        self.assertEqual("000000.0000000000000000", own.bearer)

    def test_none(self) -> None:
        """An empty one hides nothing."""
        self.assertEqual(["", "--node-name", "edge-1"], self.seen("", "--node-name", "edge-1"))
