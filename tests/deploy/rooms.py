"""Prints the size of each room of the package: ``python -m tests.deploy.rooms``.

A room is a package directly below ``yurttunnel`` with its subpackages; ``yurtlab``, the other
package of the repository, counts as one. Line counts include empty lines and comments.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.deploy.rendering import REPOSITORY

LAB = "yurtlab"


class Room(NamedTuple):
    """A package with its numbers of modules and lines."""

    name: str
    modules: int
    lines: int


def rooms() -> list[Room]:
    """Return the rooms, with ``yurtlab`` last."""
    tops = [*sorted(REPOSITORY.glob("yurttunnel/*/__init__.py")), REPOSITORY / LAB / "__init__.py"]
    found = []
    for package in tops:
        modules = list(package.parent.rglob("*.py"))
        lines = sum(len(path.read_text().splitlines()) for path in modules)
        found.append(Room(package.parent.name, len(modules), lines))
    return found


if __name__ == "__main__":
    *every, lab = rooms()
    total = Room(
        "yurttunnel", sum(room.modules for room in every), sum(room.lines for room in every)
    )
    print(f"{'room':<12} {'modules':>7} {'lines':>7}")
    for name, modules, lines in (*every, total, lab):
        print(f"{name:<12} {modules:>7} {lines:>7,}")
