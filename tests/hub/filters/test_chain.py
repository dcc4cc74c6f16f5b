"""The filters of a hub."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from tests.hub.filters.site import Site
from tests.hub.test_configuration import hub_config_map
from yurttunnel.hub.configuration import HubConfiguration
from yurttunnel.hub.filters.chain import BadFilter, Filters, chosen_makers, installed_makers
from yurttunnel.hub.filters.interfaces import IFilter, IFilters
from yurttunnel.hub.filters.maker import FilterMaker
from yurttunnel.hub.filters.watches import INTERVAL, SETTLE, SPREAD, FollowedWatches
from yurttunnel.hub.request.callers import PAGES
from yurttunnel.hub.request.requests import ApiRequest, Caller, ListOptions, ResourceType
from yurttunnel.kube.resources import CONFIG_MAPS

LIST = ApiRequest("list", "/api/v1/services", ResourceType("", "v1", "services"))
WATCH = ApiRequest(
    "watch", "/api/v1/services", LIST.resource, options=ListOptions(resource_version="7")
)


@implementer(IFilter)
class Appends:
    """Appends its word to what an object has seen; hides it, or raises, when it says so."""

    hides = False

    def __init__(self, word, changed):
        self.word = word
        self.changed = changed

    def applies(self, request):
        """Be for Services."""
        return request.resource == LIST.resource

    def change(self, obj):
        """Append the word."""
        if obj.get("hidden by") == self.word:
            return None
        if obj.get("too much for") == self.word:
            raise RuntimeError("it was too much")
        obj.setdefault("seen", []).append(self.word)
        return obj


class ChosenTests(SynchronousTestCase):
    """Which filters there are."""

    def makers(self, *names):
        """Make makers."""
        return [FilterMaker(name, (), Appends) for name in names]

    def chosen(self, names, disabled=()):
        """Return the names of those that are chosen."""
        return [maker.name for maker in chosen_makers(self.makers(*names), disabled)]

    def test_order(self):
        """Ours come first, as documented, then others by their names."""
        names = ["zoo", "servicetopology", "abc", "masterservice", "discardcloudservice"]
        expected = ["discardcloudservice", "masterservice", "servicetopology", "abc", "zoo"]
        self.assertEqual(expected, self.chosen(names))
        self.assertEqual(expected, self.chosen(reversed(names)))

    def test_disabled(self):
        """Names can be disabled, and all."""
        self.assertEqual(["b"], self.chosen(["a", "b", "c"], ["a", "c"]))
        self.assertEqual([], self.chosen(["a", "b"], ["*"]))

    def test_unknown(self):
        """A name that nothing has is no filter that is disabled."""
        with self.assertRaises(BadFilter) as caught:
            self.chosen(["a", "b"], ["masterservce"])
        self.assertEqual(
            "no filter is called 'masterservce'; installed are: a, b", str(caught.exception)
        )

    def test_twice(self):
        """Two filters of one name are one too many."""
        self.assertRaises(BadFilter, self.chosen, ["a", "a"])

    def test_installed(self):
        """All of upstream's are installed."""
        self.assertEqual(7, len(chosen_makers(installed_makers(), [])))


