"""The columns of ``kubectl get``."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from yurtlab.api.negotiation import Form
from yurtlab.api.resources import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from yurtlab.api.responses import partial_metadata, table

NOW = 1_750_000_000
BEFORE = "2025-06-15T15:04:40Z"
"""Two minutes before."""

DAY = 86400


def cells(kind, **one):
    """Return the cells of an object by column."""
    one.setdefault("metadata", {"name": "x", "creationTimestamp": BEFORE})
    made = table(kind, [one], Form(), NOW)
    names = [column["name"] for column in made["columnDefinitions"]]
    return dict(zip(names, made["rows"][0]["cells"], strict=True))


class PodTests(SynchronousTestCase):
    """Pods."""

    def pod(self, *states, deleted=False, init=(), **status):
        """Return the cells of a pod with these container states, each a pair (ready, state)."""
        metadata = {"name": "x", "creationTimestamp": BEFORE}
        if deleted:
            metadata["deletionTimestamp"] = BEFORE
        spec = {"containers": [{"name": "c"}] * len(states), "initContainers": list(init)}
        status["containerStatuses"] = [
            {"ready": ready, "restartCount": count, "state": state}
            for ready, count, state in states
        ]
        return cells(PODS, metadata=metadata, spec=spec, status=status)

    def test_running(self):
        """A running pod shows its phase, ready containers, node and address."""
        shown = cells(
            PODS,
            spec={"containers": [{}, {}], "nodeName": "edge-1"},
            status={
                "phase": "Running",
                "podIP": "10.0.0.7",
                "containerStatuses": [{"ready": True, "restartCount": 0, "state": {"running": {}}}],
            },
        )
        self.assertEqual(
            {
                "Name": "x",
                "Ready": "1/2",
                "Status": "Running",
                "Restarts": "0",
                "Age": "2m",
                "IP": "10.0.0.7",
                "Node": "edge-1",
                "Nominated Node": "<none>",
                "Readiness Gates": "<none>",
            },
            shown,
        )

    def test_status(self):
        """The status is a container's reason, or else the reason or the phase of the pod."""
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        completed = {"terminated": {"reason": "Completed", "exitCode": 0}}
        for expected, shown in (
            ("Pending", self.pod(phase="Pending")),
            ("Evicted", self.pod(phase="Failed", reason="Evicted")),
            ("CrashLoopBackOff", self.pod((False, 3, waiting), phase="Running")),
            ("Completed", self.pod((False, 0, completed), phase="Succeeded")),
            ("ExitCode:3", self.pod((False, 0, {"terminated": {"exitCode": 3}}), phase="Failed")),
            ("Signal:9", self.pod((False, 0, {"terminated": {"signal": 9}}), phase="Failed")),
            ("Terminating", self.pod(phase="Running", deleted=True)),
            ("Succeeded", self.pod(phase="Succeeded", deleted=True)),
            ("Unknown", self.pod(phase="Running", reason="NodeLost", deleted=True)),
        ):
            self.assertEqual(expected, shown["Status"])

    def test_completed_beside_running(self):
        """A pod with a completed and a running container is running, or not ready."""
        states = (
            (False, 0, {"terminated": {"reason": "Completed"}}),
            (True, 0, {"running": {}}),
        )
        ready = [{"type": "Ready", "status": "True"}]
        self.assertEqual("Running", self.pod(*states, conditions=ready)["Status"])
        self.assertEqual("NotReady", self.pod(*states)["Status"])

    def test_restarts(self):
        """Restarts are counted over all containers, with the time of the last."""
        shown = cells(
            PODS,
            spec={},
            status={
                "containerStatuses": [
                    {"restartCount": 2, "lastState": {"terminated": {"finishedAt": BEFORE}}},
                    {"restartCount": 1},
                ]
            },
        )
        self.assertEqual("3 (2m ago)", shown["Restarts"])

    def test_initializing(self):
        """Until a pod is initialized, its status comes from the init containers."""
        done = {"state": {"terminated": {"exitCode": 0}}}
        for expected, second in (
            ("Init:1/2", {"state": {"running": {}}}),
            ("Init:1/2", {"state": {"waiting": {"reason": "PodInitializing"}}}),
            ("Init:Backoff", {"state": {"waiting": {"reason": "Backoff"}}}),
            ("Init:Error", {"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}),
            ("Init:ExitCode:1", {"state": {"terminated": {"exitCode": 1}}}),
        ):
            statuses = [done, second]
            shown = self.pod(phase="Pending", init=[{}, {}], initContainerStatuses=statuses)
            self.assertEqual(expected, shown["Status"])
        shown = self.pod(phase="Running", init=[{}], initContainerStatuses=[done])
        self.assertEqual("Running", shown["Status"])

    def test_readiness_gates(self):
        """Readiness gates are counted."""
        shown = cells(
            PODS,
            spec={"readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
            status={"conditions": [{"type": "a", "status": "True"}]},
        )
        self.assertEqual("1/2", shown["Readiness Gates"])


class KindTests(SynchronousTestCase):
    """Other kinds."""

    def test_nodes(self):
        """A node shows whether it is ready and takes pods, its roles and addresses."""
        labels = {"node-role.kubernetes.io/edge": "", "kubernetes.io/role": "gateway"}
        shown = cells(
            NODES,
            metadata={"name": "edge-1", "creationTimestamp": BEFORE, "labels": labels},
            spec={"unschedulable": True},
            status={
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1.33.0"},
            },
        )
        self.assertEqual(
            {
                "Name": "edge-1",
                "Status": "Ready,SchedulingDisabled",
                "Roles": "edge,gateway",
                "Age": "2m",
                "Version": "v1.33.0",
                "Internal-IP": "10.0.0.1",
                "External-IP": "<none>",
                "OS-Image": "<unknown>",
                "Kernel-Version": "<unknown>",
                "Container-Runtime": "<unknown>",
            },
            shown,
        )
        self.assertEqual("Unknown", cells(NODES)["Status"])
        not_ready = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
        self.assertEqual("NotReady", cells(NODES, status=not_ready)["Status"])
        self.assertEqual("<none>", cells(NODES)["Roles"])

    def test_small_kinds(self):
        """Namespaces, ConfigMaps, Secrets, ServiceAccounts and Leases show their few columns."""
        self.assertEqual("Active", cells(NAMESPACES, status={"phase": "Active"})["Status"])
        self.assertEqual(
            3, cells(CONFIG_MAPS, data={"a": "", "b": ""}, binaryData={"c": ""})["Data"]
        )
        secret = cells(SECRETS, type="Opaque", data={"a": ""})
        self.assertEqual(("Opaque", 1), (secret["Type"], secret["Data"]))
        self.assertEqual(0, cells(SERVICE_ACCOUNTS)["Secrets"])
        self.assertEqual("me", cells(LEASES, spec={"holderIdentity": "me"})["Holder"])

    def test_events(self):
        """An event shows its times, its object and its source."""
        event = {
            "lastTimestamp": BEFORE,
            "firstTimestamp": "2025-06-15T14:06:40Z",
            "type": "Normal",
            "reason": "Started",
            "message": " Started container \n",
            "count": 4,
            "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec"},
            "source": {"component": "kubelet", "host": "edge-1"},
        }
        self.assertEqual(
            {
                "Last Seen": "2m",
                "Type": "Normal",
                "Reason": "Started",
                "Object": "pod/web",
                "Subobject": "spec",
                "Source": "kubelet, edge-1",
                "Message": "Started container",
                "First Seen": "60m",
                "Count": 4,
                "Name": "x",
            },
            cells(EVENTS, **event),
        )
        new = cells(
            EVENTS,
            eventTime="2025-06-15T15:04:40.000000Z",
            involvedObject={"kind": "Pod"},
            reportingComponent="scheduler",
            reportingInstance="cloud-1",
        )
        self.assertEqual(("2m", "pod", 1), (new["Last Seen"], new["Object"], new["Count"]))
        self.assertEqual(("2m", "scheduler, cloud-1"), (new["First Seen"], new["Source"]))
        self.assertEqual("<unknown>", cells(EVENTS)["Last Seen"])

    def test_services(self):
        """A service shows its addresses, ports and selector."""
        shown = cells(
            SERVICES,
            spec={
                "type": "NodePort",
                "clusterIP": "10.1.0.1",
                "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}],
                "selector": {"b": "2", "a": "1"},
            },
        )
        self.assertEqual("80:30080/TCP,53/UDP", shown["Port(s)"])
        self.assertEqual("a=1,b=2", shown["Selector"])
        self.assertEqual(("10.1.0.1", "<none>"), (shown["Cluster-IP"], shown["External-IP"]))
        balanced = cells(SERVICES, spec={"type": "LoadBalancer"})
        self.assertEqual(("<pending>", "<none>"), (balanced["External-IP"], balanced["Port(s)"]))
        ingress = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}
        spec = {"type": "LoadBalancer", "externalIPs": ["4.3.2.1"]}
        balanced = cells(SERVICES, spec=spec, status=ingress)
        self.assertEqual("1.2.3.4,4.3.2.1", balanced["External-IP"])
        named = {"type": "ExternalName", "externalName": "example.com"}
        self.assertEqual("example.com", cells(SERVICES, spec=named)["External-IP"])


class SliceTests(SynchronousTestCase):
    """EndpointSlices."""

    def test_slices(self):
        """Three ports and three addresses are shown, and the number of further ones."""
        for count, more in ((3, ""), (4, " + 1 more...")):
            shown = cells(
                ENDPOINT_SLICES,
                addressType="IPv6",
                ports=[{"port": number} for number in range(1, count + 1)],
                endpoints=[{"addresses": [f"::{number}"]} for number in range(1, count + 1)],
            )
            self.assertEqual(
                ("IPv6", f"1,2,3{more}", f"::1,::2,::3{more}"),
                (shown["AddressType"], shown["Ports"], shown["Endpoints"]),
            )


class TableTests(SynchronousTestCase):
    """Tables."""

    one = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "x"}, "spec": {}}

    def rows(self, **options):
        """Return the rows of a table with one pod."""
        return table(PODS, [self.one], Form(**options), NOW)["rows"]

    def test_columns(self):
        """Columns have descriptions; those with a priority are for -o wide."""
        made = table(PODS, [], Form(), NOW, metadata={"resourceVersion": "7"})
        self.assertEqual(("Table", "meta.k8s.io/v1"), (made["kind"], made["apiVersion"]))
        self.assertEqual({"resourceVersion": "7"}, made["metadata"])
        definition = made["columnDefinitions"][0]
        self.assertEqual(
            ("Name", "string", "name", 0),
            tuple(definition[key] for key in ("name", "type", "format", "priority")),
        )
        priorities = [column["priority"] for column in made["columnDefinitions"]]
        self.assertEqual([0, 0, 0, 0, 0, 1, 1, 1, 1], priorities)

    def test_what_comes_along(self):
        """A row includes the metadata of its object, the whole object or nothing."""
        partial = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1beta1",
            "metadata": {"name": "x"},
        }
        self.assertEqual(partial, self.rows(version="v1beta1")[0]["object"])
        self.assertEqual(self.one, self.rows(include="Object")[0]["object"])
        self.assertNotIn("object", self.rows(include="None")[0])
        self.assertEqual(partial, partial_metadata(self.one, "v1beta1"))

    def test_without_headers(self):
        """Later tables of a watch have rows only."""
        self.assertIsNone(table(PODS, [], Form(), NOW, headers=False)["columnDefinitions"])
