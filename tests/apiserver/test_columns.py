"""The columns of kubectl get for the kinds that the lab does not have."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.apiserver.kinds import (
    CERTIFICATE_SIGNING_REQUESTS,
    DAEMON_SETS,
    DEPLOYMENTS,
    ENDPOINTS,
    POD_DISRUPTION_BUDGETS,
    ROLE_BINDINGS,
    ROLES,
)
from tests.yurtlab.api.test_columns import BEFORE, DAY, cells


class GroupTests(SynchronousTestCase):
    """Kinds of several groups."""

    def test_workloads(self):
        """Ready, up-to-date and available counts are those of the status."""
        template = {
            "spec": {
                "nodeSelector": {"zone": "b", "disk": "ssd"},
                "containers": [{"name": "a", "image": "a:1"}, {"name": "b"}],
            }
        }
        spec = {"replicas": 5, "selector": {"matchLabels": {"app": "x"}}, "template": template}
        status = {"readyReplicas": 4, "updatedReplicas": 3, "availableReplicas": 2}
        what = {
            "Name": "x",
            "Age": "2m",
            "Containers": "a,b",
            "Images": "a:1,",
            "Selector": "app=x",
        }
        self.assertEqual(
            {**what, "Ready": "4/5", "Up-to-date": 3, "Available": 2},
            cells(DEPLOYMENTS, spec=spec, status=status),
        )
        status = {
            "desiredNumberScheduled": 6,
            "currentNumberScheduled": 5,
            "numberReady": 4,
            "updatedNumberScheduled": 3,
            "numberAvailable": 2,
        }
        counts = {"Desired": 6, "Current": 5, "Ready": 4, "Up-to-date": 3, "Available": 2}
        self.assertEqual(
            {**what, **counts, "Node Selector": "disk=ssd,zone=b"},
            cells(DAEMON_SETS, spec=spec, status=status),
        )

    def test_budgets(self):
        """Both limits are shown as they are written, a percentage too."""
        shown = cells(
            POD_DISRUPTION_BUDGETS,
            spec={"minAvailable": "50%", "maxUnavailable": 2},
            status={"disruptionsAllowed": 3},
        )
        self.assertEqual(
            {
                "Name": "x",
                "Min Available": "50%",
                "Max Unavailable": "2",
                "Allowed Disruptions": 3,
                "Age": "2m",
            },
            shown,
        )

    def test_roles(self):
        """Bindings show their role, and their subjects by kind."""
        subjects = [
            {"kind": "User", "name": "bob"},
            {"kind": "ServiceAccount", "namespace": "a", "name": "b"},
            {"kind": "Group", "name": "team"},
            {"kind": "User", "name": "eve"},
        ]
        shown = cells(ROLE_BINDINGS, roleRef={"kind": "Role", "name": "r"}, subjects=subjects)
        self.assertEqual(
            {
                "Name": "x",
                "Role": "Role/r",
                "Age": "2m",
                "Users": "bob, eve",
                "Groups": "team",
                "ServiceAccounts": "a/b",
            },
            shown,
        )
        self.assertEqual(BEFORE, cells(ROLES)["Created At"])

    def test_endpoints(self):
        """Endpoints show three addresses, and the number of further ones."""
        addresses = [{"ip": "10.0.0.1"}, {"ip": "::1"}]
        subset = {"addresses": addresses, "ports": [{"port": 80}, {"port": 443}]}
        shown = cells(ENDPOINTS, subsets=[subset])["Endpoints"]
        self.assertEqual("10.0.0.1:80,[::1]:80,10.0.0.1:443 + 1 more...", shown)
        self.assertEqual(
            "10.0.0.1", cells(ENDPOINTS, subsets=[{"addresses": addresses[:1]}])["Endpoints"]
        )
        self.assertEqual("<none>", cells(ENDPOINTS)["Endpoints"])


class CertificateRequestTests(SynchronousTestCase):
    """Requests for certificates."""

    def shown(self, *types, seconds=None, **status):
        """Return the cells of a request with conditions."""
        status["conditions"] = [{"type": one, "status": "True"} for one in types]
        spec = {"signerName": "a.b/c", "username": "bob"}
        if seconds is not None:
            spec["expirationSeconds"] = seconds
        return cells(CERTIFICATE_SIGNING_REQUESTS, spec=spec, status=status)

    def test_cells(self):
        """A request shows its requester, signer and duration."""
        self.assertEqual(
            {
                "Name": "x",
                "Age": "2m",
                "SignerName": "a.b/c",
                "Requestor": "bob",
                "RequestedDuration": "24h",
                "Condition": "Pending",
            },
            self.shown(seconds=DAY),
        )
        self.assertEqual("<none>", self.shown()["RequestedDuration"])

    def test_condition(self):
        """The condition column shows the decision, and whether the certificate is issued."""
        for expected, shown in (
            ("Approved", self.shown("Approved")),
            ("Denied", self.shown("Denied")),
            ("Approved,Issued", self.shown("Approved", certificate="eA==")),
            ("Approved,Failed", self.shown("Approved", "Failed")),
        ):
            self.assertEqual(expected, shown["Condition"])
