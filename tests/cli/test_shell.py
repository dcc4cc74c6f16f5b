"""Completion scripts in real shells, and manual pages."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from yurttunnel.cli import completion, manual
from yurttunnel.cli.commands import all_commands
from yurttunnel.cli.completion import CommandTables
from yurttunnel.cli.shell import tables
from yurttunnel.ops.flag_table import Flag, Group, Switch
from yurttunnel.ops.flags import one_of
from yurttunnel.ops.help import Example

ROOT = Path(__file__).parents[2]

TABLE = (
    Flag("state-dir", Group.BASICS, str, "Where it's kept: a directory. And more."),
    Switch("watch", Group.LIMITS, "Go on."),
    Flag("output", Group.BASICS, one_of("text", "json"), "What is printed.", short="o"),
)
EXAMPLES = (Example("At once", "--lifetime 1h"),)
COMMANDS = {
    "server": CommandTables("the cloud end", TABLE),
    "token create": CommandTables("make one", TABLE[:1]),
    "token list": CommandTables("list them", ()),
    "completion": CommandTables("complete", (), ("bash", "fish")),
    "man": CommandTables("a page", ()),
}
NAMES = {"server", "token", "completion", "man", "help"}


def every():
    """Return the tables of all real commands."""
    return tables(all_commands().each())


def run(shell: str, script: str, *arguments: str) -> str:
    """Run a script in a shell, or skip the test without the shell."""
    path = shutil.which(shell)
    if path is None:
        raise SkipTest(f"{shell} is not installed")
    ended = subprocess.run(
        [path, *arguments], input=script, capture_output=True, text=True, timeout=60
    )
    if ended.returncode or ended.stderr:
        raise AssertionError(ended.stderr)
    return ended.stdout


class BashTests(SynchronousTestCase):
    """Completion in bash."""

    def completed(self, *words: str) -> set[str]:
        """Return the completions of the last word."""
        line = " ".join(f"'{word}'" for word in ("yurttunnel", *words))
        script = (
            f"{completion.bash(COMMANDS)}\nCOMP_WORDS=({line}) COMP_CWORD={len(words)}\n"
            '_yurttunnel\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        return set(run("bash", script, "--norc").split())

    def test_commands(self) -> None:
        """The first word, and the second of some commands, is completed with command names."""
        self.assertEqual(NAMES, self.completed(""))
        self.assertEqual({"token"}, self.completed("to"))
        self.assertEqual({"create", "list"}, self.completed("token", ""))

    def test_flags(self) -> None:
        """After a command its own flags are completed."""
        flags = {"--state-dir", "--watch", "--output", "--help"}
        self.assertEqual(flags, self.completed("server", "--"))
        self.assertEqual({"--help", "--version"}, self.completed("-"))
        self.assertEqual({"--state-dir"}, self.completed("token", "create", "--s"))
        self.assertEqual({"--help"}, self.completed("token", "list", "-"))
        self.assertEqual(set(), self.completed("unknown", "--"))

    def test_values(self) -> None:
        """A flag or argument with fixed values is completed with them."""
        for flag in (["--output"], ["-o"], ["--output", "="]):
            self.assertEqual({"text", "json"}, self.completed("server", *flag, ""))
        self.assertEqual({"text", "json"}, self.completed("server", "--output", "="))
        self.assertEqual({"json"}, self.completed("server", "--output", "j"))
        self.assertEqual({"bash", "fish"}, self.completed("completion", ""))
        self.assertEqual({"--help"}, self.completed("completion", "-"))
        # Other values may be file names, which bash completes.
        self.assertEqual(set(), self.completed("server", "--state-dir", ""))

    def test_names(self) -> None:
        """``man`` and ``help`` are completed with command names and not with flags."""
        for word in ("man", "help"):
            self.assertEqual(NAMES, self.completed(word, ""))
            self.assertEqual({"create", "list"}, self.completed(word, "token", ""))
            self.assertEqual(set(), self.completed(word, "server", "--"))

    def test_every_command(self) -> None:
        """The script for all real commands is valid in bash."""
        run("bash", f"{completion.bash(every())}\ncomplete -p yurttunnel >/dev/null", "--norc")


class KubectlTests(SynchronousTestCase):
    """Completion in kubectl, which runs ``kubectl_complete-yurttunnel``."""

    def offered(self, *words: str) -> list[str]:
        """Return the completions of the last word, without the final directive."""
        *lines, end = completion.for_kubectl(COMMANDS, words).splitlines()
        self.assertEqual(":4", end)
        return lines

    def test_commands(self) -> None:
        """Command names are completed with their descriptions."""
        commands = ["token\t", "help\t", "server\tthe cloud end", "completion\tcomplete"]
        self.assertEqual([*commands, "man\ta page"], self.offered(""))
        self.assertEqual([*commands, "man\ta page"], self.offered("help", ""))
        self.assertEqual(["server\tthe cloud end"], self.offered("s"))
        self.assertEqual(["create\tmake one", "list\tlist them"], self.offered("token", ""))
        self.assertEqual([], self.offered("unknown", ""))

    def test_flags(self) -> None:
        """Flags are completed with the first sentences of their descriptions."""
        self.assertEqual(["--watch\tGo on"], self.offered("server", "--w"))
        flags = ["--state-dir\tWhere it's kept", "--help\tShow help with examples"]
        self.assertEqual(flags, self.offered("token", "create", "-"))
        self.assertEqual([], self.offered("server", ""))
        self.assertEqual(
            ["--help", "--version"], [each.split("\t")[0] for each in self.offered("-")]
        )
        self.assertIn("--help\tShow help with examples", self.offered("server", "--"))

    def test_values(self) -> None:
        """A flag or argument with fixed values is completed with them."""
        for flag in ("--output", "-o"):
            self.assertEqual(["text\t", "json\t"], self.offered("server", flag, ""))
        self.assertEqual([], self.offered("server", "--state-dir", ""))
        self.assertEqual(["fish\t"], self.offered("completion", "f"))

    def test_no_word(self) -> None:
        """No word is the same as an empty word."""
        self.assertEqual(
            completion.for_kubectl(COMMANDS, [""]), completion.for_kubectl(COMMANDS, [])
        )


ZSH = r"""
zmodload zsh/zpty
zpty shell "ZDOTDIR=$ZDOTDIR zsh -d -i"
zpty -r shell shown "*ready*"
for words in "$@"; do
    zpty -w -n shell "$words"$'\t\x18'
    zpty -r shell shown "*<*>*"
    print -r -- ${${shown##*<}%%>*}
done
"""
"""Types words and a tab into zsh on a terminal, and prints the resulting command line."""

ZSHRC = r"""
PS1=ready
show() { print -r -- "<$BUFFER>"; BUFFER= }
zle -N show
bindkey '^X' show
"""


class ZshTests(SynchronousTestCase):
    """Completion in zsh, on a terminal."""

    def completed(self, setup: str, *typed: str) -> list[str]:
        """Return the completed command lines, with ``setup`` at the end of ``.zshrc``."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        (directory / "_yurttunnel").write_text(completion.zsh(COMMANDS))
        rc = setup.replace("DIRECTORY", str(directory))
        (directory / ".zshrc").write_text(ZSHRC + rc)
        shown = run("zsh", f"ZDOTDIR={directory}\n{ZSH}", "-f", "-s", *typed)
        return shown.splitlines()

    def test_sourced(self) -> None:
        """The sourced script completes commands and flags, also if completion was not enabled."""
        typed = ("yurttunnel tok", "yurttunnel token cr", "yurttunnel server --st")
        complete_lines = [
            "yurttunnel token ",
            "yurttunnel token create ",
            "yurttunnel server --state-dir ",
        ]
        setups = ("", "autoload -U compinit; compinit -D\n")
        for setup in setups:
            with self.subTest(setup):
                sourced = f"{setup}source DIRECTORY/_yurttunnel\n"
                self.assertEqual(complete_lines, self.completed(sourced, *typed))

    def test_values(self) -> None:
        """Values of flags, arguments with fixed values, and names after ``man`` are completed."""
        typed = ("yurttunnel server --output j", "yurttunnel completion f", "yurttunnel man to")
        complete_lines = ["yurttunnel server --output json ", "yurttunnel completion fish "]
        complete_lines.append("yurttunnel man token ")
        self.assertEqual(complete_lines, self.completed("source DIRECTORY/_yurttunnel\n", *typed))

    def test_installed(self) -> None:
        """Installed in the function path, the script works from the first completion on."""
        setup = "fpath=(DIRECTORY $fpath)\nautoload -U compinit; compinit -D\n"
        complete_lines = ["yurttunnel token ", "yurttunnel server "]
        self.assertEqual(complete_lines, self.completed(setup, "yurttunnel to", "yurttunnel se"))

    def test_nothing(self) -> None:
        """An unknown command is not completed."""
        left = self.completed("source DIRECTORY/_yurttunnel\n", "yurttunnel unknown --st")
        self.assertEqual(["yurttunnel unknown --st"], left)

    def test_every_command(self) -> None:
        """The script for all real commands is valid in zsh."""
        run("zsh", completion.zsh(every()), "-f", "-n")


class FishTests(SynchronousTestCase):
    """Completion in fish."""

    def offered(self, *words: str) -> list[str]:
        """Return the completions of the last word with their descriptions."""
        script = f"{completion.fish(COMMANDS)}\ncomplete -C 'yurttunnel {' '.join(words)}'\n"
        return run("fish", script, "--no-config").splitlines()

    def test_commands(self) -> None:
        """The first word, and the second of some commands, is completed with command names."""
        commands = ["completion\tcomplete", "help", "man\ta page", "server\tthe cloud end", "token"]
        self.assertEqual(commands, self.offered(""))
        self.assertEqual(NAMES, set(self.offered("man", "")))
        self.assertEqual(["create\tmake one", "list\tlist them"], self.offered("man", "token", ""))
        self.assertIn("--version\tShow the installed version", self.offered("--v"))
        self.assertEqual(["create\tmake one", "list\tlist them"], self.offered("token", ""))

    def test_flags(self) -> None:
        """After a command its own flags are completed with their first sentences."""
        help = "--help\tShow help with examples"
        flags = ["--output\tWhat is printed", "--state-dir\tWhere it's kept", "--watch\tGo on"]
        self.assertEqual([help, *flags], self.offered("server", "--"))
        self.assertEqual(flags[1:2], self.offered("token", "create", "--s"))
        self.assertEqual([], self.offered("unknown", "--"))
        self.assertEqual([help], self.offered("completion", "server", "--"))
        self.assertEqual([], self.offered("help", "server", "--"))

    def test_value(self) -> None:
        """A flag's value is completed with its fixed values, or else with file names."""
        for flag in (["--output", ""], ["-o", ""]):
            values = [f"{each}\tWhat is printed" for each in ("json", "text")]
            self.assertEqual(values, self.offered("server", *flag))
        self.assertEqual(["--output=json\tWhat is printed"], self.offered("server", "--output=j"))
        self.assertEqual(["bash", "fish"], self.offered("completion", ""))
        self.assertEqual(["/etc/passwd"], self.offered("server", "--state-dir", "/etc/passwd")[:1])

    def test_no_program_for_each_command(self) -> None:
        """The script counts without seq(1), which would be a slow process for each command."""
        script = f"function seq; echo run >&2; end\n{completion.fish(COMMANDS)}\n"
        self.assertIn("--watch", run("fish", f"{script}complete -C 'yurttunnel server --'\n"))

    def test_every_command(self) -> None:
        """The script for all real commands is valid in fish."""
        run("fish", completion.fish(every()), "--no-execute")


class ManualTests(SynchronousTestCase):
    """Manual pages."""

    def test_page(self) -> None:
        """A page has the name, the arguments, and the flags by group."""
        text = manual.page("token create", "make one", "Makes one.", ("NODE",), TABLE)
        self.assertIn(".TH YURTTUNNEL\\-TOKEN\\-CREATE 1", text)
        self.assertIn("yurttunnel token create NODE [flags]", text)
        self.assertLess(text.index(".SH BASICS"), text.index(".B \\-\\-state\\-dir="))
        self.assertLess(text.index(".SH LIMITS"), text.index(".B \\-\\-watch"))

    def test_examples(self) -> None:
        """Examples precede the flags, as in the help."""
        text = manual.page("token create", "make one", "Makes one.", (), TABLE, EXAMPLES)
        shown = (
            ".SH EXAMPLES\n.TP\nAt once:\n.B yurttunnel token create \\-\\-lifetime 1h\n.SH BASICS"
        )
        self.assertIn(shown, text)

    def test_no_requests(self) -> None:
        """Text that looks like a roff request is escaped."""
        text = manual.page("x", ".so /etc/passwd", "'tricky \\fB", (), ())
        self.assertIn("\n\\&'tricky \\efB\n", text)
        requests = set(re.findall(r"^[.'](\w+)", text, flags=re.MULTILINE))
        self.assertEqual({"TH", "SH"}, requests)

    def test_on_a_terminal(self) -> None:
        """On a terminal man shows the page if it is installed; otherwise the source is printed."""
        home = Path(self.mktemp()).absolute()
        home.mkdir()
        man = home / "man"
        man.write_text('#!/bin/sh\necho "man $*"\n/bin/cat\n')
        for mode, terminal, shown in (
            (0o755, True, "man -l -\n.TH YURTTUNNEL\\-NODES 1"),
            (0o755, False, ".TH YURTTUNNEL\\-NODES 1"),
            (0o644, True, ".TH YURTTUNNEL\\-NODES 1"),
        ):
            man.chmod(mode)
            ours, theirs = os.openpty() if terminal else os.pipe()
            with open(ours, "rb") as reader, open(theirs, "wb") as writer:
                ended = subprocess.run(
                    [sys.executable, "-m", "yurttunnel.cli", "man", "nodes"],
                    env={**os.environ, "PATH": str(home)}, cwd=ROOT, timeout=60,
                    stdin=subprocess.DEVNULL, stdout=writer,
                )  # fmt: skip
                text = ""
                # A terminal delivers written output with a delay.
                while len(text) < len(shown) and select.select([reader], [], [], 10)[0]:
                    text += reader.read1(65536).decode().replace("\r", "")
            self.assertEqual(0, ended.returncode)
            self.assertTrue(text.startswith(shown), text)

    def test_every_command(self) -> None:
        """The overview names each command, and groff reads each page without warnings."""
        named = manual.overview([(name, text) for name, (text, *_) in every().items()])
        for name, (text, table, _) in every().items():
            self.assertIn(f".B {name}".replace("-", "\\-"), named)
            page = manual.page(name, text, text, (), table, EXAMPLES)
            run("groff", page, "-man", "-Tascii", "-ww", "-z")
