"""The components and transformers for an operator's kustomization."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from ipaddress import ip_address

import yaml
from kubernetes.client import models

from tests.deploy.rbac import grants_of
from tests.deploy.rendering import (
    BASE,
    DEPLOY,
    named,
    of_kind,
    pod_of,
    read_objects,
    render,
    rendered_text,
    server_of,
    usable_kubectls,
)
from tests.deploy.workloads import KustomizationTestCase, with_workloads
from yurttunnel.pki.approval import AGENT_ACCOUNT, SERVER_ACCOUNT
from yurttunnel.pki.approval_requests import SIGNERS
from yurttunnel.pki.certificate_template import proxy_client_template, serving_template
from yurttunnel.pki.credentials import new_key
from yurttunnel.pki.issuer import CertificateTemplate
from yurttunnel.steering.dns.records import CONFIG_MAP

PLACEMENT = DEPLOY / "components" / "protected-placement"
POLICY = DEPLOY / "components" / "approval-policy"
DNS_POLICY = DEPLOY / "components" / "dns-policy"
DNS = DEPLOY / "overlays" / "dns"
IPTABLES = DEPLOY / "components" / "iptables"
EVENTS = DEPLOY / "transformers" / "events-in-default"

PROTECTED = "node-restriction.kubernetes.io/"
"""The prefix of labels that kubelets cannot set (plugin/pkg/admission/noderestriction)."""

END = b"-----END CERTIFICATE REQUEST-----\n"


class PlacementTests(KustomizationTestCase):
    """Servers run only on nodes that an administrator has chosen."""

    def test_servers_need_a_label_that_kubelets_cannot_set(self):
        """The component adds the required label to each installation and changes nothing else."""
        for resource in with_workloads():
            before = server_of(render(resource))
            directory = self.kustomization(resource, components=[PLACEMENT])
            after = server_of(render(directory))
            affinity = pod_of(after)["affinity"].pop("nodeAffinity")
            self.assertEqual(before, after)
            required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
            (term,) = required["nodeSelectorTerms"]
            (expression,) = term["matchExpressions"]
            self.assertTrue(expression["key"].startswith(PROTECTED))
            models.V1NodeAffinity.model_validate(affinity)

    def test_name_servers_need_it_too(self):
        """The name server requires the label too, since kube-apiserver trusts its records."""
        for kubectl in usable_kubectls():
            for components in ([PLACEMENT], [PLACEMENT, IPTABLES], [IPTABLES, PLACEMENT]):
                directory = self.kustomization(DNS, components=components)
                objects = read_objects(rendered_text(directory, kubectl))
                desired = pod_of(server_of(objects))["affinity"]["nodeAffinity"]
                affinity = pod_of(named(objects, "Deployment", "yurt-tunnel-dns"))["affinity"]
                self.assertEqual(desired, affinity["nodeAffinity"])
                self.assertIn("podAntiAffinity", affinity)

    def test_no_other_workload_is_touched(self):
        """The component does not change the agents."""
        agent = named(render(DNS), "DaemonSet", "yurt-tunnel-agent")
        directory = self.kustomization(DNS, components=[PLACEMENT])
        self.assertEqual(agent, named(render(directory), "DaemonSet", "yurt-tunnel-agent"))

    def test_the_command_in_the_text_sets_the_label_that_is_required(self):
        """The command in the documents sets the label that the component requires."""
        text = (PLACEMENT / "kustomization.yaml").read_text()
        (expression,) = re.findall(r"- key: (\S+)\n +operator: In\n +values: \[\"(\w+)\"\]", text)
        command = f"kubectl label node cloud-1 {expression[0]}={expression[1]}\n"
        self.assertIn(command, text)
        self.assertIn(command, (DEPLOY / "README.md").read_text())


class PolicyTests(KustomizationTestCase):
    """The policy for certificate requests and approvals of the servers' account."""

    def setUp(self):
        """Read the policy."""
        self.policy, self.binding = yaml.safe_load_all((POLICY / "policy.yaml").read_text())

    def own_request(self) -> re.Pattern[str]:
        """Return the pattern of the only client certificate that servers may request."""
        (variable,) = [
            each
            for each in self.policy["spec"]["variables"]
            if each["name"] == "isOwnClientRequest"
        ]
        return re.compile("".join(re.findall("'([^']*)'", variable["expression"])))

    def matches(self, pem: bytes) -> bool:
        """Return whether a request matches, encoded as the policy sees it."""
        return bool(self.own_request().search(base64.b64encode(pem).decode()))

    def test_every_kubectl_adds_it(self):
        """Every kubectl adds the policy and its binding, which refers to the policy."""
        for kubectl in usable_kubectls():
            directory = self.kustomization(BASE, components=[POLICY])
            objects = read_objects(rendered_text(directory, kubectl))
            added = of_kind(
                objects, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
            )
            self.assertEqual([self.policy, self.binding], added)
            self.assertEqual(len(render(BASE)) + 2, len(objects))
        name = self.policy["metadata"]["name"]
        self.assertEqual(name, self.binding["spec"]["policyName"])
        self.assertEqual(["Deny"], self.binding["spec"]["validationActions"])

    def test_it_has_the_form_of_its_kind(self):
        """Both objects are valid for the official models."""
        models.V1ValidatingAdmissionPolicy.model_validate(self.policy)
        models.V1ValidatingAdmissionPolicyBinding.model_validate(self.binding)

    def test_signers_accounts_and_usages_are_those_of_the_program(self):
        """The policy has the signers, accounts and usages of the programs."""
        spec = self.policy["spec"]
        expressions = {each["name"]: each["expression"] for each in spec["variables"]}
        text = " ".join(expressions.values())
        self.assertEqual(set(SIGNERS), set(re.findall(r"signerName == '([^']+)'", text)))
        self.assertIn(f":{AGENT_ACCOUNT}'", expressions["agent"])
        (condition,) = spec["matchConditions"]
        self.assertIn(f":{SERVER_ACCOUNT}$'", condition["expression"])
        (usages,) = [
            each["expression"] for each in spec["validations"] if "usages" in each["expression"]
        ]
        for template in (proxy_client_template(), serving_template()):
            for usage in template.usages:
                self.assertIn(f"'{usage}'", usages)

    def test_the_request_of_the_server_passes(self):
        """The server's own request matches, whatever the key and the signature."""
        for _ in range(200):
            self.assertTrue(self.matches(proxy_client_template().request(new_key())))

    def test_any_other_request_is_refused(self):
        """A request with another name, organization or extension does not match."""
        own = proxy_client_template()
        others: list[CertificateTemplate] = [
            replace(own, organizations=("kubeadm:cluster-admins",)),
            replace(own, common_name="tunnel-proxy-clienu"),
            replace(own, organizations=("openyurt:yurttunnes",)),
            replace(own, common_name="tunnel-proxy-client2"),
            replace(own, dns_names=("edge-1",)),
            replace(own, addresses=(ip_address("192.0.2.1"),)),
            serving_template(["x-tunnel-server-svc"]),
        ]
        for other in others:
            self.assertFalse(self.matches(other.request(new_key())), other)

    def test_no_second_request_in_the_pem(self):
        """Nothing may precede or follow the request, since PEM readers skip broken blocks."""
        own = proxy_client_template()
        first = own.request(new_key())
        second = replace(own, organizations=("kubeadm:cluster-admins",)).request(new_key())
        lines = first.splitlines(keepends=True)
        for kept_lines in range(len(lines)):
            self.assertFalse(self.matches(b"".join(lines[:kept_lines]) + second), kept_lines)
        self.assertFalse(self.matches(first + second))
        self.assertFalse(self.matches(second + first))
        self.assertFalse(self.matches(first.removesuffix(END) + second))


