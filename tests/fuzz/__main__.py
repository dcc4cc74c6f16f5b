"""Run random bytes through the parsers of untrusted bytes. See docs/security.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.fuzz.campaign import CaseFailed, campaign
from tests.fuzz.targets import TARGETS

MAX_GROWTH = 16 * 2**20
"""The maximum growth of the resident memory in a campaign, bytes; allocators keep some memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected campaigns. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", help=f"of {', '.join(TARGETS)} [default: all]")
    parser.add_argument("--cases", type=int, default=100_000, metavar="N", help="for each target")
    parser.add_argument("--seed", type=int, default=0, help="another one gives other cases")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.target if name not in TARGETS]:
        parser.error(f"no such target: {', '.join(unknown)}")
    chosen = [TARGETS[name] for name in options.target or TARGETS]
    for target in chosen:
        try:
            outcome = campaign(target, options.cases, options.seed)
        except CaseFailed as error:
            print(error)
            return 1
        print(outcome, flush=True)
        if outcome.growth > MAX_GROWTH:
            print(f"{target.name}: memory has grown by {outcome.growth} bytes")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
