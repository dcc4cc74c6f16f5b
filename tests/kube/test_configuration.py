"""Where the API is and as whom to ask it: pods, kubeconfig files, and what changes in them."""

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
from twisted.logger import formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from tests.kube.misfits import MISFITS
from yurttunnel.kube.configuration import BadKubeConfiguration
from yurttunnel.kube.exec_credentials import ExecCredentials
from yurttunnel.kube.loading import load_configuration

NOBODY = 65534
"""The user who owns nothing."""

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


class ConfigurationTestCase(SynchronousTestCase):
    """Has a directory."""

    def setUp(self):
        """Make it."""
        self.directory = Path(self.mktemp())
        self.directory.mkdir()

    def write(self, name, content):
        """Write a file in place of another, as who rotates it does."""
        new = self.directory / f"{name}.new"
        new.write_text(content)
        new.rename(self.directory / name)
        return self.directory / name

    def credentials(self, configuration):
        """Return the credentials of this moment."""
        return self.successResultOf(configuration.credentials.current(MemoryReactorClock()))

    def refused(self, *arguments, **options):
        """Return the one line of a refusal."""
        text = str(
            self.assertRaises(BadKubeConfiguration, load_configuration, *arguments, **options)
        )
        self.assertNotIn("\n", text)
        return text


class PodTests(ConfigurationTestCase):
    """What a pod has."""

    def setUp(self):
        """Make a service account."""
        super().setUp()
        self.write("ca.crt", "authorities")
        self.write("token", "token\n")
        self.write("namespace", "kube-system\n")

    def load(self, address=None, environment=POD):
        """Read it."""
        return load_configuration(
            None, address, service_account=self.directory, environment=environment
        )

    def refused_pod(self, address=None, environment=POD):
        """Return the one line of a refusal."""
        return self.refused(None, address, service_account=self.directory, environment=environment)

    def test_pod(self):
        """In a pod the service account is used."""
        configuration = self.load()
        self.assertEqual("https://10.96.0.1:443", configuration.host)
        self.assertEqual("kube-system", configuration.namespace)
        self.assertEqual(b"authorities", configuration.authorities())
        self.assertEqual("token", self.credentials(configuration).token)

    def test_ipv6(self):
        """An IPv6 address gets its brackets."""
        environment = {**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}
        self.assertEqual("https://[fd00::1]:443", self.load(environment=environment).host)

    def test_rotation(self):
        """Token and authorities are read again when they are others."""
        configuration = self.load()
        self.credentials(configuration)
        self.write("token", "new")
        self.write("ca.crt", "more authorities")
        self.assertEqual("new", self.credentials(configuration).token)
        self.assertEqual(b"more authorities", configuration.authorities())

    def test_lost_files(self):
        """What cannot be read any more stays in use."""
        configuration = self.load()
        (self.directory / "token").unlink()
        (self.directory / "ca.crt").unlink()
        self.assertEqual("token", self.credentials(configuration).token)
        self.assertEqual(b"authorities", configuration.authorities())

    def test_emptied_files(self):
        """What is emptied stays in use: the API is asked as before, and no other is trusted."""
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
        """The address can be another, with or without its scheme."""
        for text in ("api.example:6443", "https://api.example:6443", "https://api.example:6443/"):
            configuration = self.load(text, {})
            self.assertEqual("https://api.example:6443", configuration.host)
            self.assertEqual("token", self.credentials(configuration).token)

    def test_bad_address(self):
        """An address that is none is refused, and one without TLS: the token would be read."""
        for text in ("http://api:80", "https://", "api:none", "", "https://api:99999"):
            self.assertIn("--apiserver-addr", self.refused_pod(text))

    def test_no_pod(self):
        """Outside of a pod, the line says what to give."""
        self.assertIn("--kube-config", self.refused_pod(environment={}))

    def test_no_account(self):
        """Without a service account the line names the file."""
        (self.directory / "token").unlink()
        self.assertIn(str(self.directory / "token"), self.refused_pod())
        self.write("token", "\n")
        self.assertIn("token is empty: the pod's service account", self.refused_pod())

    def test_no_namespace(self):
        """Without the file of the namespace it is ``default``."""
        (self.directory / "namespace").unlink()
        self.assertEqual("default", self.load().namespace)


def encoded(text):
    """Write text as the fields with data have it."""
    return base64.b64encode(text.encode()).decode()


