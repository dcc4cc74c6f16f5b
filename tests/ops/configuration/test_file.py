"""The valid content of the file of ``--config``, and the errors for invalid content."""

from __future__ import annotations

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from tests.ops.configuration.program import TABLE, ConfigurationFile
from yurttunnel.ops.configuration.file import MAX_BYTES, read_file


class FileTests(ConfigurationFile, SynchronousTestCase):
    """``read_file`` returns values as the texts of the corresponding flags."""

    def read(self, text):
        """Return the texts in a file by key."""
        self.write(text)
        return {name: value.texts for name, value in read_file(self.path, TABLE).items()}

    def problem(self, text):
        """Return the error about a file, without the file's name."""
        self.write(text)
        error = self.assertRaises(UsageError, read_file, self.path, TABLE)
        name, sentence = str(error).split(": ", 1)
        self.assertEqual(str(self.path), name)
        self.assertNotIn("\n", sentence)
        return sentence

    def test_each_kind_of_flag(self):
        """Strings and numbers, arrays for repeated flags, and booleans for switches."""
        self.assertEqual({}, self.read("# nothing\n"))
        self.assertEqual(
            {
                "node-name": ("edge-1",),
                "resume-window": ("1m",),
                "even": ("false",),
                "target": ("a", "192.0.2.1"),
                "standalone": ("true",),
            },
            self.read(
                'node-name = "edge-1"  # a comment\n"resume-window" = "1m"\neven = false\n'
                'target = [\n  "a",\n  "192.0.2.1",\n]\nstandalone = true\n'
            ),
        )
        self.assertEqual({"resume-window": ("30",)}, self.read("resume-window = 30"))
        self.assertEqual({"resume-window": ("2.5",)}, self.read("resume-window = 2.5"))
        self.assertEqual(
            {"target": (), "standalone": ("false",)}, self.read("target = []\nstandalone = false")
        )

    def test_byte_order_mark(self):
        """A byte order mark at the beginning, as Windows editors write it, is ignored."""
        self.assertEqual({"node-name": ("edge-1",)}, self.read("\ufeffnode-name = 'edge-1'\n"))
        self.assertIn("it is empty", self.problem("\ufeff\n"))

    def test_source_of_a_value(self):
        """Messages name the file and the key."""
        self.write('node-name = "x"')
        self.assertEqual(f"{self.path}: node-name", read_file(self.path, TABLE)["node-name"].source)

    def test_unknown_keys(self):
        """The error suggests a similar key; tables are keys, too, and --config is not one."""
        for text, expected in {
            'node-nam = "x"': "node-nam: unknown key: did you mean node-name?",
            'node_name = "x"': "node_name: unknown key: did you mean node-name?",
            "frob = 1": "frob: unknown key: keys are the names of the flags",
            '"fr\\nob" = 1': '"fr\\nob": unknown key: keys are the names of the flags',
            "[frontend]\na = 1": "frontend: unknown key: keys are the names of the flags",
            'config = "x"': "config: unknown key: a file cannot name another one",
            'confg = "x"': "confg: unknown key: keys are the names of the flags",
        }.items():
            self.assertEqual(expected, self.problem(text))

    def test_wrong_types(self):
        """The error names the key and the expected type."""
        for text, expected in {
            "node-name = []": "node-name: write one text or number, not an array",
            'node-name = {a = "b"}': "node-name: write one text or number, not a table",
            "node-name = 2026-11-23": "node-name: write one text or number, not a date or time",
            'standalone = "yes"': "standalone: write true or false, not a text",
            f"node-name = 0x{'f' * 5000}": (
                "node-name: write one text or number, not a number of more than 64 bits"
            ),
            r'node-name = "a\u0000b"': (
                "node-name: write one text or number, not a text with a zero byte"
            ),
            "standalone = 1": "standalone: write true or false, not a number",
            'target = "a"': 'target: write an array of texts, as target = ["..."], not a text',
            "target = [[1]]": (
                'target: write an array of texts, as target = ["..."], not such an array'
            ),
        }.items():
            self.assertEqual(expected, self.problem(text))

    def test_invalid_files(self):
        """The error has the position of the syntax error, or why the file is unreadable."""
        sentence = self.problem("v = 1\nnode-name = edge-1")
        self.assertEqual("it is not TOML: Invalid value (at line 2, column 13)", sentence)
        self.assertIn("Cannot overwrite a value", self.problem("v = 1\nv = 2"))
        self.assertEqual(
            f"it cannot be read: it is longer than {MAX_BYTES} bytes",
            self.problem("#" * (MAX_BYTES + 1)),
        )
        self.assertIn("it is not TOML", self.problem("a = " + "[" * 50_000))
        self.assertIn("it is not TOML", self.problem("a = " + "1" * 5_000))
        self.path.write_bytes(b"a = '\xff'")
        error = self.assertRaises(UsageError, read_file, self.path, TABLE)
        self.assertEqual(f"{self.path}: it is not UTF-8 from byte 5 on", str(error))
        self.path.unlink()
        error = self.assertRaises(UsageError, read_file, self.path, TABLE)
        self.assertEqual(f"{self.path}: it cannot be read: No such file or directory", str(error))
