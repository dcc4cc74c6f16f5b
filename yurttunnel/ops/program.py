"""The plugins of ``twist`` for the programs; their modules are in ``twisted/plugins``."""

from __future__ import annotations

import atexit
import gc
from typing import Any

from twisted.application.service import ServiceMaker


class ProgramMaker(ServiceMaker):
    """The maker of a program, whose start is not delayed by a full garbage collection.

    Without this, the imports of a program's modules would trigger one, which would visit all
    objects of the interpreter and of Twisted: a tenth of the time of a start. Almost all of them
    live as long as the process.
    """

    @property
    def options(self) -> Any:
        """The options of the program; its modules are imported when they are read."""
        gc.freeze()
        # Frozen objects are not deleted at the exit, and files among them not flushed.
        atexit.register(gc.unfreeze)
        return super().options
