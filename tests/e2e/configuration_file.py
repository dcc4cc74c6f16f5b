"""A file for ``--config`` that a test changes while the program runs."""

from __future__ import annotations

import os
from pathlib import Path

from yurttunnel.ops.configuration.reloading import CHECK_SECONDS

TIMEOUT = 20 * CHECK_SECONDS
"""Seconds until a changed file is in use on a busy machine; an idle one needs three checks."""


class ConfigurationFile:
    """The file ``name`` in a test's directory."""

    def __init__(self, directory: str, name: str = "any.toml") -> None:
        self.path = Path(directory, name)

    @property
    def flags(self) -> tuple[str, str]:
        """The flags for the program."""
        return ("--config", str(self.path))

    def write(self, text: str) -> None:
        """Replace the file."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)

    async def use(self, case, program, text: str, *changed: str) -> None:
        """Replace it, and wait until the program logs that the changed flags are in use."""
        log_length = len(program.log)
        self.write(text)
        flags = ", ".join(f"--{name}" for name in sorted(changed))
        expected = f"changed in {self.path}, and in use: {flags}\n"
        await case.eventually(lambda: expected in program.log[log_length:], expected, TIMEOUT)
