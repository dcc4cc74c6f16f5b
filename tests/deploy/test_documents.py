"""The documents about installation agree with the code."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml
from twisted.trial import unittest

from tests.deploy.reference import default_values
from tests.deploy.rendering import (
    DEPLOY,
    REPOSITORY,
    flags_of,
    named,
    of_kind,
    pod_of,
    render,
    server_of,
    why_not_rendered,
)
from tests.deploy.rooms import rooms
from tests.deploy.steering import all_steering_families
from tests.deploy.workloads import with_workloads
from tests.e2e.guides import blocks
from tests.e2e.test_tutorials import GUIDES, MACHINES, NOT_RUN
from yurttunnel.agent.options import Options as AgentOptions
from yurttunnel.cli.commands import all_commands
from yurttunnel.cluster.proxy_ports import CONFIG_MAP as PROXY_PORTS
from yurttunnel.cluster.proxy_ports import KEYS
from yurttunnel.cluster.services import INTERNAL_SERVICE
from yurttunnel.hub.options import Options as HubOptions
from yurttunnel.pki.names import BadIdentity, check_cluster_node_name, check_node_name
from yurttunnel.proxy.options import Options as ProxyOptions
from yurttunnel.quickstart.options import Options as QuickstartOptions
from yurttunnel.server.options import Options as ServerOptions
from yurttunnel.steering.dns.controller import LEASE
from yurttunnel.steering.dns.records import CONFIG_MAP as RECORDS
from yurttunnel.steering.dns.records import KEY
from yurttunnel.steering.dns.service_ports import PREFIX
from yurttunnel.steering.firewall.rules import HOOKS, OWN_CHAINS, POD_CHAINS
from yurttunnel.steering.interception import SET_NAMES
from yurttunnel.steering.marks import MARK, MASK

MIGRATION = REPOSITORY / "docs" / "migration.md"
STEERING = REPOSITORY / "docs" / "steering.md"
LIMITS = REPOSITORY / "docs" / "limits.md"
SECURITY = REPOSITORY / "docs" / "security.md"
DOCS = REPOSITORY / "docs"
DEPLOY_README = DEPLOY / "README.md"
PAGES = [*REPOSITORY.glob("*.md"), *DOCS.glob("**/*.md"), *DEPLOY.glob("**/README.md")]
DOCUMENTS = [MIGRATION, STEERING, *sorted(DEPLOY.glob("**/README.md"))]

LINK = re.compile(r"\]\(([^)#]*)(#[^)]*)?\)")
PATH = re.compile(r"(?<![\w./-])((?:deploy|docs)/[\w./+-]+)")
PICTURE = re.compile(r'src(?:set)?="([^"]+)"')
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_-]+)")
PROMPT = re.compile(r"^ *\$ ", re.MULTILINE)
ROW = re.compile(r"\| `--([a-z-]+)` \| (server|agent|both|hub|proxy) \| (kept|ignored|new) \|")

TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
BORDER = re.compile(r"(?<!\\)\|")

LANGUAGES = {"sh", "text", "yaml", "toml", "ini", "python"}
"""Languages of code blocks: commands are ``sh``, and their output is ``text``."""

OTHER_PROGRAMS = {
    *("server", "patches", "help", "controllers", "print-join-command"),
    *("egress-selector-config-file", "enable-aggregator-routing"),
    *("bootstrap-kubeconfig", "kubelet-certificate-authority", "kubelet-preferred-address-types"),
    *("cluster-signing-cert-file", "cluster-signing-duration", "kubelet-insecure-tls"),
    *("image", "raw", "retries", "show-labels", "now", "bind", "upgrade-deps"),
    *("rm", "network", "user", "cap-drop", "cap-add", "mount"),
    *("for", "timeout", "type"),
    *("set", "push", "platform", "bump-revision", "mark-compacted"),
    "directory",
    *("cacert", "cert", "key", "connect-to", "insecure", "resolve", "unix-socket"),
    *("proxy", "proxytunnel", "proxy-cacert", "proxy-cert", "proxy-key"),
    *("cases", "seed"),
    *("patch", "write-config-to", "init-only", "enable-dsr", "network-name", "source-vip"),
    *("root-hnsendpoint-name", "forward-healthcheck-vip", "windows-service"),
    "flag",
}
"""Flags of kubectl and kubeadm, yurt-controller-manager, kube-apiserver, kube-controller-manager,
kube-proxy, metrics-server, systemctl, Python's http.server and venv, docker, helm, curl and the
fuzzer, and the placeholder ``--flag``."""

OF_TWIST = {"log-level", "log-file"}
"""Flags of twist, which are permitted on lines that name it: ``yurttunnel`` has none of them."""

OF_TOOLS = {"testing.md", "performance.md", "dependencies.md"}
"""Pages about programs with flags of their own."""


def headings(path):
    """Yield the anchors of a document's headings, as GitHub makes them."""
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            text = line.lstrip("#").strip().lower()
            yield "#" + re.sub(r"[^\w -]", "", text).replace(" ", "-")


