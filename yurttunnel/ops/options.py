"""The command-line options that all programs share."""

from __future__ import annotations

import getopt
import os
import sys
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn, Self, TypeVar, cast

from twisted.logger import Logger, LogLevel
from twisted.python import usage

from yurttunnel import __version__
from yurttunnel.ops import flags
from yurttunnel.ops.command_line import (
    exit_on_broken_pipe,
    exit_on_usage_error,
    getopt_error_message,
)
from yurttunnel.ops.configuration.file import OWN_KEY, State, read_file, state_of
from yurttunnel.ops.configuration.sources import (
    ON,
    FlagValue,
    Source,
    environment,
    misspelled_variables,
)
from yurttunnel.ops.flag_table import Entry, Flag, Group, Repeated, Switch, spellings
from yurttunnel.ops.help import Example, Help
from yurttunnel.ops.log_levels import LogLevelFilter, log_level_filter
from yurttunnel.ops.log_output import FORMATS, take_over_log

_USE_LOG_LEVEL = "use --v, or twist's --log-level"
_USE_LOG_FILE = "use twist's --log-file"
_USE_LOG_FORMAT = "twist or --log-format determines the format"

KLOG_FLAGS: Mapping[str, str] = {
    "log_backtrace_at": _USE_LOG_LEVEL,
    "log_dir": _USE_LOG_FILE,
    "log_file": _USE_LOG_FILE,
    "log_file_max_size": _USE_LOG_FILE,
    "stderrthreshold": _USE_LOG_LEVEL,
    "vmodule": _USE_LOG_LEVEL,
}
"""Flags of the logging library of Kubernetes (``InitFlags`` of k8s.io/klog/v2), and what replaces
each; ``v`` is a flag of ours."""

KLOG_SWITCHES: Mapping[str, str] = {
    "add_dir_header": _USE_LOG_FORMAT,
    "alsologtostderr": _USE_LOG_FILE,
    "logtostderr": _USE_LOG_FILE,
    "one_output": _USE_LOG_FILE,
    "skip_headers": _USE_LOG_FORMAT,
    "skip_log_headers": _USE_LOG_FORMAT,
}
"""Those of them that need no value."""

Settings = TypeVar("Settings")
_Parsed = TypeVar("_Parsed")


LOG_FORMAT = Flag(
    "log-format",
    Group.OPERATION,
    flags.one_of(*FORMATS),
    "Format of the log: text, or json, one object per line.",
    default="text",
)
VERBOSITY = Flag(
    "v",
    Group.BASICS,
    lambda text: _verbosity(text),
    "Log verbosity: 0 and 1 log events of the program, 2 and 3 also each request, 4 and above"
    " also details for debugging. [default: as 2; yurttunnel quickstart: warnings]",
    short="v",
)

CONFIG = Flag(
    OWN_KEY,
    Group.BASICS,
    flags.path,
    "TOML file in which every flag except this one is a key. The command line and variables"
    " YURTTUNNEL_... take precedence. The file is reloaded when it changes; the log names changes"
    " that need a restart (docs/configuration.md).",
)

_COMMON_FLAGS = (LOG_FORMAT, VERBOSITY)


class FlagMissing(usage.UsageError):
    """A required flag has no value."""