class FiltersTests(SynchronousTestCase):
    """What a request goes through."""

    def setUp(self):
        """Make three for different clients."""
        self.clock = Clock()
        self.site = Site()
        self.made = {}
        self.watches = FollowedWatches(self.clock)
        self.watches.startService()
        self.addCleanup(self.watches.stopService)
        names = {"a": ("kubelet", "kube-proxy"), "b": ("kubelet",), "c": ()}
        makers = [FilterMaker(name, of, self.maker(name)) for name, of in names.items()]
        configuration = HubConfiguration(self.site.informers, "kube-system", names)
        self.filters = Filters(makers, self.site.site, configuration, self.watches)

    def maker(self, word):
        """Return what makes a filter."""

        def make(site, changed):
            self.made[word] = Appends(word, changed)
            return self.made[word]

        return make

    def configure(self, **data):
        """Set for whom else filters are."""
        self.site.informers.put(CONFIG_MAPS, hub_config_map(data))

    def seen(self, component, request=LIST):
        """Return through which filters an object goes."""
        change = self.filters.change_for(Caller(component), request)
        return None if change is None else change.make({})["seen"]

    def test_interface(self):
        """They are filters."""
        verifyObject(IFilters, self.filters)

    def test_components(self):
        """A client has its own, in their order, or none at all."""
        self.assertEqual(["a", "b"], self.seen("kubelet"))
        self.assertEqual(["a"], self.seen("kube-proxy"))
        self.assertIsNone(self.seen("coredns"))

    def test_requests(self):
        """Requests that no filter is for go through none."""
        pods = ApiRequest("list", "/api/v1/pods", ResourceType("", "v1", "pods"))
        self.assertIsNone(self.seen("kubelet", pods))

    def test_made_up(self):
        """However long what is asked for is, little of it is remembered."""
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for number in range(100):
            text = f"app={number}".ljust(100_000, "x")
            for options in (ListOptions(label_selector=text), ListOptions(field_selector=text)):
                self.seen("kubelet", replace(LIST, options=options))
                self.filters.follow(Caller("kubelet", text), replace(WATCH, options=options), id)()
            self.seen("kubelet", replace(LIST, path=text))
        self.assertLess(tracemalloc.get_traced_memory()[0], 1_000_000)

    def test_configured(self):
        """Others are added by name or all at once, from that moment on."""
        self.configure(c="kube-proxy", b="*")
        self.assertEqual(["a", "b", "c"], self.seen("kube-proxy"))
        self.assertEqual(["b"], self.seen("coredns"))

    def test_nobody(self):
        """The hub itself sees what the API says, and so does who does not say what it is."""
        self.configure(c="*, yurthub")
        for component in ("yurthub", PAGES, ""):
            self.assertIsNone(self.seen(component), component)

    def test_hidden(self):
        """What one hides the next ones do not see."""
        change = self.filters.change_for(Caller("kubelet"), LIST)
        obj = {"hidden by": "a"}
        self.assertIsNone(change.make(obj))
        self.assertNotIn("seen", obj)

    def test_defect(self):
        """One that raises harms nobody else's part; it is told once, and counted."""
        change = self.filters.change_for(Caller("kubelet"), LIST)
        for _ in range(3):
            self.assertEqual(["b"], change.make({"too much for": "a"})["seen"])
        self.assertEqual({"a": 3, "b": 0, "c": 0}, self.filters.failures)
        [failure] = self.flushLoggedErrors(RuntimeError)
        self.assertEqual("it was too much", failure.getErrorMessage())

    def test_defect_of_one_that_hides(self):
        """What it fails on is hidden: it may be what it was to hide."""
        Appends.hides = True
        self.addCleanup(setattr, Appends, "hides", False)
        self.setUp()
        change = self.filters.change_for(Caller("kubelet"), LIST)
        self.assertTrue(change.hides)
        self.assertIsNone(change.make({"too much for": "a"}))
        self.flushLoggedErrors(RuntimeError)

    def test_defect_before_the_answer(self):
        """One that cannot say what it is for harms no request; it is told once, and counted."""
        self.patch(Appends, "applies", lambda made, request: request.resource.group == "")
        self.setUp()
        version = ApiRequest("get", "/version")
        for component in ("kubelet", "coredns"):
            self.assertIsNone(self.seen(component, version))
        self.assertEqual({"a": 1, "b": 1, "c": 1}, self.filters.failures)
        self.assertEqual(3, len(self.flushLoggedErrors(AttributeError)))
        self.assertEqual(["a", "b"], self.seen("kubelet"))

    def test_defect_of_one_that_hides_before_the_answer(self):
        """It is for whatever is read: that may be what it was to hide."""
        self.patch(Appends, "hides", True)
        self.patch(Appends, "applies", lambda made, request: request.no_such_thing)
        self.setUp()
        self.assertEqual(["a", "b"], self.seen("kubelet"))
        self.assertIsNone(self.seen("kubelet", replace(LIST, verb="create")))
        self.assertIsNone(self.seen("kubelet", ApiRequest("get", "/version")))
        self.flushLoggedErrors(AttributeError)

    def follow(self, component, ended):
        """Begin a watch behind a list."""
        caller = Caller(component)
        self.filters.change_for(caller, LIST)
        self.filters.follow(caller, WATCH, lambda: ended.append(component))

    def settle(self):
        """Let a round pass."""
        self.clock.pump([INTERVAL + SETTLE, SPREAD])

    def test_changed_mind(self):
        """A filter that changes its mind ends the watches that go through it."""
        ended = []
        self.follow("kubelet", ended)
        self.follow("kube-proxy", ended)
        self.follow("coredns", ended)
        self.made["b"].changed()
        self.settle()
        self.assertEqual(["kubelet"], ended)
        self.made["a"].changed()
        self.settle()
        self.assertEqual(["kubelet", "kube-proxy"], ended)

    def test_begun_again(self):
        """A watch that was cut, and begun again, behind a list without filters is ended as well."""
        ended = []
        self.filters.change_for(Caller("coredns"), LIST)
        self.configure(c="coredns")
        self.filters.follow(Caller("coredns"), WATCH, lambda: ended.append("w"))
        self.settle()
        self.assertEqual(["w"], ended)

    def test_unfollowed(self):
        """A watch that no filter is for is not followed at all."""
        pods = ApiRequest("watch", "/api/v1/pods", ResourceType("", "v1", "pods"))
        ended = []
        self.filters.follow(Caller("kubelet"), pods, lambda: ended.append("w"))()
        self.made["a"].changed()
        self.settle()
        self.assertEqual([], ended)

    def test_changed_configuration(self):
        """A watch ends that would now go through a filter, or no longer does."""
        ended = []
        self.follow("coredns", ended)
        self.configure(c="coredns")
        self.settle()
        self.assertEqual(["coredns"], ended)
        self.follow("coredns", ended)
        self.configure(c="", b="ingress")
        self.settle()
        self.assertEqual(["coredns", "coredns"], ended)
