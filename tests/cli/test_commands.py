"""Resolution of commands, and their arguments and flags."""

from __future__ import annotations

import re
import shlex

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.cli import logs
from yurttunnel.cli.client import CommandFailed
from yurttunnel.cli.command_set import UnknownCommand
from yurttunnel.cli.commands import all_commands
from yurttunnel.cli.diagnose import own_arguments
from yurttunnel.cli.forwards import AddOptions, RemoveOptions
from yurttunnel.cli.logs import LogsLevelOptions
from yurttunnel.cli.nodes import WATCH, NodeOptions, NodesOptions
from yurttunnel.cli.options import IN_CLUSTER, NAMESPACE, OUTPUT
from yurttunnel.cli.plugin import PLUGIN_COMMANDS
from yurttunnel.cli.shell import CompletionOptions, ManOptions
from yurttunnel.cli.tokens import CreateOptions, RevokeOptions


class FindTests(SynchronousTestCase):
    """A command is found by its first words."""

    def test_found(self) -> None:
        """A command's name is one or two words; the rest are its arguments."""
        for words, name, others in (
            (["server", "--v=2"], "server", ["--v=2"]),
            (["token", "revoke", "x"], "token revoke", ["x"]),
            (["node", "edge-1"], "node", ["edge-1"]),
            (["nodes"], "nodes", []),
        ):
            command, rest = all_commands().find(words)
            self.assertEqual((name, others), (command.name, list(rest)))

    def test_unknown(self) -> None:
        """An unknown or incomplete command is reported with a suggestion."""
        for words, sentence in (
            (["nods"], "there is no command 'nods': did you mean nodes?"),
            (["frobnicate"], "there is no command 'frobnicate': yurttunnel --help lists"),
            (["get", "nodes"], "there is no command 'get': yurttunnel --help lists"),
            (["forward"], "forward is the beginning of a command: forward add|rm|ls"),
            (["token", "delete"], "token is the beginning of a command: token create|list|revoke"),
            (["forward", "ad"], "there is no command 'forward ad': did you mean forward add?"),
            (
                ["--state-dir", "S", "nodes"],
                "--state-dir is before the command: flags come after it, COMMAND --state-dir",
            ),
        ):
            error = self.assertRaises(UnknownCommand, all_commands().find, words)
            self.assertIn(sentence, str(error))

    def test_every_command_has_help(self) -> None:
        """Each command has a summary, and its help names each of its flags."""
        for command in all_commands().each():
            self.assertTrue(command.text)
            options = command.options()
            text = options.help().full(100)
            for entry in options.table:
                self.assertIn(f"--{entry.name}", text, command.name)


class ExampleTests(SynchronousTestCase):
    """Each command has examples."""

    def test_each_command_has_some(self) -> None:
        """Each command has one to three examples, which are valid command lines up to a | or >."""
        for commands in (all_commands(), PLUGIN_COMMANDS):
            for command in commands.each():
                options = command.options()
                self.assertIn(len(options.examples), (1, 2, 3), command.name)
                if options.is_program:
                    continue  # tests.ops.test_help covers these.
                for example in options.examples:
                    line = re.split("[|>]", example.arguments)[0]
                    made = command.options()
                    made.parseOptions(shlex.split(line))
                    self.assertIn(example.command(f"{commands.program} {command.name}"), str(made))