def flags_that_exist(*options):
    """Return the names of all flags of the programs, including ignored ones."""
    return {
        name
        for each in options
        for name in (*names_of(each), *each.ignored_flags, *each.ignored_switches)
    }


def names_of(options):
    """Return the names of the flags that a program has."""
    return {"help", "help-all", "version", *(entry.name for entry in options.table)}


class PathTests(unittest.SynchronousTestCase):
    """Files and flags in the documents exist."""

    def test_links_are_valid(self):
        """Each relative link points to a file, and each anchor to a heading."""
        for page in PAGES:
            for target, anchor in LINK.findall(page.read_text()):
                if "://" in target:
                    continue
                path = (page.parent / target).resolve() if target else page
                self.assertTrue(path.exists(), f"{page}: {target}")
                if anchor:
                    self.assertIn(anchor, set(headings(path)), f"{page}: {target}{anchor}")

    def test_the_index_links_to_every_page(self):
        """The index links to every page of docs."""
        linked = {target for target, _ in LINK.findall((DOCS / "index.md").read_text())}
        pages = {str(path.relative_to(DOCS)) for path in DOCS.glob("**/*.md")} - {"index.md"}
        self.assertEqual(set(), pages - linked)

    def test_each_block_says_where_it_runs(self):
        """Each command block is marked with its test machine or the reason not to run it."""
        self.assertLessEqual({*GUIDES.values()}, {*PAGES})
        for page in PAGES:
            found, fences = blocks(page), FENCE.findall(page.read_text())
            languages = [language for _, language, _ in fences]
            self.assertLessEqual({*languages}, LANGUAGES, page)
            self.assertEqual(languages.count("sh"), len(found), page)
            self.assertEqual([], [text for *_, text in fences if PROMPT.search(text)], page)
            for block in found:
                where, *marks = block.marks
                self.assertIn(where, {*MACHINES, *NOT_RUN}, page)
                self.assertLessEqual(set(marks), {"stays", "copy", "fails", "finds"}, page)

    def test_paths_exist(self):
        """Each path of the repository in text or commands exists."""
        for page in PAGES:
            for path in PATH.findall(page.read_text()):
                self.assertTrue((REPOSITORY / path.rstrip(".")).exists(), f"{page}: {path}")

    def test_pictures_exist(self):
        """Each picture of a page exists, in its light and dark version."""
        for page in PAGES:
            for path in PICTURE.findall(page.read_text()):
                self.assertTrue((page.parent / path).exists(), f"{page}: {path}")

    def test_every_overlay_and_component_is_named(self):
        """The README of deploy lists every overlay and component."""
        text = (DEPLOY / "README.md").read_text()
        for path in DEPLOY.glob("*/*/kustomization.yaml"):
            self.assertIn(f"`{path.parent.relative_to(REPOSITORY)}`", text)

    def test_flags_exist(self):
        """Each flag belongs to one of the programs or to a known other program."""
        programs = (ServerOptions, AgentOptions, QuickstartOptions, HubOptions, ProxyOptions)
        commands = {type(command.options()) for command in all_commands().each()}
        known = flags_that_exist(*programs, *commands) | OTHER_PROGRAMS
        for page in PAGES:
            if page.name in OF_TOOLS:
                continue
            for line in page.read_text().splitlines():
                of_twist = OF_TWIST if "twist" in line else set()
                self.assertLessEqual(set(FLAG.findall(line)), known | of_twist, page)


