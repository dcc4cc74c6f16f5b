"""Errors of a command line, in one line each: the flag, what is wrong with it, and the fix."""

from __future__ import annotations

import contextlib
import difflib
import errno
import getopt
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from twisted.python import usage

STATUS = 64
"""The exit status: EX_USAGE of sysexits.h."""

_MAX_SUGGESTIONS = 3

_SHORT_LENGTH = 3
"""The length of a short word: one wrong letter is a third of it."""

_MIN_SIMILARITY_OF_SHORT = 0.8
"""The minimum similarity for a short word: "get" is no misspelling of "agent"."""

_MAX_SIMILARITY_DIFFERENCE = 0.1
"""The maximum difference in similarity (1: equal) between the best suggestion and further ones."""

_TWIST_FLAGS = {
    "log-level": ("LEVEL", ", or give --v=4 here for debug messages"),
    "log-file": ("FILE", ""),
    "reactor": ("NAME", ""),
}
"""Flags that go before the name of a ``twist`` command, with their value and an alternative."""

_ALTERNATIVES = {
    "log-level": "give --v=2 for each request, --v=4 for debug messages",
    "log-file": "the log goes to standard error: 2> FILE puts it into a file",
}
"""The alternatives to these flags where there is no ``twist``."""


@contextlib.contextmanager
def exit_on_usage_error() -> Iterator[None]:
    """Exit with the message of a ``UsageError`` as one line on stderr, and with :data:`STATUS`.

    Twisted would print its help, of 200 lines, in which the message is overlooked.
    """
    try:
        yield
    except usage.UsageError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(STATUS) from None


@contextlib.contextmanager
def exit_on_broken_pipe(screen: TextIO | None = None) -> Iterator[None]:
    """End the process as SIGPIPE would, which Python ignores, when its output has no reader.

    If the output fails for another reason, such as a full disk, exit with an error message.
    ``screen`` is where it prints, by default ``sys.stdout`` at the time of the call.
    """
    try:
        try:
            yield
        finally:
            # It is None in a process that was started without standard output (``>&-``).
            screen = screen or sys.stdout
            if screen is not None:
                screen.flush()
    except BrokenPipeError:
        _discard_output(screen or sys.stdout)
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        # An error that concerns a file has its name.
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _discard_output(screen or sys.stdout)
        print(f"standard output cannot be written: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None


def _discard_output(screen: TextIO) -> None:
    """Discard the buffered output, which would fail again when the interpreter exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), screen.fileno())


def did_you_mean(
    given: str, known: Iterable[str], prefix: str = "", min_similarity: float = 0.6
) -> str:
    """Return "did you mean A, B or C?" with the closest of ``known``; empty if none is close.

    ``prefix`` is put before each name; ``min_similarity`` is the minimum, where 1 means equal.
    """
    if len(given) <= _SHORT_LENGTH:
        min_similarity = max(min_similarity, _MIN_SIMILARITY_OF_SHORT)
    similar = difflib.get_close_matches(given, sorted(known), _MAX_SUGGESTIONS, min_similarity)
    if not similar:
        return ""
    threshold = _similarity(given, similar[0]) - _MAX_SIMILARITY_DIFFERENCE
    *others, last = [f"{prefix}{each}" for each in similar if _similarity(given, each) >= threshold]
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, one).ratio()


def getopt_error_message(
    error: getopt.GetoptError, arguments: Sequence[str], known: Sequence[str], twist_command: str
) -> str:
    """Return the message for the error that ``getopt`` found in ``arguments``.

    ``known`` are the names of all flags; ``twist_command`` is the command that ``twist`` runs, or
    empty.
    """
    name = error.opt
    if "requires argument" in error.msg:
        return f"{_written(name)}: its value is missing: write {_written(name)}=VALUE"
    if "must not have an argument" in error.msg:
        return f"--{name}: it takes no value: remove the equals sign and what follows it"
    if "not a unique prefix" in error.msg:
        meant = " or ".join(f"--{each}" for each in sorted(known) if each.startswith(name))
        return f"--{name}: it may be short for {meant}: write it out"
    return _unknown(_given(name, arguments), known, twist_command)


def _unknown(given: str, known: Sequence[str], twist_command: str) -> str:
    name = given.lstrip("-")
    if twist_command and name in _TWIST_FLAGS:
        value, otherwise = _TWIST_FLAGS[name]
        return (
            f"{given}: it is a flag of twist itself: write it before the command,"
            f" twist --{name} {value} {twist_command}{otherwise}"
        )
    cure = _ALTERNATIVES.get(name) or did_you_mean(name, known, "--")
    return f"{given}: there is no such flag: {cure or '--help-all shows all there are'}"


def _given(name: str, arguments: Sequence[str]) -> str:
    """Return the unrecognized flag in full: ``getopt`` sometimes names only one of its letters."""
    for argument in arguments:
        given = argument.partition("=")[0]
        if argument.startswith("--") and given == f"--{name}":
            return given
        if not argument.startswith("--") and len(given) > 2 and given.startswith(f"-{name}"):
            return given
    return _written(name)


def _written(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"
