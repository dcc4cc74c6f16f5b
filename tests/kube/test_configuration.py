"""Configurations from pods and kubeconfig files, and changes of their files."""

from __future__ import annotations

import base64
import datetime
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from tests.kube.misfits import MISFITS
from tests.logged import Logged
from yurttunnel.kube.configuration import BadKubeConfiguration
from yurttunnel.kube.exec_credentials import ExecCredentials
from yurttunnel.kube.kube_config import read_kube_config
from yurttunnel.kube.loading import load_configuration

NOBODY = 65534
"""The user nobody, who owns no files."""

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


class ConfigurationTestCase(SynchronousTestCase):
    """A test case with a directory."""

    def setUp(self):
        """Create the directory."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir()

    def write(self, name, content):
        """Replace a file, as a rotation does."""
        new = self.directory / f"{name}.new"
        new.write_text(content)
        new.rename(self.directory / name)
        return self.directory / name

    def credentials(self, configuration):
        """Return the current credentials."""
        return self.successResultOf(configuration.credentials.current(MemoryReactorClock()))

    def refused(self, *arguments, **options):
        """Return the one line of an error."""
        text = str(
            self.assertRaises(BadKubeConfiguration, load_configuration, *arguments, **options)
        )
        self.assertNotIn("\n", text)
        return text


class PodTests(ConfigurationTestCase):
    """The configuration in a pod."""

    def setUp(self):
        """Create a service account."""
        super().setUp()
        self.write("ca.crt", "authorities")
        self.write("token", "token\n")
        self.write("namespace", "kube-system\n")

    def load(self, address=None, environment=POD):
        """Load the configuration."""
        return load_configuration(
            None, address, service_account=self.directory, environment=environment
        )

    def refused_pod(self, address=None, environment=POD):
        """Return the one line of an error."""
        return self.refused(None, address, service_account=self.directory, environment=environment)

    def test_pod(self):
        """In a pod, the service account is used."""
        configuration = self.load()
        self.assertEqual("https://10.96.0.1:443", configuration.host)
        self.assertEqual("kube-system", configuration.namespace)
        self.assertEqual(b"authorities", configuration.authorities())
        self.assertEqual("token", self.credentials(configuration).token)

    def test_ipv6(self):
        """An IPv6 address is put into brackets."""
        environment = {**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}
        self.assertEqual("https://[fd00::1]:443", self.load(environment=environment).host)

    def test_rotation(self):
        """Token and authorities are read again when they have changed."""
        configuration = self.load()
        self.credentials(configuration)
        self.write("token", "new")
        self.write("ca.crt", "more authorities")
        self.assertEqual("new", self.credentials(configuration).token)
        self.assertEqual(b"more authorities", configuration.authorities())

    def test_lost_files(self):
        """If a file becomes unreadable, its content stays in use."""
        configuration = self.load()
        (self.directory / "token").unlink()
        (self.directory / "ca.crt").unlink()
        self.assertEqual("token", self.credentials(configuration).token)
        self.assertEqual(b"authorities", configuration.authorities())

    def test_emptied_files(self):
        """If a file becomes empty, its content stays in use; no other authorities are trusted."""
        configuration = self.load()
        self.credentials(configuration)
        for content in ("", " \n"):
            self.write("token", content)
            self.write("ca.crt", content)
            self.assertEqual("token", self.credentials(configuration).token)
            self.assertEqual(b"authorities", configuration.authorities())
        self.write("token", "new")
        self.write("ca.crt", "more authorities")
        self.assertEqual("new", self.credentials(configuration).token)
        self.assertEqual(b"more authorities", configuration.authorities())

    def test_address(self):
        """The address can be replaced, with or without its scheme."""
        for text in ("api.example:6443", "https://api.example:6443", "https://api.example:6443/"):
            configuration = self.load(text, {})
            self.assertEqual("https://api.example:6443", configuration.host)
            self.assertEqual("token", self.credentials(configuration).token)

    def test_bad_address(self):
        """Invalid addresses are rejected, and those without TLS, which would expose the token."""
        for text in ("http://api:80", "https://", "api:none", "", "https://api:99999"):
            self.assertIn("--apiserver-addr", self.refused_pod(text))

    def test_no_pod(self):
        """Outside of a pod, the error names the flag."""
        self.assertIn("--kube-config", self.refused_pod(environment={}))

    def test_no_account(self):
        """Without a service account, the error names the file."""
        (self.directory / "token").unlink()
        self.assertIn(str(self.directory / "token"), self.refused_pod())
        self.write("token", "\n")
        self.assertIn("token is empty: the pod's service account", self.refused_pod())

    def test_no_namespace(self):
        """Without the namespace file it is ``default``."""
        (self.directory / "namespace").unlink()
        self.assertEqual("default", self.load().namespace)


def encoded(text):
    """Encode text for the fields with data."""
    return base64.b64encode(text.encode()).decode()


class KubeConfigTests(ConfigurationTestCase):
    """Kubeconfig files."""

    def setUp(self):
        """Begin with a common file."""
        super().setUp()
        self.cluster = {"server": "https://api:6443", "certificate-authority-data": encoded("ca")}
        self.user = {"token": "secret"}
        self.context = {"cluster": "c", "user": "u"}

    @property
    def content(self):
        """The whole file."""
        other = {"name": "other", "context": {"cluster": "x", "user": "x"}}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "mine",
            "contexts": [other, {"name": "mine", "context": self.context}],
            "clusters": [{"name": "c", "cluster": self.cluster}],
            "users": [{"name": "u", "user": self.user}],
        }

    def file(self):
        """Write the file."""
        return self.write("config", yaml.safe_dump(self.content))

    def load(self, address=None):
        """Load the file."""
        return load_configuration(self.file(), address)

    def refused_file(self):
        """Return the one line of an error, which names the file."""
        text = self.refused(self.file())
        self.assertIn(str(self.directory / "config"), text)
        return text

    def test_packages_of_the_quickstart(self):
        """Server and agent read it without the packages that only the quickstart installs."""
        code = (
            "import sys\n"
            "for name in ('kubernetes', 'wsproto', 'treq'): sys.modules[name] = None\n"
            "import yurttunnel.agent.cluster, yurttunnel.server.in_cluster, pathlib\n"
            "from yurttunnel.kube.loading import load_configuration\n"
            f"load_configuration(pathlib.Path({str(self.file())!r}))"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_home(self):
        """A path may begin with a tilde, which shells do not expand after ``--kube-config=``."""
        self.file()
        self.patch(os, "environ", {**os.environ, "HOME": str(self.directory.absolute())})
        self.assertEqual("https://api:6443", load_configuration(Path("~/config")).host)
        unknown = Path("~nobody-of-this-name/config")
        self.assertIn("that user is not known", self.refused(unknown))

    def test_ambiguous(self):
        """Duplicate and missing names are rejected, as in kubectl."""
        content = self.content
        content["users"] *= 2
        path = self.write("config", yaml.safe_dump(content))
        self.assertIn("2 entries of users have the name 'u'", self.refused(path))
        self.context["cluster"] = "absent"
        self.assertIn("0 entries of clusters have the name 'absent'", self.refused_file())

    def test_current_context(self):
        """The current context selects the entries."""
        configuration = self.load()
        self.assertEqual("https://api:6443", configuration.host)
        self.assertEqual("default", configuration.namespace)
        self.assertEqual(b"ca", configuration.authorities())
        self.assertEqual("secret", self.credentials(configuration).token)
        self.assertEqual("", configuration.tls_server_name)

    def test_address(self):
        """The address can be replaced."""
        configuration = self.load("other:443")
        self.assertEqual("https://other:443", configuration.host)
        self.assertEqual(b"ca", configuration.authorities())

    def test_details(self):
        """Namespace and server name are read; a final slash is removed."""
        self.context["namespace"] = "mine"
        self.cluster.update({"tls-server-name": "kubernetes", "server": "https://1.2.3.4/k8s/"})
        configuration = self.load()
        self.assertEqual("mine", configuration.namespace)
        self.assertEqual("kubernetes", configuration.tls_server_name)
        self.assertEqual("https://1.2.3.4/k8s", configuration.host)

    def test_scheme(self):
        """An upper-case scheme is accepted, as in kubectl, and TLS is used."""
        self.cluster["server"] = "HTTPS://Api:6443/K8s/"
        configuration = self.load()
        self.assertEqual("https://Api:6443/K8s", configuration.host)

    def test_files(self):
        """Files are relative to the directory of the kubeconfig, and read again when changed."""
        del self.cluster["certificate-authority-data"]
        self.cluster["certificate-authority"] = "ca.pem"
        self.user = {"client-certificate": "c.pem", "client-key": "k.pem"}
        for name in ("ca", "c", "k"):
            self.write(f"{name}.pem", name)
        configuration = self.load()
        credentials = self.credentials(configuration)
        self.assertEqual((b"c", b"k"), (credentials.certificate, credentials.key))
        self.assertEqual(b"ca", configuration.authorities())
        self.write("ca.pem", "new ca")
        self.write("c.pem", "new c")
        self.assertEqual(b"new ca", configuration.authorities())
        self.assertEqual(b"new c", self.credentials(configuration).certificate)

    def test_inline_certificate(self):
        """Certificate and key may be in the file."""
        self.user = {
            "client-certificate-data": encoded("c"),
            "client-key-data": encoded("k"),
        }
        credentials = self.credentials(self.load())
        self.assertEqual((b"c", b"k"), (credentials.certificate, credentials.key))

    def test_unreadable_file(self):
        """The reason is a sentence, without the number of the error."""
        path = self.directory / "pipe"
        os.mkfifo(path)
        self.assertEqual(f"{path} cannot be read: it is not a plain file", self.refused(path))

    def test_empty_files(self):
        """An empty file is rejected with its key, since it does not mean the default."""
        del self.cluster["certificate-authority-data"]
        for section, key in (
            (self.cluster, "certificate-authority"),
            (self.user, "client-certificate"),
            (self.user, "client-key"),
            (self.user, "tokenFile"),
        ):
            section[key] = "empty"
            for content in ("", " \n"):
                path = self.write("empty", content)
                self.assertIn(f"{key}: {path} cannot be read: it is empty", self.refused_file())
            del section[key]

    def test_emptied_file(self):
        """A file that becomes empty later changes nothing, and is logged once."""
        said = Logged(self)
        del self.cluster["certificate-authority-data"]
        self.cluster["certificate-authority"] = "ca.pem"
        path = self.write("ca.pem", "ca")
        configuration = self.load()
        path.write_bytes(b"")
        self.assertEqual([b"ca", b"ca"], [configuration.authorities() for _ in range(2)])
        [line] = said
        self.assertIn("the previous content stays in use: ", line)
        self.assertIn(f"it is empty: {str(path)!r}", line)

    def test_token_file(self):
        """A token file is read, without its newline, and takes precedence."""
        self.user["tokenFile"] = str(self.write("t", "from a file\n").absolute())
        self.assertEqual("from a file", self.credentials(self.load()).token)

    def test_nobody(self):
        """A context may have no user, and a user no credentials."""
        self.user = None
        self.assertEqual("", self.credentials(self.load()).token)
        del self.context["user"]
        self.assertEqual("", self.credentials(self.load()).token)

    def test_plugin(self):
        """A plugin is called as configured, if there is no token."""
        self.user = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "./bin/plugin",
                "args": ["a", 1],
                "env": [{"name": "X", "value": "y"}],
                "provideClusterInfo": True,
                "installHint": "get it",
            }
        }
        self.cluster["tls-server-name"] = "kubernetes"
        credentials = self.load().credentials
        self.assertIsInstance(credentials, ExecCredentials)
        plugin = credentials._plugin
        self.assertEqual(str(self.directory.absolute() / "bin" / "plugin"), plugin.command)
        self.assertEqual((("a", "1"), {"X": "y"}), (plugin.arguments, plugin.environment))
        self.assertEqual(
            {
                "server": "https://api:6443",
                "tls-server-name": "kubernetes",
                "certificate-authority-data": encoded("ca"),
            },
            plugin.cluster,
        )
        self.user["exec"]["command"] = "plugin"
        self.assertEqual("plugin", self.load().credentials._plugin.command)
        self.user["token"] = "secret"
        self.assertEqual("secret", self.credentials(self.load()).token)

    def test_zones(self):
        """A URL with a zone is rejected, however it is spelled."""
        for zone in ("%eth0", "%25eth0"):
            self.cluster["server"] = f"https://[fe80::1{zone}]:6443"
            self.assertIn("has a zone", self.refused_file())

    def test_what_is_no_file(self):
        """A pipe is rejected with a sentence."""
        pipe = self.directory / "pipe"
        os.mkfifo(pipe)
        error = self.assertRaises(BadKubeConfiguration, read_kube_config, pipe)
        self.assertEqual(f"{pipe} cannot be read: it is not a plain file", str(error))

    def test_what_a_url_may_not_have(self):
        """Secrets in a URL are not in its error, which would otherwise expose them."""
        for url in (
            "https://ada:hunter2@api",
            "https://hunter2@api:1",
            "https://api?hunter2",
            "https://api#hunter2",
            # These are invalid in another way, too.
            "https://ada:hunter2@api:port",
            "https://[ada:hunter2@api",
            "ada:hunter2@api",
        ):
            self.cluster["server"] = url
            text = self.refused_file()
            self.assertIn("server: the URL of an API has no user, password or query", text)
            self.assertNotIn("hunter2", text)

    def test_a_time_for_a_plugin(self):
        """A time is passed as its text in the file, since JSON has no times."""
        extension = {"issued": datetime.date(2024, 1, 31), "number": 1}
        name = "client.authentication.k8s.io/exec"
        self.cluster["extensions"] = [{"name": name, "extension": extension}]
        plugin = {"command": "p", "apiVersion": "v1", "provideClusterInfo": True}
        self.user = {"exec": plugin}
        self.assertIn("issued: 2024-01-31\n", self.file().read_text())
        cluster = self.load().credentials._plugin.cluster
        self.assertEqual({"issued": "2024-01-31", "number": 1}, cluster["config"])

    def test_plugin_beside_a_relative_file(self):
        """A command with a slash is not looked up on the PATH, however the file is named."""
        version = "client.authentication.k8s.io/v1"
        self.user = {"exec": {"apiVersion": version, "command": "./date"}}
        self.file()
        self.addCleanup(os.chdir, Path.cwd())
        expected = str(self.directory.absolute() / "date")
        os.chdir(self.directory)
        configuration = load_configuration(Path("config"))
        self.assertEqual(expected, configuration.credentials._plugin.command)

    def test_refused(self):
        """Unsupported settings are rejected, with the fix."""
        for section, key, value, text in (
            (self.cluster, "insecure-skip-tls-verify", True, "insecure-skip-tls-verify"),
            (self.cluster, "proxy-url", "http://proxy", "proxy-url"),
            (self.cluster, "server", "api:6443", "'api:6443' is not the URL"),
            (self.cluster, "server", None, "is not the URL"),
            (self.cluster, "certificate-authority-data", "%", "not base64"),
            (self.user, "auth-provider", {"name": "gcp"}, "auth-provider"),
            (self.user, "username", "ada", "username"),
            (self.user, "as", "ada", "impersonation"),
            (self.user, "client-key", "no-such-file", "no-such-file"),
            (self.user, "client-key-data", encoded("k"), "only one of"),
            (self.user, "tokenFile", "no-such-file", "no-such-file"),
            (self.context, "cluster", "x", "x"),
            (self.context, "user", "x", "x"),
        ):
            before = dict(section)
            section[key] = value
            self.assertIn(text, self.refused_file())
            section.clear()
            section.update(before)
        self.user = {"exec": {"command": "plugin"}}
        self.assertIn("apiVersion", self.refused_file())

    def test_not_insecure(self):
        """Verification that is explicitly not skipped is accepted."""
        self.cluster["insecure-skip-tls-verify"] = False
        self.load()

    def test_no_kubeconfig(self):
        """An invalid kubeconfig is rejected by one line that names the file."""
        bad = ("", "[", "[]", "text", "{}", "current-context: x", "a: b: c", "\x00", *MISFITS)
        for content in bad:
            path = self.write("config", content)
            self.assertIn(str(path), self.refused(path))
        self.assertIn("kubectl config use-context", self.refused(self.write("config", "{}")))
        missing = self.directory / "missing"
        self.assertIn(str(missing), self.refused(missing))
        self.assertIn(str(self.directory), self.refused(self.directory))

    def test_not_readable(self):
        """An unreadable file is rejected by one line."""
        # Only its user may be able to enter trial's own directory.
        self.directory = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        path = self.file()
        self.directory.chmod(0o755)
        path.chmod(0)
        if os.geteuid() == 0:
            # Root can read every file, so another user is needed here.
            self.addCleanup(os.seteuid, 0)
            os.seteuid(NOBODY)
        text = self.refused(path)
        self.assertIn(str(path), text)
        self.assertIn(os.strerror(errno.EACCES), text)
