"""The entry points of ``yurttunnel`` and its plugin for kubectl."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Run the command that the process's arguments name."""
    with _exit_on_interrupt():
        with ended_by_interrupt():
            from yurttunnel.cli.invocation import run

        run()


def complete() -> None:
    """Print the completions for ``kubectl yurttunnel``, as kubectl requests them."""
    with _exit_on_interrupt():
        with ended_by_interrupt():
            from yurttunnel.cli.invocation import complete

        complete()


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """Exit without a traceback when the process is interrupted.

    This covers a command, a program before its reactor runs, and the import of their modules, which
    takes most of a command's time.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """End the process by SIGINT at once, unless that is ignored.

    A ``KeyboardInterrupt`` would be lost where a Deferred or the import system catches it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