class OptionsTests(SynchronousTestCase):
    """Arguments and flags may be in any order."""

    def parse(self, options, *arguments: str):
        """Parse a command line."""
        options.parseOptions(list(arguments))
        return options

    def test_order(self) -> None:
        """Flags after the arguments are parsed as flags."""
        for arguments in (
            ("id", "-o", "json"),
            ("-o", "json", "id"),
            ("--output=json", "id"),
            ("-ojson", "--", "id"),
            ("id", "-o=json"),
        ):
            options = self.parse(RevokeOptions({}), *arguments)
            self.assertEqual((("id",), True), (options.positionals, options.as_json))

    def test_dashes(self) -> None:
        """After two dashes, a word that begins with a dash is an argument."""
        options = self.parse(RevokeOptions({}), "-ojson", "--", "-w")
        self.assertEqual((("-w",), True), (options.positionals, options.as_json))

    def test_short_flags(self) -> None:
        """A short flag's value may follow directly, after an equals sign or after a space."""
        for arguments, namespace, watch in (
            (("-n=x", "-w"), "x", 1),
            (("-nx",), "x", 0),
            (("-n", "x", "--watch"), "x", 1),
            (("-wn=x",), "x", 1),
        ):
            options = self.parse(NodesOptions({}), "--in-cluster", *arguments)
            self.assertEqual((namespace, watch), (options.value(NAMESPACE), options[WATCH.name]))
        self.assertIn("-w, --watch\n", NodesOptions({}).help().short())
        with self.assertRaisesRegex(UsageError, "^--output: '=json' is none of these"):
            self.parse(NodesOptions({}), "-o==json")

    def test_words(self) -> None:
        """Missing, superfluous and invalid arguments and values are reported."""
        for made, arguments, sentence in (
            (RevokeOptions({}), (), "^ID is missing: give it"),
            (RevokeOptions({}), ("a", "b"), "unexpected argument 'b'"),
            (
                NodesOptions({}),
                ("edge-1",),
                "^unexpected argument 'edge-1': did you mean yurttunnel node edge-1",
            ),
            (CompletionOptions({}), (), "^SHELL is missing: give bash, zsh or fish$"),
            (CompletionOptions({}), ("sh",), "^'sh' is none of these: bash, zsh, fish$"),
            (AddOptions({}), ("9000",), "^'9000' is not a forward: write LISTEN=NODE/HOST:PORT"),
            (
                AddOptions({}),
                ("http://x=e/a:80",),
                "^'http://x=e/a:80' is not a forward: 'http://x' is neither PORT \\(on the loopback"
                " address\\) nor ADDRESS:PORT; write LISTEN=NODE/HOST:PORT, as [^;]*$",
            ),
            (
                RemoveOptions({}),
                ("foo",),
                "^'foo' is neither PORT \\(on the loopback address\\) nor",
            ),
            (CreateOptions({}), ("--lifetime=400d",), "^--lifetime: '400d' is no lifetime of a"),
            (CreateOptions({}), ("--lifetime=0",), "^--lifetime: '0' .*: give one second to 365"),
            (NodesOptions({}), ("-o", "xml"), "^--output: 'xml' is none of these: text, json"),
            (NodesOptions({}), ("--namespace=a.b",), "^--namespace: 'a.b' is not the name"),
        ):
            with self.assertRaisesRegex(UsageError, sentence):
                self.parse(made, *arguments)
        self.assertEqual((), self.parse(ManOptions({})).positionals)
        self.assertEqual(("token list",), self.parse(ManOptions({}), "token", "list").positionals)
        for listen in ("9000", ":9000", "[::1]:9000"):
            self.assertEqual((listen,), self.parse(RemoveOptions({}), listen).positionals)

    def test_cluster(self) -> None:
        """A cluster is queried with --in-cluster, --kubeconfig or --context."""
        for arguments, expected in (
            ((), False),
            ((f"--{IN_CLUSTER.name}",), True),
            (("--context=c",), True),
            (("--kubeconfig=k",), True),
            # An empty value, as from an unset shell variable, selects kubectl's default context.
            (("--context=",), True),
        ):
            options = self.parse(NodesOptions({}), *arguments)
            self.assertEqual(expected, options.in_cluster)
        self.assertEqual("kube-system", options.value(NAMESPACE))
        self.assertEqual("text", options.value(OUTPUT))

    def test_usage(self) -> None:
        """The usage line has the command's arguments, with brackets around optional ones."""
        for name, words in (
            ("man", "man [COMMAND]"),
            ("completion", "completion SHELL"),
            ("node", "node NODE"),
            ("nodes", "nodes"),
        ):
            command, _ = all_commands().find([name])
            text = command.options().help().short()
            self.assertTrue(text.startswith(f"Usage: yurttunnel {words} [options]\n"), text)

    def test_empty_values(self) -> None:
        """An empty value, as from an unset shell variable, does not consume the next argument."""
        with self.assertRaisesRegex(UsageError, "^--namespace: '' is not"):
            self.parse(NodeOptions({}), "--in-cluster", "-n", "", "edge-1")
        options = self.parse(NodeOptions({}), "--context", "", "edge-1")
        self.assertEqual((("edge-1",), True), (options.positionals, options.in_cluster))

    def test_what_has_no_effect(self) -> None:
        """A flag without effect is rejected with the flag that it needs."""
        variable = {"YURTTUNNEL_STATE_DIR": "/v"}
        for made, arguments, sentence in (
            (
                NodesOptions(variable),
                ("-n", "x"),
                "^--namespace is for a cluster: add --in-cluster, or run kubectl yurttunnel nodes$",
            ),
            (NodesOptions(variable), ("--meta-port=1",), "^--meta-port is for a cluster: "),
            (
                NodesOptions(variable),
                ("--in-cluster", "--state-dir=S"),
                "^--state-dir has no effect in a cluster, .*: leave it out$",
            ),
            (
                LogsLevelOptions(variable),
                ("--for=3",),
                "^--for has no effect without --set LEVEL: add it$",
            ),
        ):
            made.invocation = "yurttunnel nodes"
            with self.assertRaisesRegex(UsageError, sentence):
                self.parse(made, *arguments)
        self.assertTrue(self.parse(NodesOptions(variable), "--in-cluster", "-n=x").in_cluster)

    def test_directory(self) -> None:
        """The state directory comes from the flag or else the variable; the default is none."""
        variable = {"YURTTUNNEL_STATE_DIR": "/v"}
        for environment, arguments, expected in (
            ({}, (), "None"),
            (variable, (), "/v"),
            (variable, ("--state-dir=/f",), "/f"),
        ):
            options = self.parse(NodesOptions(environment), *arguments)
            self.assertEqual(expected, str(options.state_dir))


