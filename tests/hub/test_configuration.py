"""The ConfigMap ``yurt-hub-cfg``."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.cluster.fakes import FakeInformers
from tests.logged import Logged
from yurttunnel.hub.configuration import BadComponents, HubConfiguration, parse_components
from yurttunnel.kube.resources import CONFIG_MAPS


def hub_config_map(data, namespace="kube-system"):
    """Create the ConfigMap."""
    return {"metadata": {"namespace": namespace, "name": "yurt-hub-cfg"}, "data": data}


class ParsingTests(SynchronousTestCase):
    """Parsing of a list of components."""

    def test_list(self):
        """It has comma-separated names in any case; empty items are ignored."""
        self.assertEqual({"ingress", "my-op"}, parse_components(" ingress, My-Op ,,"))
        self.assertEqual({"*"}, parse_components("*"))
        self.assertEqual(set(), parse_components(""))

    def test_malformed(self):
        """Invalid User-Agent products are reported, truncated."""
        for value in ("a b", "ok,a/1.0", "a;b", "\n[]", "ü", "a" * 500 + " b", 7, None, ["a"]):
            with self.assertRaises(BadComponents) as caught:
                parse_components(value)
            self.assertLess(len(str(caught.exception)), 120)


class FollowingTests(SynchronousTestCase):
    """The configuration while it changes."""

    def setUp(self):
        """Start in a cluster without the ConfigMap."""
        self.lines = Logged(self, "yurttunnel.hub.configuration")
        self.changes = 0
        self.informers = FakeInformers()
        self.configuration = HubConfiguration(self.informers, "kube-system", ["masterservice"])
        self.configuration.on_changed.append(self.count)

    def count(self):
        """Count a change."""
        self.changes += 1

    def put(self, data, **more):
        """Create or change the ConfigMap."""
        self.informers.put(CONFIG_MAPS, hub_config_map(data, **more))

    def test_live(self):
        """Each key has the current value of the ConfigMap, and none when that is deleted."""
        self.put({"cache_agents": "a", "masterservice": "b,c"})
        self.assertEqual({"a"}, self.configuration.components("cache_agents"))
        self.assertEqual({"b", "c"}, self.configuration.components("masterservice"))
        self.put({"cache_agents": "d"})
        self.assertEqual({"d"}, self.configuration.components("cache_agents"))
        self.assertEqual(set(), self.configuration.components("masterservice"))
        self.informers.delete(CONFIG_MAPS, "yurt-hub-cfg", "kube-system")
        self.assertEqual(set(), self.configuration.components("cache_agents"))
        self.assertEqual(3, self.changes)

    def test_no_change(self):
        """Callbacks are not called for equivalent values, nor for other keys."""
        self.put({"cache_agents": "a,b"})
        self.put({"cache_agents": "b, A", "notes": "what a filter is: see the wiki"})
        self.assertEqual((1, []), (self.changes, self.lines))

    def test_others(self):
        """ConfigMaps of other namespaces are not watched."""
        self.put({"cache_agents": "a"}, namespace="default")
        self.assertEqual(set(), self.configuration.components("cache_agents"))

    def test_malformed_value(self):
        """An invalid value is logged once, keeps the previous one, and affects no other key."""
        self.put({"cache_agents": "a"})
        self.put({"cache_agents": "a b", "masterservice": "c"})
        self.put({"cache_agents": "a b", "masterservice": "d"})
        self.assertEqual({"a"}, self.configuration.components("cache_agents"))
        self.assertEqual({"d"}, self.configuration.components("masterservice"))
        [line] = self.lines
        self.assertIn("ConfigMap kube-system/yurt-hub-cfg, cache_agents: 'a b' is no", line)

    def test_malformed_object(self):
        """A ConfigMap without data, or with data that is not an object, configures nothing."""
        for data in (None, [], "cache_agents"):
            self.put(data)
            self.assertEqual(set(), self.configuration.components("cache_agents"))
