"""``twist`` with the asyncio reactor on uvloop, which no option of ``twist`` selects.

A standalone program, which ``--reactor uvloop`` starts instead of ``twist``.
"""

import runpy

import uvloop
from twisted.internet import asyncioreactor


def main() -> None:
    """Install the reactor, then run ``twist``."""
    asyncioreactor.install(uvloop.new_event_loop())
    runpy.run_module("twisted", run_name="__main__")


if __name__ == "__main__":
    main()