class TwistTests(unittest.SynchronousTestCase):
    """``twist``, which runs the programs in service managers."""

    def test_first_page(self):
        """The README mentions twist in one line, as the form for service managers."""
        lines = (REPOSITORY / "README.md").read_text().splitlines()
        [line] = [line for line in lines if re.search(r"\btwist\b", line)]
        self.assertIn("`twist yurttunnel-server` is the form for service managers", line)

    def test_other_pages(self):
        """Other pages use twist only for service managers."""
        for page in PAGES:
            if page.name in {*OF_TOOLS, "CHANGELOG.md"}:
                continue
            for line in page.read_text().splitlines():
                if "twist yurt" in line:
                    self.assertRegex(line, "ervice managers|systemd|^/opt/yurttunnel/bin", page)


class PortTests(unittest.SynchronousTestCase):
    """Open ports."""

    skip = why_not_rendered()

    def test_each_open_port_is_documented(self):
        """The table of ports has the servers' ports in the host network, of every overlay."""
        documented = set(
            re.findall(r"^\| (\d+) \| the cloud", DEPLOY_README.read_text(), re.MULTILINE)
        )
        moved = DEPLOY / "overlays" / "side-by-side"
        served = {
            str(port["containerPort"])
            for directory in with_workloads()
            if directory != moved
            for port in pod_of(server_of(render(directory)))["containers"][0]["ports"]
        }
        passed_through = (DEPLOY / "components/pass-through/kustomization.yaml").read_text()
        served |= set(re.findall(r"containerPort: (\d+)", passed_through))
        self.assertEqual(served, documented)


class TableTests(unittest.SynchronousTestCase):
    """Tables in all pages."""

    def test_each_row_has_the_cells_of_its_head(self):
        """Each row has as many cells as the head (GitHub Flavored Markdown, section 4.10)."""
        for path in PAGES:
            for table in TABLE.findall(path.read_text()):
                head, *rows = (len(BORDER.findall(row)) for row in table.splitlines())
                self.assertEqual({head}, {head, *rows}, f"{path}: {table[:80]}")


class FlagTableTests(unittest.SynchronousTestCase):
    """The table of flags agrees with the programs."""

    def setUp(self):
        """Read the table."""
        self.rows = ROW.findall(MIGRATION.read_text())
        self.programs = {
            "server": (ServerOptions,),
            "agent": (AgentOptions,),
            "both": (ServerOptions, AgentOptions),
            "hub": (HubOptions,),
            "proxy": (ProxyOptions,),
        }

    def test_each_row_is_true(self):
        """Flags that are kept or new are accepted, and ignored flags are ignored."""
        for flag, programs, kind in self.rows:
            for options in self.programs[programs]:
                ignored = {*options.ignored_flags, *options.ignored_switches}
                self.assertEqual(kind == "ignored", flag in ignored, flag)
                self.assertEqual(kind != "ignored", flag in names_of(options), flag)

    def test_flags_of_the_logging_library_are_ignored(self):
        """The flags of klog are ignored, except --v."""
        with_values = ["log_backtrace_at", "log_dir", "log_file", "log_file_max_size", "vmodule"]
        switches = ["add_dir_header", "alsologtostderr", "logtostderr", "one_output"]
        for name in ("server", "agent", "hub", "proxy"):
            (options,) = self.programs[name]
            self.assertLessEqual({*with_values, "stderrthreshold"}, options.ignored_flags.keys())
            self.assertLessEqual(
                {*switches, "skip_headers", "skip_log_headers"}, options.ignored_switches.keys()
            )

    def test_no_flag_is_left_out(self):
        """The table has all flags of each program that matter in a cluster."""
        standalone = {
            "standalone",
            "state-dir",
            "join-token",
            "join-token-file",
            "join-token-lifetime",
            "node-certificate-lifetime",
            "revoke-node",
        }
        rare = {"help", "help-all", "transport", "middleware", "response-timeout"}
        for name in ("server", "agent", "hub", "proxy"):
            (options,) = self.programs[name]
            listed = {flag for flag, programs, _ in self.rows if programs in (name, "both")}
            every = {*names_of(options), *options.ignored_flags, *options.ignored_switches}
            logging = {
                flag
                for flag, instead in {**options.ignored_flags, **options.ignored_switches}.items()
                if "twist" in instead
            }
            self.assertLessEqual(every - standalone - rare - (logging - {"v"}), listed, name)


