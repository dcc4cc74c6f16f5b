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
from yurttunnel.hub.filters.interfaces import FilterMaker, IFilter, IFilters
from yurttunnel.hub.filters.watches import INTERVAL, SETTLE, SPREAD, TrackedWatches
from yurttunnel.hub.request.callers import PAGES
from yurttunnel.hub.request.requests import ApiRequest, Caller, ListOptions, ResourceType
from yurttunnel.kube.resources import CONFIG_MAPS

LIST = ApiRequest("list", "/api/v1/services", ResourceType("", "v1", "services"))
WATCH = ApiRequest(
    "watch", "/api/v1/services", LIST.resource, options=ListOptions(resource_version="7")
)


@implementer(IFilter)
class Appends:
    """Appends its word to an object; hides it, or raises an exception, if the object says so."""

    hides = False

    def __init__(self, word, changed):
        self.word = word
        self.changed = changed

    def applies(self, request):
        """Apply to Services."""
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
    """The selection of filters."""

    def makers(self, *names):
        """Create makers."""
        return [FilterMaker(name, (), Appends) for name in names]

    def chosen(self, names, disabled=()):
        """Return the names of the selected filters."""
        return [maker.name for maker in chosen_makers(self.makers(*names), disabled)]

    def test_order(self):
        """Filters of this package come first, in the documented order, then others by name."""
        names = ["zoo", "servicetopology", "abc", "masterservice", "discardcloudservice"]
        expected = ["discardcloudservice", "masterservice", "servicetopology", "abc", "zoo"]
        self.assertEqual(expected, self.chosen(names))
        self.assertEqual(expected, self.chosen(reversed(names)))

    def test_disabled(self):
        """Filters can be disabled by name, or all at once."""
        self.assertEqual(["b"], self.chosen(["a", "b", "c"], ["a", "c"]))
        self.assertEqual([], self.chosen(["a", "b"], ["*"]))

    def test_unknown(self):
        """An unknown name cannot be disabled."""
        with self.assertRaises(BadFilter) as caught:
            self.chosen(["a", "b"], ["masterservce"])
        self.assertEqual(
            "no filter is called 'masterservce'; installed are: a, b", str(caught.exception)
        )

    def test_twice(self):
        """Two filters with the same name are an error."""
        self.assertRaises(BadFilter, self.chosen, ["a", "a"])

    def test_installed(self):
        """All of upstream's filters are installed."""
        self.assertEqual(7, len(chosen_makers(installed_makers(), [])))


