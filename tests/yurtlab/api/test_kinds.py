"""The kinds that the API serves, as ``kubectl api-resources`` and ``kubectl get`` show them."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.api.negotiation import Form
from yurtlab.api.resources import ALL_VERBS, RESOURCES
from yurtlab.api.responses import table


def lines(kinds, of_each):
    """Return a line for each kind that has something to describe."""
    made = [(kind.plural, of_each(kind)) for kind in kinds]
    return "\n".join(f"{plural}: {said}" for plural, said in made if said)


def of_kind(kind):
    """Return the discovery entry."""
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
    """Return a line about the subresources."""
    return "; ".join(
        f"{one.name} {one.kind} {''.join(verb[0] for verb in one.verbs)}"
        for one in kind.subresources
    )


def selectable(kind):
    """Return a line about the selectable fields."""
    return " ".join(
        one.name + (f"<-{one.path}" if one.path else "") + (f"={one.default}" * bool(one.default))
        for one in kind.selectable_fields
    )


def head(kind):
    """Return a line about the columns."""
    columns = table(kind, [], Form(), 0)["columnDefinitions"]
    shown = [
        one["name"] + {"string": "", "integer": " #"}[one["type"]] + (" *" * bool(one["format"]))
        for one in columns
    ]
    return ", ".join(
        f"({name})" if one["priority"] else name for name, one in zip(shown, columns, strict=True)
    )


def empty(kind):
    """Return the cells of a new object that has only metadata."""
    metadata = {"name": "x", "creationTimestamp": "1970-01-01T00:00:00Z"}
    (row,) = table(kind, [{"metadata": metadata}], Form(), 60)["rows"]
    return ", ".join(map(repr, row["cells"]))


class KindContract:
    """All ``kinds``, one a line; ``written`` has sections, each after a heading line."""

    maxDiff = None

    def setUp(self):
        """Read the expected sections."""
        self.sections = {
            section.partition("]")[0].lstrip("["): section.partition("\n")[2].rstrip("\n")
            for section in self.written.read_text().split("\n\n")
        }

    def check(self, name, of_each):
        """Compare a section."""
        self.assertEqual(self.sections[name], lines(self.kinds, of_each))

    def test_kinds(self):
        """Names, groups, scopes, verbs and categories are those of Kubernetes."""
        self.check("kinds", of_kind)

    def test_subresources(self):
        """Subresources have the kinds and verbs of Kubernetes."""
        self.check("subresources", below)

    def test_selectable_fields(self):
        """Field selectors may use the same fields as in Kubernetes."""
        self.check("fields", selectable)

    def test_columns(self):
        """Columns have names, types and an order; some are only for -o wide; * is the name."""
        self.check("heads", head)

    def test_empty(self):
        """An object with metadata only is shown with placeholders."""
        self.check("empty", empty)


class KindTests(KindContract, SynchronousTestCase):
    """The kinds of the lab."""

    kinds = RESOURCES
    written = Path(__file__).with_name("kinds.txt")