class LogsLevelTests(SynchronousTestCase):
    """Which process's log level is shown or changed."""

    def test_the_directory_of_another_program(self) -> None:
        """The variable's directory is rejected if --program names another program."""
        variable = {"YURTTUNNEL_STATE_DIR": "/server"}
        self.patch(logs, "program_of", lambda process: process.path.parent.name)
        for arguments, program in ((("--program=server",), "server"), ((), "agent")):
            options = LogsLevelOptions(variable)
            options.parseOptions(arguments)
            self.assertEqual("/server", str(options.process(program).path.parent))
        options = LogsLevelOptions(variable)
        options.parseOptions(["--program=agent", "--set=debug"])
        with self.assertRaisesRegex(CommandFailed, "^the process in /server is the server, but"):
            options.process("agent")


class OwnArgumentsTests(SynchronousTestCase):
    """The flags on a process's own command line."""

    def test_each_form(self) -> None:
        """The flags follow the program's name, however the process was started."""
        for line in (
            ["python", "/opt/bin/twist", "--log-level=warn", "yurttunnel-server", "--v=1"],
            ["python", "/opt/bin/yurttunnel", "server", "--v=1"],
            ["python", "-m", "yurttunnel.cli", "server", "--v=1"],
        ):
            self.assertEqual(["--v=1"], list(own_arguments("server", line)))
        line = ["python", "/opt/bin/yurttunnel", "quickstart"]
        error = self.assertRaises(CommandFailed, own_arguments, "server", line)
        self.assertIn(
            "as the program server: if it is another program, give --program",
            str(error),
        )