class RoomsTests(unittest.SynchronousTestCase):
    """The table of rooms."""

    def test_each_room_is_in_it_with_its_size(self):
        """The table has a row for each package, and its numbers are right within 20 percent."""
        rows = re.findall(
            r"^\| `(?:yurttunnel/)?(\w+)` \|.*\| ([\d,]+) \| ([\d,]+) \|$",
            (DOCS / "contributing.md").read_text(),
            flags=re.MULTILINE,
        )
        sizes = {room.name: room for room in rooms()}
        self.assertEqual(sizes.keys(), {name for name, *_ in rows})
        for name, modules, lines in rows:
            for documented, counted in ((modules, sizes[name].modules), (lines, sizes[name].lines)):
                message = f"{name}: run python -m tests.deploy.rooms"
                self.assertApproximates(
                    int(documented.replace(",", "")), counted, counted / 5, message
                )


class ContributingTests(unittest.SynchronousTestCase):
    """The guide to typical changes."""

    def test_what_it_names_exists(self):
        """Each path exists, and each class is defined in the package."""
        text = (DOCS / "contributing.md").read_text()
        for path in re.findall(r"`((?:yurttunnel|yurtlab|twisted|tests|docs)/[\w./-]+)`", text):
            self.assertTrue((REPOSITORY / path).exists(), path)
        source = "".join(path.read_text() for path in REPOSITORY.glob("yurttunnel/**/*.py"))
        for name in re.findall(r"`(I?[A-Z][a-z]+[A-Z]\w+)`", text):
            self.assertIn(f"class {name}(", source)


class NeededTests(unittest.SynchronousTestCase):
    """The table of programs that the tests need."""

    def test_what_ci_installs_is_in_it(self):
        """Each Debian package that CI installs has a row, except basics of the shell and Python."""
        script = (REPOSITORY / ".ci" / "run").read_text()
        installed = " ".join(re.findall(r"\bpackages\+?=\(([^)]*)\)", script)).split()
        text = (DOCS / "testing.md").read_text().partition("\n## What is needed\n")[2]
        cells = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")]
        named = re.findall(r"`([^`]+)`", " ".join(cells))
        basics = {"ca-certificates", "python3", "python3-venv", "tar"}
        self.assertEqual({*installed} - basics, {*named})


class ReadmeTests(unittest.SynchronousTestCase):
    """The comparison with other tunnels."""

    def test_figures_are_those_that_were_measured(self):
        """Each figure is the one in the document about performance."""
        text = (DOCS / "performance.md").read_text().partition("\n## Figures\n")[2]
        text = text.partition("\n## ")[0]
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
        measured = {
            name.strip("| `"): (ours.partition(" ")[0], konnectivity)
            for name, _, ours, konnectivity, *_ in rows
        }
        shown = re.findall(
            r"^\| [^|]*\(`([a-z]+-\d+)`[^|]*\) \| ([^|]+) \| ([^|]+) \|",
            (REPOSITORY / "README.md").read_text(),
            flags=re.MULTILINE,
        )
        self.assertEqual(6, len(shown))
        for name, ours, konnectivity in shown:
            self.assertEqual(
                measured[name], (ours, konnectivity), f"{name}: put the figure into README.md"
            )


class SteeringTests(unittest.SynchronousTestCase):
    """Names and numbers in the document about steering agree with the code."""

    def setUp(self):
        """Read the document."""
        self.text = STEERING.read_text()

    def test_what_is_in_the_kernel_is_called_so(self):
        """Chains, sets and the mark of the server's own connections are named as in the code."""
        for name in (OWN_CHAINS, POD_CHAINS, *HOOKS.values(), *SET_NAMES.values()):
            self.assertIn(f"`{name}`", self.text)
        self.assertIn(f"the mark {MARK:#x} (mask {MASK:#x}; `SO_MARK`)", self.text)

    def test_what_is_in_the_api_is_called_so(self):
        """Lease, ConfigMap, its key and the ports are named as in the code."""
        for name in (LEASE, RECORDS, KEY, INTERNAL_SERVICE, PROXY_PORTS, *KEYS[1:]):
            self.assertIn(f"`{name}`", self.text)
        self.assertIn(f"`{PREFIX}<port>`", self.text)

    def test_defaults_are_those_of_the_flags(self):
        """Periods and ports are the defaults of the server's flags."""
        defaults = default_values(ServerOptions)
        for flag in ("iptables-sync-period", "dns-sync-period"):
            self.assertIn(f"{defaults[flag]} s (`--{flag}`)", self.text)
        for flag in ("secure-port", "insecure-port"):
            self.assertIn(str(defaults[flag]), self.text)

    def test_metrics_exist(self):
        """The table has all steering metrics of the server with their labels."""
        exist = {
            sample.name.removeprefix("yurttunnel_server_steering_"): tuple(sorted(sample.labels))
            for family in all_steering_families()
            for sample in family.samples
        }
        rows = re.findall(r"^\| ((?:`[a-z_{},]+`(?:, )?)+) \|", self.text, flags=re.MULTILINE)
        named = re.findall(r"([a-z_]+)(?:\{([a-z,]+)\})?`", " ".join(rows))
        self.assertEqual(
            exist, {name: tuple(sorted(filter(None, labels.split(",")))) for name, labels in named}
        )


