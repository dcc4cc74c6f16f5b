"""The precedence of flag, environment, file and default."""

from __future__ import annotations

from twisted.logger import capturedLogs, formatEvent
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.configuration.program import ConfigurationFile, Options, Settings


class PrecedenceTests(ConfigurationFile, SynchronousTestCase):
    """``CommandOptions`` uses the sources in their order of precedence."""

    def parse(self, *arguments, file=None, **variables):
        """Return the settings."""
        options = Options(variables)
        if file is not None:
            self.write(file)
            arguments = (f"--config={self.path}", *arguments)
        options.parseOptions(arguments)
        return options.settings

    def problem(self, *arguments, **sources):
        """Return the error."""
        error = self.assertRaises(UsageError, self.parse, *arguments, **sources)
        return str(error).replace(str(self.path), "FILE")

    def test_flags_take_precedence(self):
        """Each source applies to values that no earlier source sets."""
        file = 'node-name = "of-file"\nresume-window = 3\neven = false'
        variables = {"YURTTUNNEL_NODE_NAME": "of-environment", "YURTTUNNEL_RESUME_WINDOW": "2"}
        flags = ("--node-name=of-flag",)
        expected = Settings("of-flag", 2.0, False, (), False)
        self.assertEqual(expected, self.parse(*flags, file=file, **variables))
        self.assertEqual("of-environment", self.parse(file=file, **variables).name)
        self.assertEqual("of-file", self.parse(file=file).name)
        self.assertEqual(3.0, self.parse(file=file).window)
        self.assertEqual(30.0, self.parse(*flags).window)

    def test_a_flag_with_its_default_value(self):
        """A flag with its default value takes precedence over the file."""
        name = "--node-name=a"
        self.assertEqual(
            30.0, self.parse(name, "--resume-window=30", file="resume-window = 3").window
        )

    def test_repeated_flags(self):
        """All values come from one source; in a variable semicolons or line ends separate them."""
        name, file = "--node-name=a", 'target = ["c", "d"]'
        variable = {"YURTTUNNEL_TARGET": "x; y\nz\n"}
        self.assertEqual(("c", "d"), self.parse(name, file=file).targets)
        self.assertEqual(("x", "y", "z"), self.parse(name, file=file, **variable).targets)
        flags = ("--target=a", "--target=b")
        self.assertEqual(("a", "b"), self.parse(name, *flags, file=file, **variable).targets)

    def test_switches(self):
        """A variable can disable a switch that the file enables."""
        name, file = "--node-name=a", "standalone = true"
        self.assertTrue(self.parse(name, file=file).alone)
        self.assertFalse(self.parse(name, file=file, YURTTUNNEL_STANDALONE="false").alone)
        self.assertTrue(self.parse(name, YURTTUNNEL_STANDALONE="1").alone)
        self.assertTrue(self.parse(name, "--standalone", YURTTUNNEL_STANDALONE="0").alone)
        self.assertFalse(self.parse(name, YURTTUNNEL_STANDALONE="").alone)

    def test_blank_variables(self):
        """A variable without a value for a repeatable flag is unset, and the file applies."""
        for blank in (" ", "\n", " ; "):
            settings = self.parse("--node-name=a", file='target = ["b"]', YURTTUNNEL_TARGET=blank)
            self.assertEqual(("b",), settings.targets)

    def test_the_older_variable_of_a_flag(self):
        """It comes after the variable that each flag has, and before the file."""
        both = {"NODE_NAME": "older", "YURTTUNNEL_NODE_NAME": "newer"}
        self.assertEqual("newer", self.parse(**both).name)
        self.assertEqual("older", self.parse(NODE_NAME="older", file='node-name = "x"').name)

    def test_the_file_can_be_named_by_a_variable(self):
        """As in the manifest of a container."""
        self.write('node-name = "of-file"')
        self.assertEqual("of-file", self.parse(YURTTUNNEL_CONFIG=str(self.path)).name)

    def test_mistyped_variables(self):
        """A variable similar to a flag's is reported; others, and those of Services, are not."""
        ignored = {
            "YURTTUNNEL_RESUME_WINDW": "3",
            "YURTTUNNEL_TARGETS": "c",
            "YURTTUNNEL_CONFIG_SERVICE_HOST": "10.0.0.1",
            "YURTTUNNEL_TARGET_PORT_80_TCP": "tcp://10.0.0.1:80",
            "YURTTUNNEL_SOMETHING_ELSE": "4",
        }
        with capturedLogs() as events:
            settings = self.parse("--node-name=a", **ignored)
        self.assertEqual(Settings("a", 30.0, True, (), False), settings)
        self.assertEqual(
            [
                "$YURTTUNNEL_RESUME_WINDW is ignored: did you mean $YURTTUNNEL_RESUME_WINDOW?",
                "$YURTTUNNEL_TARGETS is ignored: did you mean $YURTTUNNEL_TARGET?",
            ],
            [formatEvent(event) for event in events],
        )

    def test_messages_name_the_source(self):
        """Errors name the source of the invalid value."""
        bad, name = "'x y' is not", "--node-name=a"
        self.assertIn(f"--resume-window: {bad}", self.problem(name, "--resume-window=x y"))
        self.assertIn(
            f"$YURTTUNNEL_RESUME_WINDOW (or --resume-window): {bad}",
            self.problem(name, YURTTUNNEL_RESUME_WINDOW="x y"),
        )
        self.assertIn(
            f"FILE: resume-window: {bad}", self.problem(name, file='resume-window = "x y"')
        )
        self.assertEqual(
            "FILE: target a is given twice", self.problem(name, file='target = ["a", "a"]')
        )
        self.assertEqual(
            "--target a is given twice", self.problem(name, "--target=a", "--target=a")
        )
        self.assertEqual(
            "$YURTTUNNEL_STANDALONE (or --standalone): 'maybe' is neither true nor false",
            self.problem(name, YURTTUNNEL_STANDALONE="maybe"),
        )
        self.assertIn("--config: it is empty", self.problem(name, "--config="))
        self.path.unlink()
        self.assertEqual(
            "FILE: it cannot be read: No such file or directory",
            self.problem(name, f"--config={self.path}"),
        )

    def test_missing_required_flag(self):
        """The error names the required flag."""
        problem_text = self.problem(file="# nothing")
        self.assertEqual("--node-name is missing: give it or set NODE_NAME", problem_text)
