"""The kinds that the API serves, as ``kubectl api-resources`` and ``kubectl get`` show them."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.api.resource import ALL_VERBS
from yurtlab.api.resources import RESOURCES
from yurtlab.api.tables import table

# Sections, each a line that says what it has, and then a line for each kind.
SECTIONS = {
    section.partition("]")[0].lstrip("["): section.partition("\n")[2].rstrip("\n")
    for section in Path(__file__).with_name("kinds.txt").read_text().split("\n\n")
}


def lines(of_each):
    """Make a line of each kind of which there is something to tell."""
    made = [(kind.plural, of_each(kind)) for kind in RESOURCES]
    return "\n".join(f"{plural}: {said}" for plural, said in made if said)


def of_kind(kind):
    """Return what discovery has."""
    verbs = "all verbs" if kind.verbs == ALL_VERBS else ",".join(kind.verbs)
    words = [
        ",".join((kind.singular, *kind.short_names)),
        kind.api_version,
        "namespaced" if kind.namespaced else "of the cluster",
        kind.kind,
        verbs,
        *kind.categories,
        "generations" if kind.counts_generations else "",
        f"at most {kind.keep_at_most}" if kind.keep_at_most else "",
    ]
    return " | ".join(word for word in words if word)


def below(kind):
    """Tell of the subresources."""
    return "; ".join(
        f"{one.name} {one.kind} {''.join(verb[0] for verb in one.verbs)}"
        for one in kind.subresources
    )


def selectable(kind):
    """Tell of the fields."""
    return " ".join(
        one.name + (f"<-{one.path}" if one.path else "") + (f"={one.default}" * bool(one.default))
        for one in kind.selectable_fields
    )


def head(kind):
    """Tell of the columns."""
    columns = table(kind, [], 0)["columnDefinitions"]
    shown = [
        one["name"] + {"string": "", "integer": " #"}[one["type"]] + (" *" * bool(one["format"]))
        for one in columns
    ]
    return ", ".join(
        f"({name})" if one["priority"] else name for name, one in zip(shown, columns, strict=True)
    )


def empty(kind):
    """Return what is shown of an object that has just been made and has nothing else."""
    metadata = {"name": "x", "creationTimestamp": "1970-01-01T00:00:00Z"}
    (row,) = table(kind, [{"metadata": metadata}], 60)["rows"]
    return ", ".join(map(repr, row["cells"]))


class KindTests(SynchronousTestCase):
    """All kinds, one a line."""

    maxDiff = None

    def test_kinds(self):
        """Names, groups, scopes, verbs and categories are those of Kubernetes."""
        self.assertEqual(SECTIONS["kinds"], lines(of_kind))

    def test_subresources(self):
        """What is served below objects, and the kind of what goes in and out."""
        self.assertEqual(SECTIONS["subresources"], lines(below))

    def test_selectable_fields(self):
        """Field selectors may name what they may name in Kubernetes."""
        self.assertEqual(SECTIONS["fields"], lines(selectable))

    def test_columns(self):
        """Columns have names, types and an order; some are only for -o wide; * is the name."""
        self.assertEqual(SECTIONS["heads"], lines(head))

    def test_empty(self):
        """An object that has nothing but metadata is shown, with what stands for nothing."""
        self.assertEqual(SECTIONS["empty"], lines(empty))