class NodeNamesTests(unittest.SynchronousTestCase):
    """The table of node names agrees with the checks."""

    def test_each_name(self):
        """Each name is accepted or rejected in each mode as in its row."""
        text = LIMITS.read_text().partition("\n## Names of nodes\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| ([^|]+) \| (yes|no) \| (yes|no) \|", text, flags=re.MULTILINE)
        described = {
            "more than 63 characters from dot to dot": ["a" * 64],
            "65 to 253 characters": [f"{'a' * 32}.{'b' * 32}", ".".join(["a" * 63] * 4)[:253]],
        }
        for names, *modes in rows:
            for name in described.pop(names, None) or re.findall(r"`([^`]+)`", names):
                accepted = tuple(
                    "yes" if self.accepts(check, name) else "no"
                    for check in (check_cluster_node_name, check_node_name)
                )
                self.assertEqual((name, *modes), (name, *accepted))
        self.assertEqual({}, described)

    def accepts(self, check, name):
        """Return whether a check accepts a name."""
        try:
            return check(name) == name
        except BadIdentity:
            return False


class BlockTests(unittest.TestCase):
    """Files and objects in code blocks are valid."""

    skip = why_not_rendered()

    def blocks(self, document, language):
        """Yield the code blocks of a language, without the indentation of lists."""
        for indentation, kind, text in FENCE.findall(document.read_text()):
            if kind == language:
                yield re.sub(f"^{indentation}", "", text, flags=re.MULTILINE)

    def test_the_kustomizations_in_the_text_render(self):
        """Each kustomization renders the workloads with the image and flags that it sets."""
        count = 0
        for document in DOCUMENTS:
            for text in self.blocks(document, "yaml"):
                read = yaml.safe_load(text)
                if read.get("kind") != "Kustomization":
                    continue
                count += 1
                self._check_kustomization(read)
        self.assertEqual(2, count)

    def _check_kustomization(self, read):
        directory = Path(self.mktemp()).resolve()
        directory.mkdir()
        # Kustomize rejects absolute paths.
        for field in ("resources", "components"):
            read[field] = [
                os.path.relpath(REPOSITORY / each.removeprefix("../yurttunnel/"), directory)
                for each in read.get(field, [])
            ]
        (directory / "kustomization.yaml").write_text(yaml.safe_dump(read))
        objects = render(directory)
        for workload in of_kind(objects, "Deployment", "DaemonSet"):
            (container,) = workload["spec"]["template"]["spec"]["containers"]
            self.assertEqual("IMAGE:0.1.0", container["image"])
            _, command, flags = flags_of(workload)
            options = ServerOptions() if command == "yurttunnel-server" else AgentOptions({})
            options.parseOptions(flags)
        self.assertTrue(named(objects, "ConfigMap", "yurt-tunnel-server-cfg")["data"])

    def test_yaml_in_the_text_is_yaml(self):
        """Every YAML block can be parsed."""
        for document in DOCUMENTS:
            for text in self.blocks(document, "yaml"):
                self.assertIsInstance(yaml.safe_load(text), dict)

    def test_the_manual_changes_are_those_of_the_patch(self):
        """The manual changes are the same as those of kubeadm's patch."""
        for name in ("egress-selector", "egress-selector-tcp"):
            directory = DEPLOY / "overlays" / name
            (text,) = self.blocks(directory / "README.md", "yaml")
            spec = yaml.safe_load(text)["spec"]
            (container,) = spec["containers"]
            patch = yaml.safe_load((directory / "kubeadm-patches/kube-apiserver+json.yaml").open())
            added: dict[str, list] = {}
            for operation in patch:
                self.assertEqual("add", operation["op"])
                place = operation["path"].removesuffix("/-").rpartition("/")[2]
                added.setdefault(place, []).append(operation["value"])
            self.assertEqual(added, {**container, "volumes": spec["volumes"]})
