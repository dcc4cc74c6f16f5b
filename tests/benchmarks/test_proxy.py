"""The benchmark of the service proxy: its command line and its Service."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.proxy.__main__ import parse
from benchmarks.proxy.kernel.__main__ import parse as parse_kernel
from benchmarks.proxy.kernel.parts import PARTS as KERNEL_PARTS
from benchmarks.proxy.parts import PARTS
from benchmarks.proxy.proxy import manifest
from yurttunnel.proxy.sources.manifests import read_manifests


class CommandLineTests(SynchronousTestCase):
    """Flags."""

    def test_parts_are_chosen_by_name(self) -> None:
        """All parts by default; the record is a separate file."""
        self.assertIsNone(parse([]).only)
        self.assertEqual(parse(["--only", "upload-8"]).only, ["upload-8"])
        self.assertEqual(parse([]).output, Path("build/proxy.json"))

    def test_an_unknown_part_is_refused_with_the_known_ones(self) -> None:
        """The error lists the existing parts."""
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            self.assertRaises(SystemExit, parse, ["--only", "nonsense"])
        for name in PARTS:
            self.assertIn(name, printed.getvalue())

    def test_kernel_mode_has_parts_and_a_record_of_its_own(self) -> None:
        """They have the names of those of user mode if they do the same."""
        self.assertEqual(parse_kernel(["--only", "retry"]).only, ["retry"])
        self.assertEqual(parse_kernel([]).output, Path("build/proxy.kernel.json"))
        self.assertLessEqual(KERNEL_PARTS.keys(), PARTS.keys())


class ManifestTests(SynchronousTestCase):
    """The proxy gets a Service with one endpoint for each protocol."""

    def test_the_proxy_accepts_it(self) -> None:
        """It is read like a user's file."""
        path = Path(self.mktemp()).with_suffix(".json")
        path.write_text(json.dumps(manifest(["192.0.2.1"], 8080, 5353)))
        (found,) = read_manifests(path, {}).values()
        self.assertEqual(found.problems, ())
        self.assertEqual((len(found.services), len(found.slices)), (1, 1))
