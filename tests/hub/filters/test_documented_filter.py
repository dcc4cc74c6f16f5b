"""The example of docs/filters.md, as a plugin file that Twisted loads."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from tests.documented_plugins import DOCS, install_example
from tests.hub.filters.site import Site
from yurttunnel.hub.filters.chain import ORDER, chosen_makers, installed_makers
from yurttunnel.hub.filters.interfaces import IFilter, IFilterMaker
from yurttunnel.hub.request.requests import ApiRequest, ResourceType


class DocumentedFilterTests(SynchronousTestCase):
    """The documentation is correct."""

    def test_example(self):
        """The example is loaded after the other filters, and hides labeled objects."""
        install_example(self, "filters.md")
        maker = chosen_makers(installed_makers(), [])[-1]
        self.assertEqual("cloudonly", maker.name)
        made = Site().make(maker)
        verifyObject(IFilterMaker, maker)
        verifyObject(IFilter, made)
        self.assertTrue(made.applies(ApiRequest("list", "/", ResourceType("", "v1", "services"))))
        self.assertFalse(made.applies(ApiRequest("list", "/", ResourceType("", "v1", "pods"))))
        labeled = {"metadata": {"labels": {"example.com/cloud-only": "true"}}}
        self.assertIsNone(made.change(labeled))
        self.assertEqual({"metadata": {}}, made.change({"metadata": {}}))

    def test_table(self):
        """The table has all filters of this package in order, with their clients."""
        rows = [
            [cell.strip() for cell in line.split("|")]
            for line in (DOCS / "filters.md").read_text("utf-8").splitlines()
            if line.startswith("| `")
        ]
        self.assertEqual(list(ORDER), [row[1].strip("`") for row in rows])
        components = {maker.name: maker.components for maker in installed_makers()}
        for _, name, clients, *_ in rows:
            self.assertEqual(components[name.strip("`")], set(clients.split(", ")))
