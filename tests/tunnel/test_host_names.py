"""ASCII forms of host names are those of Python's codec, which is not used for most."""

from __future__ import annotations

import sys
from subprocess import run

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.tunnel.named_endpoint import to_ascii


class HostNameTests(SynchronousTestCase):
    """Names that are valid in DNS and TLS, and others."""

    def test_as_the_codec(self) -> None:
        """Each name is encoded as by Python's codec."""
        for name in (
            "api.test",
            "API.test.",
            "a_b",
            "192.0.2.1",
            "::1",
            "bücher.test",
            "",
            "a" * 63,
        ):
            self.assertEqual(name.encode("idna"), to_ascii(name))
        self.assertEqual(b"xn--bcher-kva.test", to_ascii("bücher.test"))

    def test_no_names(self) -> None:
        """A label that is empty or too long is rejected."""
        for name in (".", "a..b", ".a", "a" * 64, f"{'a' * 64}.test", "\N{SNOWMAN}" * 64):
            self.assertRaises(UnicodeError, to_ascii, name)

    def test_codec_is_left(self) -> None:
        """For a name in ASCII the codec is not loaded."""
        program = (
            "import sys; from yurttunnel.tunnel.named_endpoint import to_ascii;"
            " to_ascii('api.test'); sys.exit('stringprep' in sys.modules)"
        )
        self.assertEqual(0, run([sys.executable, "-c", program], check=False).returncode)
