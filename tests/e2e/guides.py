"""The commands of guides: the blocks of shell commands on pages of ``docs`` and ``deploy``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from twisted.internet import reactor
from twisted.internet.utils import getProcessOutputAndValue

from tests.e2e.programs import ROOT

DOCS = ROOT / "docs"

CLUSTER = "cluster"
"""The mark of commands that need a cluster."""

_BLOCK = re.compile(
    r"^( *)```sh (?P<marks>[\w -]+)\n(?P<text>.*?)^ *```$"
    r"(?:\n+^ *```text\n(?P<printed>.*?)^ *```$)?",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """Commands, the machine that runs them, and their expected output."""

    marks: list[str]
    text: str
    printed: list[str]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of shell commands of a page."""
    return [
        Block(found["marks"].split(), found["text"], (found["printed"] or "").splitlines())
        for found in _BLOCK.finditer(page.read_text())
    ]


def code(page: Path, language: str) -> str:
    """Return the first block of a page in the given language."""
    text = page.read_text().partition(f"\n```{language}\n")[2]
    return text.partition("\n```\n")[0] + "\n"


class Guide:
    """The commands of a page, block by block.

    ``environment`` is that of all commands. ``replacements`` has the values of the page's
    placeholders.
    """

    def __init__(
        self, page: Path, environment: Mapping[str, str], replacements: Mapping[str, str]
    ) -> None:
        self._page = page
        self._environment = environment
        self._replacements = replacements
        self._blocks = [block for block in blocks(page) if CLUSTER in block.marks]

    async def run_next(self, at: Path, *, editor: str = "false", options: str = "-eu") -> str:
        """Run the next block in the directory ``at``; return its output.

        ``editor`` is for ``kubectl edit``, and ``options`` are bash's: without ``-e`` only the last
        command has to succeed.
        """
        text = self._blocks.pop(0).text
        for word, value in self._replacements.items():
            text = text.replace(word, value)
        output, errors, status = await getProcessOutputAndValue(
            shutil.which("bash"),
            [options, "-o", "pipefail", "-c", text],
            env={**self._environment, "KUBE_EDITOR": editor},
            path=str(at),
            reactor=reactor,
        )
        printed = output.decode("utf-8", "replace")
        if status != 0:
            error = errors.decode("utf-8", "replace")
            raise AssertionError(f"{self._page}: {text}status {status}: {printed}{error}")
        return printed

    @property
    def finished(self) -> bool:
        """Whether all blocks have run."""
        return not self._blocks