class FiltersTests(SynchronousTestCase):
    """The filters for a request."""

    def setUp(self):
        """Create three filters for different clients."""
        self.clock = Clock()
        self.site = Site()
        self.made = {}
        self.watches = TrackedWatches(self.clock)
        self.watches.startService()
        self.addCleanup(self.watches.stopService)
        names = {"a": ("kubelet", "kube-proxy"), "b": ("kubelet",), "c": ()}
        makers = [FilterMaker(name, of, self.maker(name)) for name, of in names.items()]
        configuration = HubConfiguration(self.site.informers, "kube-system", names)
        self.filters = Filters(makers, self.site.site, configuration, self.watches)

    def maker(self, word):
        """Return the maker of a filter."""

        def make(site, changed):
            self.made[word] = Appends(word, changed)
            return self.made[word]

        return make

    def configure(self, **data):
        """Configure additional clients of filters."""
        self.site.informers.put(CONFIG_MAPS, hub_config_map(data))

    def seen(self, component, request=LIST):
        """Return the filters that change an object."""
        change = self.filters.change_for(Caller(component), request)
        return None if change is None else change.make({})["seen"]

    def test_interface(self):
        """The class provides IFilters."""
        verifyObject(IFilters, self.filters)

    def test_components(self):
        """A client has its own filters, in order, or none."""
        self.assertEqual(["a", "b"], self.seen("kubelet"))
        self.assertEqual(["a"], self.seen("kube-proxy"))
        self.assertIsNone(self.seen("coredns"))

    def test_requests(self):
        """Requests to which no filter applies are not filtered."""
        pods = ApiRequest("list", "/api/v1/pods", ResourceType("", "v1", "pods"))
        self.assertIsNone(self.seen("kubelet", pods))

    def test_made_up(self):
        """Long requests take little memory."""
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for number in range(100):
            text = f"app={number}".ljust(100_000, "x")
            for options in (ListOptions(label_selector=text), ListOptions(field_selector=text)):
                self.seen("kubelet", replace(LIST, options=options))
                self.filters.track(Caller("kubelet", text), replace(WATCH, options=options), id)()
            self.seen("kubelet", replace(LIST, path=text))
        self.assertLess(tracemalloc.get_traced_memory()[0], 1_000_000)

    def test_configured(self):
        """Clients can be added by name or all at once, with immediate effect."""
        self.configure(c="kube-proxy", b="*")
        self.assertEqual(["a", "b", "c"], self.seen("kube-proxy"))
        self.assertEqual(["b"], self.seen("coredns"))

    def test_nobody(self):
        """The hub itself and clients without a User-Agent are not filtered."""
        self.configure(c="*, yurthub")
        for component in ("yurthub", PAGES, ""):
            self.assertIsNone(self.seen(component), component)

    def test_hidden(self):
        """Later filters do not get hidden objects."""
        change = self.filters.change_for(Caller("kubelet"), LIST)
        obj = {"hidden by": "a"}
        self.assertIsNone(change.make(obj))
        self.assertNotIn("seen", obj)

    def test_defect(self):
        """A filter's exception does not affect other filters; it is logged once, and counted."""
        change = self.filters.change_for(Caller("kubelet"), LIST)
        for _ in range(3):
            self.assertEqual(["b"], change.make({"too much for": "a"})["seen"])
        self.assertEqual({"a": 3, "b": 0, "c": 0}, self.filters.failures)
        [failure] = self.flushLoggedErrors(RuntimeError)
        self.assertEqual("it was too much", failure.getErrorMessage())

    def test_defect_of_one_that_hides(self):
        """If it hides objects, the object is hidden, because it may be one to hide."""
        Appends.hides = True
        self.addCleanup(setattr, Appends, "hides", False)
        self.setUp()
        change = self.filters.change_for(Caller("kubelet"), LIST)
        self.assertTrue(change.hides)
        self.assertIsNone(change.make({"too much for": "a"}))
        self.flushLoggedErrors(RuntimeError)

    def test_defect_before_the_answer(self):
        """A filter that cannot decide affects no request; it is logged once, and counted."""
        self.patch(Appends, "applies", lambda made, request: request.resource.group == "")
        self.setUp()
        version = ApiRequest("get", "/version")
        for component in ("kubelet", "coredns"):
            self.assertIsNone(self.seen(component, version))
        self.assertEqual({"a": 1, "b": 1, "c": 1}, self.filters.failures)
        self.assertEqual(3, len(self.flushLoggedErrors(AttributeError)))
        self.assertEqual(["a", "b"], self.seen("kubelet"))

    def test_defect_of_one_that_hides_before_the_answer(self):
        """If it hides objects, it applies to all reads, because they may have objects to hide."""
        self.patch(Appends, "hides", True)
        self.patch(Appends, "applies", lambda made, request: request.no_such_thing)
        self.setUp()
        self.assertEqual(["a", "b"], self.seen("kubelet"))
        self.assertIsNone(self.seen("kubelet", replace(LIST, verb="create")))
        self.assertIsNone(self.seen("kubelet", ApiRequest("get", "/version")))
        self.flushLoggedErrors(AttributeError)

    def track(self, component, ended):
        """Begin a watch after a list."""
        caller = Caller(component)
        self.filters.change_for(caller, LIST)
        self.filters.track(caller, WATCH, lambda: ended.append(component))

    def settle(self):
        """Advance to the next round."""
        self.clock.pump([INTERVAL + SETTLE, SPREAD])

    def test_changed_mind(self):
        """A filter whose results change ends the watches that it applies to."""
        ended = []
        self.track("kubelet", ended)
        self.track("kube-proxy", ended)
        self.track("coredns", ended)
        self.made["b"].changed()
        self.settle()
        self.assertEqual(["kubelet"], ended)
        self.made["a"].changed()
        self.settle()
        self.assertEqual(["kubelet", "kube-proxy"], ended)

    def test_begun_again(self):
        """A watch that was aborted and resumed, after a list without filters, is ended as well."""
        ended = []
        self.filters.change_for(Caller("coredns"), LIST)
        self.configure(c="coredns")
        self.filters.track(Caller("coredns"), WATCH, lambda: ended.append("w"))
        self.settle()
        self.assertEqual(["w"], ended)

    def test_unfollowed(self):
        """A watch to which no filter applies is not followed."""
        pods = ApiRequest("watch", "/api/v1/pods", ResourceType("", "v1", "pods"))
        ended = []
        self.filters.track(Caller("kubelet"), pods, lambda: ended.append("w"))()
        self.made["a"].changed()
        self.settle()
        self.assertEqual([], ended)

    def test_changed_configuration(self):
        """A watch ends if a filter begins or ceases to apply."""
        ended = []
        self.track("coredns", ended)
        self.configure(c="coredns")
        self.settle()
        self.assertEqual(["coredns"], ended)
        self.track("coredns", ended)
        self.configure(c="", b="ingress")
        self.settle()
        self.assertEqual(["coredns", "coredns"], ended)
