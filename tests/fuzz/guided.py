"""Coverage-guided fuzzing with atheris, which is not installed with the tests.

``pip install atheris``, then ``python -m tests.fuzz.guided wire-server --cases 1000000``. A failed
case is reported with a traceback, saved in a file ``crash-*`` of the working directory, and ends
the process with status 77. Use a separate corpus for each target: their cases differ.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.cases import cases

FIRST_CASES = 300
"""The number of random cases at the start of the corpus."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Have libFuzzer search for cases that reach new branches. It ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--cases", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--corpus",
        type=Path,
        default=Path("build/fuzz"),
        metavar="DIR",
        help="keeps the cases that reach something new [default: %(default)s]",
    )
    options = parser.parse_args(arguments)
    try:
        import atheris
    except ImportError:
        sys.exit("tests.fuzz.guided needs atheris: pip install atheris")
    # Branches are counted only in modules that are imported here.
    with atheris.instrument_imports(include=["yurttunnel"]):
        from tests.fuzz.targets import TARGETS
    if options.target not in TARGETS:
        parser.error(f"the targets are {', '.join(TARGETS)}")
    target = TARGETS[options.target]

    def check(case: bytes) -> None:
        target.check(case)

    options.corpus.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(itertools.islice(cases(target, options.seed), FIRST_CASES)):
        Path(options.corpus, f"random-{number}").write_bytes(case)
    flags = [f"-runs={options.cases}", f"-seed={options.seed + 1}"]
    flags += ["-max_len=8192", "-timeout=10", "-rss_limit_mb=512"]
    atheris.Setup([sys.argv[0], *flags, str(options.corpus)], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
