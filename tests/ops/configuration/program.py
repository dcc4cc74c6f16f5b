"""A program with a flag of each kind."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from yurttunnel.ops import flags
from yurttunnel.ops.flag_table import Flag, Group, Repeated, Switch
from yurttunnel.ops.options import CONFIG, CommandOptions

NAME = Flag("node-name", Group.BASICS, flags.host, "Its name.", variable="NODE_NAME")
WINDOW = Flag("resume-window", Group.LIMITS, flags.duration, "How long.", default="30")
EVEN = Flag("even", Group.LIMITS, flags.switch, "Whether so.", default="true", stands_alone=True)
TARGET = Repeated("target", Group.BASICS, flags.host, "What is reached.", once_each=True)
ALONE = Switch("standalone", Group.BASICS, "Work alone.")
TABLE = (NAME, WINDOW, EVEN, TARGET, ALONE, CONFIG)


@dataclass(frozen=True)
class Settings:
    """The settings of the program."""

    name: str
    window: float
    even: bool
    targets: tuple[str, ...]
    alone: bool


class Options(CommandOptions[Settings]):
    """The options of the program."""

    table = TABLE

    def make_settings(self):
        """Read all values."""
        return Settings(
            self.value(NAME),
            self.value(WINDOW),
            self.value(EVEN),
            self.all_values(TARGET),
            self.is_given(ALONE),
        )


class ConfigurationFile:
    """A mixin for tests with a configuration file at ``path``."""

    def setUp(self):
        """Create its directory."""
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name, "program.toml")

    def write(self, text):
        """Replace the file atomically, as editors and the kubelet do."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)
