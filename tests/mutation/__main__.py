"""``python -m tests.mutation [PACKAGE ...] [--sample N] [--seed N] [--named] [--only ...]``."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

from tests.mutation.campaign import SURVIVED, TYPES, Campaign, Results, Verdict
from tests.mutation.mutants import Mutant, mutants_of, named_mutants

ROOT = Path(__file__).parents[2]
NAMED = Path(__file__).with_name("named.toml")
EQUIVALENT = Path(__file__).with_name("equivalent.toml")

LAB = "yurtlab"
METRICS = "metrics.py"
ROOMS = sorted(
    [LAB, METRICS, *(path.parent.name for path in (ROOT / "yurttunnel").glob("*/__init__.py"))]
)
"""All packages, and the module beside them."""


def chosen(packages: list[str], sample: int, seed: int) -> list[Mutant]:
    """Return a sample of the generated mutants of the packages, the same for the same seed.

    Named equivalent mutants are excluded: no test can find them.
    """
    equivalent = tomllib.loads(EQUIVALENT.read_text())
    generated = [
        mutant
        for package in packages
        for path in _modules(ROOT / _path_of(package))
        for mutant in mutants_of(str(path.relative_to(ROOT)), path.read_bytes())
        if mutant.name not in equivalent
    ]
    drawn = sorted(generated, key=lambda one: _rank(one, seed))[:sample]
    return sorted(drawn, key=lambda one: (one.path, one.start))


def _rank(mutant: Mutant, seed: int) -> bytes:
    """Return a mutant's rank in the sample. It depends on the mutant's name only."""
    return hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()


def below(mutants: list[Mutant], packages: list[str]) -> list[Mutant]:
    """Return those of a sample whose module is below one of the packages (``server/siblings``)."""
    desired = {_path_of(package) for package in packages}
    return [
        mutant
        for mutant in mutants
        if not desired.isdisjoint([Path(mutant.path), *Path(mutant.path).parents])
    ]


def _modules(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def _path_of(package: str) -> Path:
    return Path(package) if Path(package).parts[0] == LAB else Path("yurttunnel", package)


def main(arguments: list[str]) -> int:
    """Test mutants and print the results. Return 1 if less than ``--least`` percent were found."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("packages", nargs="*", default=ROOMS, help="by default all")
    parser.add_argument(
        "--only", nargs="+", default=ROOMS, metavar="PACKAGE", help="try only these of the sample"
    )
    parser.add_argument("--sample", type=int, default=300, help="how many generated mutants")
    parser.add_argument("--seed", type=int, default=1, help="which of them")
    parser.add_argument("--named", action="store_true", help="only those written by hand")
    parser.add_argument("--least", type=float, default=95.0, help="percent that is enough")
    parser.add_argument("--copies", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--results", type=Path, default=ROOT / ".mutation.jsonl")
    options = parser.parse_args(arguments)
    mutants = named_mutants(NAMED, ROOT)
    if not options.named:
        mutants += chosen(options.packages, options.sample, options.seed)
    mutants = below(mutants, options.only)

    results = Results(options.results, ROOT)
    known = [verdict for mutant in mutants if (verdict := results.known(mutant)) is not None]
    verdicts = {verdict.mutant: verdict for verdict in known}
    print(f"{len(mutants)} mutants, {len(verdicts)} of them known from a former run", flush=True)

    def done(verdict: Verdict) -> None:
        verdicts[verdict.mutant] = verdict
        results.add(verdict)
        number, mutant = len(verdicts), verdict.mutant
        print(f"{number}/{len(mutants)} {verdict.result} {mutant.name} {verdict.by}", flush=True)

    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        rest = [mutant for mutant in mutants if mutant not in verdicts]
        if rest:
            Campaign(ROOT, Path(directory), options.copies).run(rest, done)
    return report(list(verdicts.values()), options.least)


def report(verdicts: list[Verdict], least: float) -> int:
    """Print the survivors, and the percentages of each package and of all. Return the status."""
    typed = sum(verdict.by == TYPES for verdict in verdicts)
    for verdict in verdicts:
        if verdict.result == SURVIVED:
            mutant = verdict.mutant
            print(f"\nsurvived: {mutant.name}\n  {mutant.path}:{mutant.line}")
            print("".join(f"  - {line}\n" for line in mutant.old.splitlines()), end="")
            print("".join(f"  + {line}\n" for line in mutant.new.splitlines()), end="")
    print()
    count: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for verdict in verdicts:
        for key in (Path(verdict.mutant.path).parts[1], "all"):
            count[key] += 1
            survived[key] += verdict.result == SURVIVED
    for key, total in count.items():
        found = total - survived[key]
        print(f"{key}: {found} of {total} found ({100 * found / total:.1f} %)")
    print(f"{typed} of these by their types alone")
    return int(100 * (count["all"] - survived["all"]) < least * count["all"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
