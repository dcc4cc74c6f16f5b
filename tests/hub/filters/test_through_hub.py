"""Filters in a hub, between kube-proxy and a fake API."""

from __future__ import annotations

import json

from tests.hub.filters.site import Site
from tests.hub.forwarding.world import JSON, KUBELET, World, chunk, event
from tests.hub.test_configuration import hub_config_map
from yurttunnel.hub.configuration import HubConfiguration
from yurttunnel.hub.filters.chain import ORDER, Filters, chosen_makers, installed_makers
from yurttunnel.hub.filters.watches import INTERVAL, SETTLE, SPREAD, TrackedWatches
from yurttunnel.kube.resources import CONFIG_MAPS

SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
PROXY = b"User-Agent: kube-proxy/v1.34.0 (linux/amd64)"
ENVOY = b"User-Agent: envoy/1"
PROTOBUF = b"Accept: application/vnd.kubernetes.protobuf,application/json"
TYPE = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def endpoint_slice(*nodes, version="5"):
    """Create the slice of the Service ``web``."""
    metadata = {
        "name": "web-abcde",
        "namespace": "default",
        "resourceVersion": version,
        "labels": {"kubernetes.io/service-name": "web"},
    }
    endpoints = [{"addresses": [f"of {each}"], "nodeName": each} for each in nodes]
    return {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints}


class ThroughHubTests(World):
    """A Service whose traffic stays on the node."""

    def make_filters(self):
        """Create all filters, as the command does."""
        self.site = Site()
        self.watches = TrackedWatches(self.clock)
        self.watches.startService()
        configuration = HubConfiguration(self.site.informers, "kube-system", ORDER)
        makers = chosen_makers(installed_makers(), [])
        return Filters(makers, self.site.site, configuration, self.watches)

    def end(self):
        """Stop everything."""
        self.watches.stopService()
        super().end()

    def configure(self, clients):
        """Configure an additional client of the filter."""
        data = {"servicetopology": clients}
        self.site.informers.put(CONFIG_MAPS, hub_config_map(data))

    def say(self, keys):
        """Set the annotation of the Service."""
        self.site.put_service("web", **{"openyurt.io/topologyKeys": keys})

    def list(self, agent=PROXY):
        """List the slices, of which the API has one; return the nodes whose endpoints are in it."""
        self.client = self.server.connect()
        self.send_request(SLICES, agent, PROTOBUF)
        found = {"kind": "EndpointSliceList", "apiVersion": TYPE["apiVersion"]}
        metadata = {"resourceVersion": "9"}
        items = [endpoint_slice("edge-1", "edge-2")]
        self.respond_json({**found, "metadata": metadata, "items": items})
        ((status, body),) = self.client_responses()
        self.assertEqual(200, status)
        answer = json.loads(body)
        self.assertEqual({**found, "metadata": metadata}, {**found, "metadata": answer["metadata"]})
        return [each["nodeName"] for item in answer["items"] for each in item["endpoints"]]

    def watch(self, agent=PROXY):
        """Begin a watch from there; return the client's connection."""
        self.client = self.server.connect()
        self.send_request(f"{SLICES}?watch=1&resourceVersion=9", agent, PROTOBUF)
        self.respond(HEAD)
        return self.client

    def events(self, client):
        """Return the events of a watch that has ended: types and objects."""
        self.client = client
        ((_, body),) = self.client_responses()
        return [(each["type"], each["object"]) for each in map(json.loads, body.splitlines())]

    def settle_filters(self):
        """Advance the clock past a round, and one more second."""
        self.pass_time(SETTLE + SPREAD + 1)

    def test_requested_in_json(self):
        """JSON is requested from the API, but only if a filter applies."""
        self.list()
        self.assertIn("Accept: application/json\r\n", self.received_request())
        self.list(ENVOY)
        self.assertIn("Accept: application/vnd.kubernetes.protobuf,", self.received_request())

    def test_cached_unfiltered(self):
        """The client gets the endpoints on the node; the cache has the unfiltered object."""
        self.say("kubernetes.io/hostname")
        self.configure("kubelet")
        self.assertEqual(["edge-1"], self.list(KUBELET))
        self.assertEqual(["edge-1", "edge-2"], self.list(ENVOY))
        slices = self.collection("endpointslices", group="discovery.k8s.io")
        kept = self.successResultOf(self.cache.get(slices, "default", "web-abcde"))
        self.assertEqual(endpoint_slice("edge-1", "edge-2"), json.loads(kept.item.body))

    def test_annotation(self):
        """After a change of the annotation clients list again, and get the new result."""
        self.say("kubernetes.io/hostname")
        self.assertEqual(["edge-1"], self.list())
        client = self.watch()
        changed = {**TYPE, **endpoint_slice("edge-2", version="10")}
        self.respond(chunk(event("MODIFIED", changed)))
        self.say("")
        self.settle_filters()
        (first, seen), (last, status_object) = self.events(client)
        self.assertEqual(("MODIFIED", [], "10"), (first, seen["endpoints"], version(seen)))
        self.assertEqual(("ERROR", 410), (last, status_object["code"]))
        self.assertEqual(["edge-1", "edge-2"], self.list())
        client = self.watch()
        self.pass_time(INTERVAL + SPREAD)
        self.assertTrue(client.connected)
        self.assertNotIn(b"410", client.sent)

    def test_reachability(self):
        """Once pods can reach the hub, the kubelet lists again, and gets the hub as the API."""
        self.site.reach.update(False)
        services = "/api/v1/services?fieldSelector=metadata.name%3Dkubernetes"
        kubernetes = {
            "metadata": {"namespace": "default", "name": "kubernetes", "resourceVersion": "5"},
            "spec": {"clusterIP": "10.96.0.1"},
        }

        def addresses():
            self.client = self.server.connect()
            self.send_request(services, KUBELET, JSON)
            found = {"kind": "ServiceList", "apiVersion": "v1"}
            metadata = {"resourceVersion": "9"}
            self.respond_json({**found, "metadata": metadata, "items": [kubernetes]})
            ((_, body),) = self.client_responses()
            return [item["spec"]["clusterIP"] for item in json.loads(body)["items"]]

        self.assertEqual(["10.96.0.1"], addresses())
        self.client = client = self.server.connect()
        self.send_request(f"{services}&watch=1&resourceVersion=9", KUBELET, JSON)
        self.respond(HEAD)
        self.site.reach.update(True)
        self.settle_filters()
        [(last, status_object)] = self.events(client)
        self.assertEqual(("ERROR", 410), (last, status_object["code"]))
        self.assertEqual(["169.254.2.1"], addresses())

    def test_configuration(self):
        """If a filter begins to apply, the watch is aborted, and rejected when resumed."""
        self.say("kubernetes.io/hostname")
        self.list(ENVOY)
        client = self.watch(ENVOY)
        self.configure("envoy")
        self.settle_filters()
        self.assertTrue(client.aborted)
        client = self.watch(ENVOY)
        self.pass_time(INTERVAL + SPREAD)
        [(last, status_object)] = self.events(client)
        self.assertEqual(("ERROR", 410), (last, status_object["code"]))
        self.assertEqual(["edge-1"], self.list(ENVOY))

    def test_no_json(self):
        """A client that does not accept JSON gets 406."""
        self.send_request(SLICES, PROXY, b"Accept: application/vnd.kubernetes.protobuf")
        ((status, body),) = self.client_responses()
        self.assertEqual(406, status)
        self.assertIn(b"application/json", body)


def version(obj):
    """Return the version of an object."""
    return obj["metadata"]["resourceVersion"]