class CommandOptions(usage.Options, Generic[Settings]):
    """Options whose :attr:`settings` are the whole command line, checked and typed.

    Subclasses list their flags in :attr:`table`; :meth:`make_settings` reads their values, so that
    each error names its flag. ``environment`` has the environment variables.

    An error in a command line is a ``UsageError`` of one line. Under ``twist``, which would add its
    help to the message, it ends the process.

    The value of a flag comes from the command line, else from its environment variable, else from
    the file of ``--config``, else from the default.
    """

    invocation = ""
    """The command as users type it, for its help; ``twist`` has its own form."""

    longdesc = ""

    examples: Sequence[Example] = ()

    table: Sequence[Entry] = ()
    """The flags of the command; those that all programs share are added."""

    is_program = True
    """Whether the command is a daemon, which runs, and logs, until it is stopped."""

    ignored_flags: Mapping[str, str] = {}
    """Flags with a value that have no effect, and what replaces them. Manifests for former releases
    have them, so they are accepted with a warning."""

    ignored_from = "yurttunnel 1.2"
    """The release that the ignored flags come from."""

    ignored_switches: Mapping[str, str] = {}
    """Ignored switches in the style of Go: a value follows "=", or there is none."""

    has_words = False
    """Whether there are positional arguments, which flags may follow."""

    _log = Logger()

    def __init_subclass__(cls) -> None:
        """Add the flags that all programs share to the table."""
        own = [each for each in cls.table if each not in _COMMON_FLAGS]
        cls.table = (*own, *(_COMMON_FLAGS if cls.is_program else ()))

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        self.longdesc = " ".join(self.longdesc.split())
        self._environment = environment
        self._ignored: dict[str, str] = {}
        self._command_line: Source = {}
        self._variables: Source = {}
        self._values: Source = {}
        self._twist_level: Any = LogLevel.info
        self.file: Path | None = None
        """The path of ``--config``, in commands that have that flag."""
        self.file_state: State = ""
        """The state of the file when it was read."""
        self._settings: Settings | None = None
        self._apply({})

    @property
    def settings(self) -> Settings:
        """The parsed settings; only valid after ``parseOptions`` has succeeded."""
        if self._settings is None:
            raise RuntimeError("the command line has not been parsed")
        return self._settings

    def settings_of(self, *arguments: str) -> Settings:
        """Parse ``arguments``, and return the settings; raise ``UsageError``."""
        self.parseOptions(arguments)
        return self.settings

    def make_settings(self) -> Settings:
        """Validate and convert everything; raise ``UsageError`` that names the flag and the fix."""
        raise NotImplementedError

    def is_given(self, entry: Flag[_Parsed] | Switch) -> bool:
        """Return whether a flag is given with a value that is not empty."""
        return bool(self[entry.name])

    def value(self, flag: Flag[_Parsed]) -> _Parsed:
        """Return the value of ``flag``.

        Raises ``UsageError``, which names the flag, if it is missing or invalid.
        """
        text = self[flag.name]
        if text is None:
            instead = f" or set {flag.variable}" if flag.variable else ""
            raise FlagMissing(f"--{flag.name} is missing: give it{instead}")
        return self._parsed(flag, text)

    def optional_value(self, flag: Flag[_Parsed], default: _Parsed) -> _Parsed:
        """Return the value of ``flag``, or ``default`` if it is not given."""
        return default if self[flag.name] is None else self.value(flag)

    def all_values(self, flag: Repeated[_Parsed]) -> tuple[_Parsed, ...]:
        """Return the values of a flag in order; raise ``UsageError`` for an invalid one."""
        return tuple(self._parsed(flag, text) for text in self.texts(flag))

    def texts(self, entry: Entry) -> tuple[str, ...]:
        """Return the texts of the values of a flag: none, one, or several."""
        given = self._values.get(entry.name)
        if given is not None:
            return given.texts
        default = entry.default if isinstance(entry, Flag) else None
        return () if default is None else (default,)

    def _parsed(self, flag: Flag[_Parsed] | Repeated[_Parsed], text: str) -> _Parsed:
        given = self._values.get(flag.name)
        source = f"--{flag.name}" if given is None else given.source
        try:
            return flag.parse(text)
        except ValueError as reason:
            raise usage.UsageError(f"{source}: {reason}") from None

    def help(self) -> Help:
        """Return the help of the command and its flags."""
        invocation = f"twist {self._twist_command}" if self._twist_command else self.invocation
        ignored = ", ".join(sorted([*self.ignored_flags, *self.ignored_switches]))
        origin = self.ignored_from
        note = f"These flags of {origin} are accepted and ignored with a warning: {ignored}."
        return Help(invocation, self.longdesc, self.examples, self.table, note if ignored else "")

    def __str__(self) -> str:
        """Return the usual help, without rare flags."""
        return self.help().short()

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse ``options``; the class describes what happens on errors."""
        arguments = sys.argv[1:] if options is None else options
        if self._twist_command:
            with exit_on_usage_error():
                self._parse(arguments)
        else:
            self._parse(arguments)

    @property
    def _twist_command(self) -> str:
        """The name by which ``twist`` runs the command; empty if something else runs it."""
        return str(getattr(self.parent, "subCommand", None) or "")

    def _parse(self, arguments: Sequence[str]) -> None:
        arguments = self._normalized(arguments)
        names = [each.name if isinstance(each, Switch) else f"{each.name}=" for each in self.table]
        names += ("help", "help-all", "version")
        letters = "h"
        for entry in self.table:
            if not isinstance(entry, Repeated) and entry.short:
                letters += entry.short if isinstance(entry, Switch) else f"{entry.short}:"
        split = getopt.gnu_getopt if self.has_words else getopt.getopt
        try:
            found, words = split(arguments, letters, names)
        except getopt.GetoptError as error:
            known = [name.rstrip("=") for name in names]
            sentence = getopt_error_message(error, arguments, known, self._twist_command)
            raise usage.UsageError(sentence) from None
        self._command_line = self._read_command_line(found)
        self.parseArgs(*words)
        self.postOptions()

    def _read_command_line(self, found: Iterable[tuple[str, str]]) -> Source:
        entries = {spelling: entry for entry in self.table for spelling in spellings(entry)}
        texts: dict[str, list[str]] = {}
        for flag, text in found:
            if flag in ("-h", "--help"):
                _print_and_exit(str(self))
            if flag == "--help-all":
                _print_and_exit(self.help().full())
            if flag == "--version":
                _print_and_exit(f"yurttunnel {__version__}")
            match entries[flag]:
                case Repeated(name=name):
                    texts.setdefault(name, []).append(text)
                case Switch(name=name):
                    texts[name] = [ON]
                case Flag(name=name):
                    # "-o=json" in the style of Go; getopt takes "=" for part of the value.
                    texts[name] = [text if flag.startswith("--") else text.removeprefix("=")]
        return {name: FlagValue(tuple(each), f"--{name}") for name, each in texts.items()}

    def _normalized(self, given: Sequence[str]) -> list[str]:
        """Return the arguments without ignored flags, in the form that ``getopt`` accepts."""
        normalized = []
        bare_flags = {e.name for e in self.table if isinstance(e, Flag) and e.stands_alone}
        arguments = iter(given)
        for argument in arguments:
            name, equals, value = argument.lstrip("-").partition("=")
            if not argument.startswith("-"):
                normalized.append(argument)
            elif name in self.ignored_switches:
                self._ignored[name] = self.ignored_switches[name]
            elif name in self.ignored_flags:
                self._ignored[name] = self.ignored_flags[name]
                if not equals:
                    # The value is the next argument.
                    next(arguments, None)
            elif name in bare_flags:
                normalized.append(f"--{name}={value if equals else 'true'}")
            else:
                normalized.append(argument)
        return normalized

    def parseArgs(self, *arguments: str) -> None:
        if arguments:
            raise usage.UsageError(f"unexpected argument {arguments[0]!r}: it belongs to no flag")

    def postOptions(self) -> None:
        """Warn about ignored flags, and make the settings; raise ``UsageError``."""
        for name, instead in self._ignored.items():
            self._log.warn("--{flag} is ignored: {instead}", flag=name, instead=instead)
        if self.is_program:
            for variable, meant in misspelled_variables(self.table, self._environment):
                self._log.warn("${variable} is ignored: {meant}", variable=variable, meant=meant)
        self._variables = environment(self.table, self._environment, self.is_program)
        self._hide_secrets()
        self._apply({})
        if CONFIG in self.table:
            self.file = self.optional_value(CONFIG, None)
        if self.file is not None:
            self.file_state = state_of(self.file)
            self._apply(self.read_file(self.file))
        self._settings = self.make_settings()
        if not self.is_program:
            return
        format = self.value(LOG_FORMAT)
        verbosity = self.optional_value(VERBOSITY, None)
        # Only under twist: the quickstart parses without a parent, and twistd has its own logging.
        if self.parent is not None and "fileLogObserverFactory" in self.parent:
            self._twist_level = self.parent["logLevel"]
            take_over_log(self.parent, format, verbosity, log_level_filter)

    def _hide_secrets(self) -> None:
        for entry in self.table:
            if isinstance(entry, Flag) and entry.secret and entry.name in self._command_line:
                # Imported here because it takes memory, and nothing else needs it.
                from yurttunnel.ops.hidden_arguments import hide_argument

                for text in self._command_line[entry.name].texts:
                    hide_argument(text)

    def read_file(self, path: Path) -> Source:
        """Return the contents of a file of ``--config``; raise ``UsageError``."""
        return read_file(path, self.table)

    def check_values(self, file: Source) -> None:
        """Raise ``UsageError`` unless each value of a file can be parsed."""
        self._apply(file)
        for entry in self.table:
            if entry.name in file and isinstance(entry, Flag | Repeated):
                for text in self.texts(entry):
                    self._parsed(entry, text)

    def reread(self) -> Self:
        """Return these options with the file's current contents; raise ``UsageError``."""
        if self.file is None:
            raise RuntimeError("there is no file to read")
        copy = type(self)(self._environment)
        copy.file, copy._twist_level = self.file, self._twist_level
        copy._command_line, copy._variables = self._command_line, self._variables
        copy._apply(copy.read_file(self.file))
        copy._settings = copy.make_settings()
        for flag in (LOG_FORMAT, VERBOSITY):
            copy.optional_value(flag, None)
        return copy

    def apply_log_level(self, levels: LogLevelFilter) -> None:
        """Set the log level to that of ``--v``, or else to that of twist's ``--log-level``."""
        verbosity = self.optional_value(VERBOSITY, None)
        if verbosity is None:
            levels.set(self._twist_level, requests=True)
        else:
            levels.set_verbosity(verbosity)

    def _apply(self, file: Source) -> None:
        """Apply the values of the file where nothing precedes them; raise ``UsageError``."""
        self._values = ChainMap(
            *(
                cast(dict[str, FlagValue], each)
                for each in (self._command_line, self._variables, file)
            )
        )
        for entry in self.table:
            texts = self.texts(entry)
            match entry:
                case Switch():
                    self.opts[entry.name] = int(texts == (ON,))
                case Repeated():
                    self._check_repeated(entry, texts)
                case Flag():
                    self.opts[entry.name] = texts[0] if texts else None

    def _check_repeated(self, flag: Repeated[object], texts: Sequence[str]) -> None:
        if flag.once_each and len(texts) > len(set(texts)):
            twice, _ = Counter(texts).most_common(1)[0]
            source = self._values[flag.name].source
            raise usage.UsageError(f"{source} {twice} is given twice")


def _print_and_exit(text: str) -> NoReturn:
    """Print the requested text, such as the help, and exit."""
    with exit_on_broken_pipe():
        print(text)
    raise SystemExit(0)


def _verbosity(text: str) -> int:
    """Parse the verbosity."""
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text!r} is not a number: give 0 to 4")
    return int(text)
