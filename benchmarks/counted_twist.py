"""``twist`` whose function calls are counted.

A program by itself, which ``--reactor counted`` of :mod:`benchmarks.tunnel` starts in the place of
``twist``. At SIGUSR1 it writes how often its main thread has called functions so far into the file
``calls.PID`` of the directory that it was started in: a JSON object with the number for ``c``, all
functions of C, and for each function of Python by its module and name.
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


def _tell(*signal_and_frame: object) -> None:
    # What this costs is nobody's.
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
    """Count from here on, and be ``twist``."""
    # CPython 3.11.2's collector follows what suspended generators of a profiled program no longer
    # hold, and crashes.
    gc.disable()
    signal.signal(signal.SIGUSR1, _tell)
    sys.setprofile(_count)
    runpy.run_module("twisted", run_name="__main__")


if __name__ == "__main__":
    main()
