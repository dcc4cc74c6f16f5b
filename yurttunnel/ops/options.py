"""What the command lines of all programs have in common."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from twisted.logger import Logger
from twisted.python import usage

from yurttunnel import __version__
from yurttunnel.ops.log_levels import shown_levels
from yurttunnel.ops.log_output import FORMATS, take_over_log

USE_LOG_LEVEL = "use --v, or twist's --log-level"
USE_LOG_FILE = "use twist's --log-file"

Settings = TypeVar("Settings")
_Parsed = TypeVar("_Parsed")


class CommandOptions(usage.Options, Generic[Settings]):
    """Options whose :attr:`settings` are the whole command line, checked and typed.

    Subclasses list their flags as ``usage.Options`` has it, but without coerce functions: the
    errors of those would not name the flag, and they are not applied to defaults.
    :meth:`make_settings` parses instead. ``environment`` has the variables that stand in for
    flags.
    """

    synopsis = "[options]"

    longdesc = ""

    ignored_flags: Mapping[str, str] = {}
    """Flags with a value that mean nothing here, and what does instead. Manifests of yurttunnel
    1.2 carry them, so they are accepted with a warning."""

    ignored_switches: Mapping[str, str] = {}
    """The same in the manner of Go: their value stands behind "=", or there is none."""

    # Those of all programs: usage.Options adds them to those of the subclass.
    optParameters = [
        ["log-format", None, "text", "How the log is written: text, or json, an object on each "
         "line. It counts instead of twist's own --log-format."],
        ["v", "v", None, "How much is logged: 0 and 1, what happens to the tunnel; 2 and 3, each "
         "request, too; 4 and more, what is of use to find defects. It counts instead of twist's "
         "--log-level. [default: as 2, or what twist's --log-level says]"],
    ]  # fmt: skip

    switches: Sequence[str] = ()
    """Flags with a value that are given in the manner of Go: alone, which is ``true``, or with
    their value behind "="."""

    _log = Logger()

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        # The help would show docstrings and triple-quoted texts with their indentation.
        self.docs = {name: _one_line(text) for name, text in self.docs.items()}
        self.longdesc = _one_line(self.longdesc)
        if ignored := sorted([*self.ignored_flags, *self.ignored_switches]):
            self.longdesc += (
                " These flags of yurttunnel 1.2 are accepted and ignored with a warning: "
                f"{', '.join(ignored)}."
            )
        self._environment = environment
        self._ignored: dict[str, str] = {}
        self._settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        """Give what the command line says; only after ``parseOptions`` has succeeded."""
        if self._settings is None:
            raise RuntimeError("the command line has not been parsed")
        return self._settings

    def make_settings(self) -> Settings:
        """Check and convert everything; raises ``UsageError`` naming the flag and the fix."""
        raise NotImplementedError

    def value(self, flag: str, parse: Callable[[str], _Parsed], variable: str = "") -> _Parsed:
        """Parse the value of ``flag``, or of the environment variable that stands in for it.

        What ``parse`` raises as ``ValueError`` becomes a ``UsageError`` that names the flag.
        """
        source = f"--{flag}"
        text = self[flag]
        if text is None and self._environment.get(variable):
            source = f"${variable} (or --{flag})"
            text = self._environment[variable]
        if text is None:
            instead = f" or set {variable}" if variable else ""
            raise usage.UsageError(f"--{flag} is missing: give it{instead}")
        try:
            return parse(text)
        except ValueError as reason:
            raise usage.UsageError(f"{source}: {reason}") from None

    def optional_value(
        self, flag: str, parse: Callable[[str], _Parsed], default: _Parsed
    ) -> _Parsed:
        """Parse the value of ``flag``; without the flag it is ``default``."""
        return default if self[flag] is None else self.value(flag, parse)

    def opt_version(self) -> None:
        """Print the version of yurttunnel and exit."""
        print(f"yurttunnel {__version__}")
        raise SystemExit(0)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse ``options``, without the flags that mean nothing here."""
        kept = []
        arguments = iter(sys.argv[1:] if options is None else options)
        for argument in arguments:
            name, equals, value = argument.lstrip("-").partition("=")
            if not argument.startswith("-"):
                kept.append(argument)
            elif name in self.ignored_switches:
                self._ignored[name] = self.ignored_switches[name]
            elif name in self.ignored_flags:
                self._ignored[name] = self.ignored_flags[name]
                if not equals:
                    # The value is the next argument.
                    next(arguments, None)
            elif name in self.switches:
                kept.append(f"--{name}={value if equals else 'true'}")
            else:
                kept.append(argument)
        super().parseOptions(kept)

    def parseArgs(self, *arguments: str) -> None:
        """Refuse arguments that belong to no flag."""
        if arguments:
            raise usage.UsageError(f"unexpected argument {arguments[0]!r}: it belongs to no flag")

    def postOptions(self) -> None:
        """Warn of what is ignored, and make the settings; raises ``UsageError``."""
        for name, instead in self._ignored.items():
            self._log.warn("--{flag} is ignored: {instead}", flag=name, instead=instead)
        self._settings = self.make_settings()
        format = self.value("log-format", _log_format)
        verbosity = self.optional_value("v", _verbosity, None)
        # Under twist, that is: the quickstart parses without a parent, and twistd logs otherwise.
        if self.parent is not None and "fileLogObserverFactory" in self.parent:
            take_over_log(self.parent, format, verbosity, shown_levels)


def _log_format(text: str) -> str:
    """Parse the format of the log."""
    if text not in FORMATS:
        raise ValueError(f"{text!r} is none of these: {', '.join(FORMATS)}")
    return text


def _verbosity(text: str) -> int:
    """Parse the verbosity; ``-v=2``, in the manner of Go, arrives with its equals sign."""
    digits = text.removeprefix("=")
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{digits!r} is not a number: give 0 to 4")
    return int(digits)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
