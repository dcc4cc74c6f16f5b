"""The plugins of ``twist`` for the programs."""

from __future__ import annotations

import gc
from typing import cast

from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.program import ProgramMaker


class ProgramMakerTests(SynchronousTestCase):
    """The garbage collector does not delay a start."""

    def test_what_exists_is_frozen_before_imports(self) -> None:
        """Objects are frozen before the modules of a program are imported."""
        frozen: list[str] = []
        self.patch(gc, "freeze", lambda: frozen.append("frozen"))
        maker = ProgramMaker("a program", "tests.ops.absent", "It does not exist.", "absent")
        self.assertRaises(AttributeError, lambda: maker.options)
        self.assertEqual(["frozen"], frozen)

    def test_all_programs(self) -> None:
        """All programs of the package are such plugins."""
        makers = [cast(ProgramMaker, each) for each in getPlugins(IServiceMaker)]
        ours = [each for each in makers if each.module.startswith("yurttunnel.")]
        self.assertEqual([ProgramMaker] * 5, list(map(type, ours)))
