"""The plugins of ``twist`` for the programs."""

from __future__ import annotations

import atexit
import gc
import subprocess
import sys
from typing import cast

from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.program import ProgramMaker

_WRITER = """
from contextlib import suppress
from yurttunnel.ops.program import ProgramMaker

cycle = [open(1, "w", closefd=False)]
cycle.append(cycle)
print("written", file=cycle[0])
with suppress(AttributeError):
    ProgramMaker("a program", "tests.ops.absent", "It does not exist.", "absent").options
"""


class ProgramMakerTests(SynchronousTestCase):
    """The garbage collector does not delay a start."""

    def test_what_exists_is_frozen_before_imports(self) -> None:
        """Objects are frozen before the modules of a program are imported."""
        frozen: list[str] = []
        self.patch(gc, "freeze", lambda: frozen.append("frozen"))
        self.patch(atexit, "register", lambda _: None)
        maker = ProgramMaker("a program", "tests.ops.absent", "It does not exist.", "absent")
        self.assertRaises(AttributeError, lambda: maker.options)
        self.assertEqual(["frozen"], frozen)

    def test_files_are_flushed_at_the_exit(self) -> None:
        """What was written before to a file that nothing but a cycle refers to is not lost."""
        ended = subprocess.run(
            [sys.executable, "-c", _WRITER], stdout=subprocess.PIPE, timeout=60, check=True
        )
        self.assertEqual(b"written\n", ended.stdout)

    def test_all_programs(self) -> None:
        """All programs of the package are such plugins."""
        makers = [cast(ProgramMaker, each) for each in getPlugins(IServiceMaker)]
        ours = [each for each in makers if each.module.startswith("yurttunnel.")]
        self.assertEqual([ProgramMaker] * 5, list(map(type, ours)))
