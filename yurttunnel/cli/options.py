"""What the command lines of all commands have in common that ask a running process."""

from __future__ import annotations

import getopt
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.python import usage

from yurttunnel.cli.client import CommandFailed, Process
from yurttunnel.cli.finding import one, running
from yurttunnel.ops import flags
from yurttunnel.ops.command_line import STATUS
from yurttunnel.ops.flag_table import Flag, Group
from yurttunnel.ops.options import CommandOptions


def _format(text: str) -> str:
    """Parse a form of output."""
    if text not in ("text", "json"):
        raise ValueError(f"{text!r} is none of these: text, json")
    return text


STATE_DIR = Flag(
    "state-dir",
    Group.BASICS,
    flags.path,
    "State directory of the process that is asked (in a cluster its --cert-dir). [default: that of"
    " the only one that this user, or root, runs on this machine; or $YURTTUNNEL_STATE_DIR]",
    variable="YURTTUNNEL_STATE_DIR",
)

OUTPUT = Flag(
    "output",
    Group.BASICS,
    _format,
    "What is printed: text, for people, or json, as docs/admin.md describes it.",
    default="text",
    short="o",
)


class AskingOptions(CommandOptions[None]):
    """Options of a command that asks a running process.

    ``words`` names the arguments that belong to no flag, which have to be given; flags may stand
    behind them.
    """

    is_program = False

    words: Sequence[str] = ()

    def make_settings(self) -> None:
        """Check all values; what asks for them converts them."""
        for entry in self.table:
            if isinstance(entry, Flag) and self[entry.name] is not None:
                self.value(entry)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse ``options``, wherever the words stand between the flags."""
        given = list(sys.argv[1:] if options is None else options)
        try:
            found, words = getopt.gnu_getopt(given, str(self.shortOpt), list(self.longOpt))
        except getopt.GetoptError:
            # It is told below what is wrong.
            super().parseOptions(given)
            return
        super().parseOptions([*(each for pair in found for each in _written(*pair)), *words])

    def parseArgs(self, *arguments: str) -> None:
        """Take the words."""
        if len(arguments) < len(self.words):
            raise usage.UsageError(f"{self.words[len(arguments)]} is missing: give it")
        super().parseArgs(*arguments[len(self.words) :])
        self.given = arguments

    @property
    def as_json(self) -> bool:
        """Whether JSON is wanted."""
        return self.value(OUTPUT) == "json"

    def process(self, program: str) -> Process:
        """Return the process that is meant, a ``server`` or an ``agent``."""
        return one(self.state_dir, program, running())

    @property
    def state_dir(self) -> Path | None:
        """The state directory, if one is named."""
        named = self[STATE_DIR.name] or self._environment.get(STATE_DIR.variable)
        return self.value(STATE_DIR) if named else None


def _written(flag: str, value: str) -> list[str]:
    if not value:
        return [flag]
    return [f"{flag}={value}"] if flag.startswith("--") else [flag, value]


@dataclass(frozen=True, slots=True)
class AskingCommand:
    """``yurttunnel NAME``, which asks a running process by ``act(options)``."""

    name: str
    text: str
    make_options: Callable[[], AskingOptions]
    act: Callable[[Any], int | None]

    def options(self) -> CommandOptions[Any]:
        """Make its options."""
        return self._options()

    def run(self, arguments: Sequence[str]) -> None:
        """Run it; what is wrong is one line on standard error."""
        options = self._options()
        try:
            options.parseOptions(arguments)
            status = self.act(options) or 0
            sys.stdout.flush()
        except usage.UsageError as error:
            print(f"yurttunnel {self.name}: {error}", file=sys.stderr)
            status = STATUS
        except CommandFailed as error:
            print(f"yurttunnel {self.name}: {error}", file=sys.stderr)
            status = 1
        except KeyboardInterrupt:
            status = 130
        raise SystemExit(status)

    def _options(self) -> AskingOptions:
        options = self.make_options()
        options.invocation = " ".join(("yurttunnel", self.name, *options.words))
        return options