class KubeConfigTests(ConfigurationTestCase):
    """Kubeconfig files."""

    def setUp(self):
        """Begin with one that is usual."""
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
        """Write it."""
        return self.write("config", yaml.safe_dump(self.content))

    def load(self, address=None):
        """Read it."""
        return load_configuration(self.file(), address)

    def refused_file(self):
        """Return the one line of a refusal, which names the file."""
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
        """A path may begin with a tilde, which no shell replaces behind ``--kube-config=``."""
        self.file()
        self.patch(os, "environ", {**os.environ, "HOME": str(self.directory.absolute())})
        self.assertEqual("https://api:6443", load_configuration(Path("~/config")).host)
        unknown = Path("~nobody-of-this-name/config")
        self.assertIn("that user is not known", self.refused(unknown))

    def test_ambiguous(self):
        """Names that are there twice are refused, as kubectl does; so is a missing one."""
        content = self.content
        content["users"] *= 2
        path = self.write("config", yaml.safe_dump(content))
        self.assertIn("2 entries of users have the name 'u'", self.refused(path))
        self.context["cluster"] = "absent"
        self.assertIn("0 entries of clusters have the name 'absent'", self.refused_file())

    def test_current_context(self):
        """The current context says what is used."""
        configuration = self.load()
        self.assertEqual("https://api:6443", configuration.host)
        self.assertEqual("default", configuration.namespace)
        self.assertEqual(b"ca", configuration.authorities())
        self.assertEqual("secret", self.credentials(configuration).token)
        self.assertEqual("", configuration.tls_server_name)

    def test_address(self):
        """The address can be another."""
        configuration = self.load("other:443")
        self.assertEqual("https://other:443", configuration.host)
        self.assertEqual(b"ca", configuration.authorities())

    def test_details(self):
        """Namespace and the name in the certificate are taken; a slash at the end is not."""
        self.context["namespace"] = "mine"
        self.cluster.update({"tls-server-name": "kubernetes", "server": "https://1.2.3.4/k8s/"})
        configuration = self.load()
        self.assertEqual("mine", configuration.namespace)
        self.assertEqual("kubernetes", configuration.tls_server_name)
        self.assertEqual("https://1.2.3.4/k8s", configuration.host)

    def test_scheme(self):
        """It may be in capital letters, as for kubectl, and the API is asked with TLS then."""
        self.cluster["server"] = "HTTPS://Api:6443/K8s/"
        configuration = self.load()
        self.assertEqual("https://Api:6443/K8s", configuration.host)

    def test_files(self):
        """Files are found from the directory of the kubeconfig, and read again when changed."""
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

    def test_empty_files(self):
        """A file that is named and empty is refused by its key: it does not mean the default."""
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
        """One that is emptied later changes nothing, and it is told once."""
        said = []

        def observer(event):
            said.append(formatEvent(event))

        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
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
        """A file with a token is read, without its newline, and wins."""
        self.user["tokenFile"] = str(self.write("t", "from a file\n").absolute())
        self.assertEqual("from a file", self.credentials(self.load()).token)

    def test_nobody(self):
        """A context may have no user, and a user nothing."""
        self.user = None
        self.assertEqual("", self.credentials(self.load()).token)
        del self.context["user"]
        self.assertEqual("", self.credentials(self.load()).token)

    def test_plugin(self):
        """A plugin is called as the file says, when there is no token."""
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

    def test_what_a_url_may_not_have(self):
        """What is secret would be told with it, and so is not even told when it is refused."""
        for url in (
            "https://ada:hunter2@api",
            "https://hunter2@api:1",
            "https://api?hunter2",
            "https://api#hunter2",
            # Nor where it is wrong in another way, too.
            "https://ada:hunter2@api:port",
            "https://[ada:hunter2@api",
            "ada:hunter2@api",
        ):
            self.cluster["server"] = url
            text = self.refused_file()
            self.assertIn("server: the URL of an API has no user, password or query", text)
            self.assertNotIn("hunter2", text)

    def test_a_time_that_a_plugin_is_told(self):
        """It is the text that stands in the file: JSON has no times."""
        told = {"issued": datetime.date(2024, 1, 31), "number": 1}
        name = "client.authentication.k8s.io/exec"
        self.cluster["extensions"] = [{"name": name, "extension": told}]
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
        """What is not served here is refused, with what to do."""
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
        """Saying that verification is not skipped is no offence."""
        self.cluster["insecure-skip-tls-verify"] = False
        self.load()

    def test_no_kubeconfig(self):
        """What is no kubeconfig is refused by one line that names the file."""
        bad = ("", "[", "[]", "text", "{}", "current-context: x", "a: b: c", "\x00", *MISFITS)
        for content in bad:
            path = self.write("config", content)
            self.assertIn(str(path), self.refused(path))
        self.assertIn("kubectl config use-context", self.refused(self.write("config", "{}")))
        missing = self.directory / "missing"
        self.assertIn(str(missing), self.refused(missing))
        self.assertIn(str(self.directory), self.refused(self.directory))

    def test_not_readable(self):
        """A file that may not be read is refused by one line."""
        # trial's own directory may be one that only its user can enter.
        self.directory = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        path = self.file()
        self.directory.chmod(0o755)
        path.chmod(0)
        if os.geteuid() == 0:
            # Nothing is kept from root, nor from its processes: be somebody else for a moment.
            self.addCleanup(os.seteuid, 0)
            os.seteuid(NOBODY)
        text = self.refused(path)
        self.assertIn(str(path), text)
        self.assertIn(os.strerror(errno.EACCES), text)