class DnsPolicyTests(KustomizationTestCase):
    """The policy for the objects that the servers' account writes for DNS records."""

    def setUp(self):
        """Read the policy."""
        self.policy, self.binding = yaml.safe_load_all((DNS_POLICY / "policy.yaml").read_text())
        self.expressions = [each["expression"] for each in self.policy["spec"]["validations"]]

    def test_every_kubectl_adds_it(self):
        """Every kubectl adds the policy and its binding beside the other policy."""
        for kubectl in usable_kubectls():
            directory = self.kustomization(DNS, components=[POLICY, DNS_POLICY])
            objects = read_objects(rendered_text(directory, kubectl))
            self.assertIn(self.policy, objects)
            self.assertIn(self.binding, objects)
            self.assertEqual(len(render(DNS)) + 4, len(objects))
        self.assertEqual(self.policy["metadata"]["name"], self.binding["spec"]["policyName"])
        self.assertEqual(["Deny"], self.binding["spec"]["validationActions"])

    def test_it_has_the_form_of_its_kind(self):
        """Both objects are valid for the official models, and every variable in use is defined."""
        models.V1ValidatingAdmissionPolicy.model_validate(self.policy)
        models.V1ValidatingAdmissionPolicyBinding.model_validate(self.binding)
        defined = {each["name"] for each in self.policy["spec"]["variables"]}
        self.assertEqual(defined, set(re.findall(r"variables\.(\w+)", " ".join(self.expressions))))
        self.assertEqual("Fail", self.policy["spec"]["failurePolicy"])

    def test_it_is_for_what_the_overlay_lets_the_account_write(self):
        """The policy covers everything that the overlay lets the account write, except leases."""
        (condition,) = self.policy["spec"]["matchConditions"]
        self.assertIn(f":{SERVER_ACCOUNT}$'", condition["expression"])
        (rule,) = self.policy["spec"]["matchConstraints"]["resourceRules"]
        self.assertEqual({"CREATE", "UPDATE"}, set(rule["operations"]))
        written = {
            grant.path
            for grant in set(grants_of(render(DNS))) - set(grants_of(render(BASE)))
            if grant.verb in ("create", "update") and grant.path != "leases"
        }
        self.assertEqual(written, set(rule["resources"]))

    def test_only_ports_and_one_config_map_are_excepted(self):
        """The expressions permit what the program writes: ports and one ConfigMap."""
        of_spec, of_metadata, of_config_maps = self.expressions
        self.assertEqual({"ports"}, set(re.findall(r"field == '(\w+)'", of_spec)))
        self.assertIn("'annotations'", of_metadata)
        self.assertEqual([CONFIG_MAP], re.findall(r"metadata\.name == '([^']+)'", of_config_maps))


class EventsTests(KustomizationTestCase):
    """An installation in another namespace."""

    def test_events_of_the_cluster_stay_in_default(self):
        """Everything moves, except the right to create events in ``default``."""
        count = 0
        for kubectl in usable_kubectls():
            directory = self.kustomization(BASE, namespace="mine", transformers=[EVENTS])
            objects = read_objects(rendered_text(directory, kubectl))
            for each in objects:
                is_events = each["metadata"]["name"] == "yurt-tunnel-server-events"
                count += is_events
                if "namespace" in each["metadata"]:
                    desired = "default" if is_events else "mine"
                    self.assertEqual(desired, each["metadata"]["namespace"])
            moved = {
                (
                    grant.subject.replace(":kube-system:", ":mine:"),
                    grant.verb,
                    grant.path,
                    grant.namespace.replace("kube-system", "mine"),
                )
                for grant in grants_of(render(BASE))
            }
            self.assertEqual(
                moved,
                {
                    (grant.subject, grant.verb, grant.path, grant.namespace)
                    for grant in grants_of(objects)
                },
            )
        self.assertEqual(2 * len(usable_kubectls()), count)
