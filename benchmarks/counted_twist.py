"""``twist`` with counted function calls.

A standalone program, which the reactor ``counted`` of :mod:`benchmarks.tunnel` starts instead of
``twist``. On SIGUSR1 it writes the number of function calls in its main thread so far to the file
``calls.PID`` in its start directory: a JSON object with the total of all C functions as ``c``, and
the number for each Python function by its file and name.
"""

import gc
import json
import os
import runpy
import signal
import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

_python: dict[CodeType, int] = {}
_c = 0


def _count(frame: FrameType, event: str, argument: Any) -> None:
    global _c
    if event == "call":
        code = frame.f_code
        _python[code] = _python.get(code, 0) + 1
    elif event == "c_call":
        _c += 1


def _print_counts(*signal_and_frame: object) -> None:
    # The calls of this function are not counted.
    sys.setprofile(None)
    path = f"calls.{os.getpid()}"
    counted = Counter({"c": _c})
    for code, count in list(_python.items()):
        counted[f"{os.path.relpath(code.co_filename)}:{code.co_qualname}"] += count
    with open(f"{path}.new", "w", encoding="utf-8") as counts:
        json.dump(counted, counts)
    os.replace(f"{path}.new", path)
    sys.setprofile(_count)


def main() -> None:
    """Start counting, and run ``twist``."""
    # The garbage collector of CPython 3.11.2 follows stale references in suspended generators of a
    # profiled program, and crashes.
    gc.disable()
    signal.signal(signal.SIGUSR1, _print_counts)
    sys.setprofile(_count)
    runpy.run_module("twisted", run_name="__main__")


if __name__ == "__main__":
    main()
