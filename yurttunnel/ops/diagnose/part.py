"""What a bundle is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One file of the bundle: its name, its text, and a sentence for each thing that is wrong."""

    name: str
    text: str
    findings: tuple[str, ...] = ()
