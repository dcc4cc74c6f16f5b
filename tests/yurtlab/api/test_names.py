"""Valid names, labels and annotations (k8s.io/apimachinery pkg/util/validation)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.api.names import (
    dns_label,
    dns_subdomain,
    service_name,
    validate_labels,
    validate_metadata,
)


class NameTests(SynchronousTestCase):
    """Names of the maximum length, and of one character more."""

    def test_lengths(self) -> None:
        """A label has at most 63 characters, a subdomain at most 253."""
        for rule, longest in ((dns_label, 63), (dns_subdomain, 253), (service_name, 63)):
            self.assertEqual([], rule("a" * longest))
            told = f"must be no more than {longest} characters"
            self.assertEqual([told], rule("a" * (longest + 1)))

    def test_characters(self) -> None:
        """Names have valid first, last and inner characters."""
        for text, label, subdomain, service in (
            ("a", True, True, True),
            ("a-b", True, True, True),
            ("1a", True, True, False),
            ("a.b", False, True, False),
            ("a..b", False, False, False),
            ("-a", False, False, False),
            ("a-", False, False, False),
            ("A", False, False, False),
            ("a_b", False, False, False),
            ("", False, False, False),
        ):
            found = tuple(not rule(text) for rule in (dns_label, dns_subdomain, service_name))
            self.assertEqual((label, subdomain, service), found, text)

    def test_metadata(self) -> None:
        """Metadata have a name, or a prefix of a generated one, which may end with a dash or a
        dot.
        """
        for metadata, wrong in (
            ({"name": "a"}, []),
            ({"generateName": "a-"}, []),
            ({"generateName": "a."}, []),
            ({"generateName": "-"}, ["metadata.generateName"]),
            ({"generateName": "A-"}, ["metadata.generateName"]),
            ({"name": "A", "generateName": "B"}, ["metadata.name"]),
            ({}, ["metadata.name"]),
            ({"name": "a", "labels": {"b c": "d"}}, ["metadata.labels"]),
        ):
            causes = validate_metadata(metadata, dns_subdomain)
            self.assertEqual(wrong, [cause.field for cause in causes], metadata)

    def test_labels(self) -> None:
        """Keys have a name of up to 63 characters and a prefix of up to 253, values up to 63
        characters."""
        for key, value, wrong in (
            ("a", "", 0),
            ("a", "v" * 63, 0),
            ("a", "v" * 64, 1),
            ("a", "-", 1),
            ("k" * 63, "v", 0),
            ("k" * 64, "v", 1),
            ("A_b.c-d", "A_b.c-d", 0),
            ("p" * 253 + "/k", "v", 0),
            ("p" * 254 + "/k", "v", 1),
            ("P/k", "v", 1),
            ("/k", "v", 1),
            ("p/", "v", 1),
            ("-k", "v", 1),
        ):
            self.assertEqual(wrong, len(validate_labels({"labels": {key: value}})), (key, value))
        self.assertEqual([], validate_labels({"annotations": {"Example.com/A": "b c"}}))
        self.assertEqual(1, len(validate_labels({"annotations": {"a b": ""}})))
