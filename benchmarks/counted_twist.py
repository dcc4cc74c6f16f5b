"""``twist`` whose function calls are counted.

A program by itself, which ``--reactor counted`` of :mod:`benchmarks.tunnel` starts in the place of
``twist``. At SIGUSR1 it writes how many functions of Python and of C its main thread has called so
far, apart by a space, into the file ``calls.PID`` of the directory that it was started in.
"""

import os
import runpy
import signal
import sys
from types import FrameType
from typing import Any

_python = 0
_c = 0


def _count(frame: FrameType, event: str, argument: Any) -> None:
    global _python, _c
    if event == "call":
        _python += 1
    elif event == "c_call":
        _c += 1


def _tell(*signal_and_frame: object) -> None:
    path = f"calls.{os.getpid()}"
    counted = f"{_python} {_c}"
    with open(f"{path}.new", "w", encoding="ascii") as counts:
        counts.write(counted)
    os.replace(f"{path}.new", path)


def main() -> None:
    """Count from here on, and be ``twist``."""
    signal.signal(signal.SIGUSR1, _tell)
    sys.setprofile(_count)
    runpy.run_module("twisted", run_name="__main__")


if __name__ == "__main__":
    main()
