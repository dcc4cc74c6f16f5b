"""Completion scripts in real shells, and pages of the manual."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from yurttunnel.cli import completion, manual
from yurttunnel.cli.commands import all_commands
from yurttunnel.ops.flag_table import Flag, Group, Switch
from yurttunnel.ops.help import Example

ROOT = Path(__file__).parents[2]

TABLE = (
    Flag("state-dir", Group.BASICS, str, "Where it's kept: a directory. And more."),
    Switch("watch", Group.LIMITS, "Go on."),
)
EXAMPLES = (Example("At once", "--lifetime 1h"),)
COMMANDS = {
    "server": ("the cloud end", TABLE),
    "token create": ("make one", TABLE[:1]),
    "token list": ("list them", ()),
}


def every():
    """Return the tables of the real commands."""
    return {each.name: (each.text, each.options().table) for each in all_commands().each()}


def run(shell: str, script: str, *arguments: str) -> str:
    """Run a script in a shell, if there is one."""
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
    """What bash completes."""

    def completed(self, *words: str) -> set[str]:
        """Return what it offers for the last of these words."""
        line = " ".join(f"'{word}'" for word in ("yurttunnel", *words))
        script = (
            f"{completion.bash(COMMANDS)}\nCOMP_WORDS=({line}) COMP_CWORD={len(words)}\n"
            '_yurttunnel\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        return set(run("bash", script, "--norc").split())

    def test_commands(self) -> None:
        """The first word is a command, the second one of some as well."""
        self.assertEqual({"server", "token"}, self.completed(""))
        self.assertEqual({"token"}, self.completed("to"))
        self.assertEqual({"create", "list"}, self.completed("token", ""))

    def test_flags(self) -> None:
        """What follows are the command's own flags."""
        self.assertEqual({"--state-dir", "--watch", "--help"}, self.completed("server", "--"))
        self.assertEqual({"--state-dir"}, self.completed("token", "create", "--s"))
        self.assertEqual({"--help"}, self.completed("token", "list", "-"))
        self.assertEqual(set(), self.completed("unknown", "--"))

    def test_every_command(self) -> None:
        """The script of the real commands is one that bash reads."""
        run("bash", f"{completion.bash(every())}\ncomplete -p yurttunnel >/dev/null", "--norc")


class KubectlTests(SynchronousTestCase):
    """What kubectl offers, which asks ``kubectl_complete-yurttunnel``."""

    def offered(self, *words: str) -> list[str]:
        """Return the lines for the last of these words, without the one that ends them."""
        *lines, end = completion.for_kubectl(COMMANDS, words).splitlines()
        self.assertEqual(":4", end)
        return lines

    def test_commands(self) -> None:
        """Words of commands are told with what they do."""
        self.assertEqual(["token\t", "server\tthe cloud end"], self.offered(""))
        self.assertEqual(["server\tthe cloud end"], self.offered("s"))
        self.assertEqual(["create\tmake one", "list\tlist them"], self.offered("token", ""))
        self.assertEqual([], self.offered("unknown", ""))

    def test_flags(self) -> None:
        """They are told with their first sentences."""
        self.assertEqual(["--watch\tGo on"], self.offered("server", "--w"))
        self.assertEqual(["--state-dir\tWhere it's kept"], self.offered("token", "create", "-"))
        self.assertEqual([], self.offered("server", ""))

    def test_no_word(self) -> None:
        """It is as an empty one."""
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
"""Types words and the tabulator into a zsh at a terminal, and prints what stands there then."""

ZSHRC = r"""
PS1=ready
show() { print -r -- "<$BUFFER>"; BUFFER= }
zle -N show
bindkey '^X' show
"""


class ZshTests(SynchronousTestCase):
    """What zsh completes, at a terminal."""

    def completed(self, setup: str, *typed: str) -> list[str]:
        """Return what these words have become, with these lines at the end of ``.zshrc``."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        (directory / "_yurttunnel").write_text(completion.zsh(COMMANDS))
        rc = setup.replace("DIRECTORY", str(directory))
        (directory / ".zshrc").write_text(ZSHRC + rc)
        shown = run("zsh", f"ZDOTDIR={directory}\n{ZSH}", "-f", "-s", *typed)
        return shown.splitlines()

    def test_sourced(self) -> None:
        """Commands and flags are completed, where completion was not switched on as well."""
        typed = ("yurttunnel tok", "yurttunnel token cr", "yurttunnel server --st")
        whole = ["yurttunnel token ", "yurttunnel token create ", "yurttunnel server --state-dir "]
        setups = ("", "autoload -U compinit; compinit -D\n")
        for setup in setups:
            with self.subTest(setup):
                sourced = f"{setup}source DIRECTORY/_yurttunnel\n"
                self.assertEqual(whole, self.completed(sourced, *typed))

    def test_installed(self) -> None:
        """As a file of the completion system it answers from the first time on."""
        setup = "fpath=(DIRECTORY $fpath)\nautoload -U compinit; compinit -D\n"
        whole = ["yurttunnel token ", "yurttunnel server "]
        self.assertEqual(whole, self.completed(setup, "yurttunnel to", "yurttunnel se"))

    def test_nothing(self) -> None:
        """What is no command is left as it is."""
        left = self.completed("source DIRECTORY/_yurttunnel\n", "yurttunnel unknown --st")
        self.assertEqual(["yurttunnel unknown --st"], left)

    def test_every_command(self) -> None:
        """The script of the real commands is one that zsh reads."""
        run("zsh", completion.zsh(every()), "-f", "-n")


class FishTests(SynchronousTestCase):
    """What fish offers."""

    def offered(self, *words: str) -> list[str]:
        """Return the lines for the last of these words, each with what it is about."""
        script = f"{completion.fish(COMMANDS)}\ncomplete -C 'yurttunnel {' '.join(words)}'\n"
        return run("fish", script, "--no-config").splitlines()

    def test_commands(self) -> None:
        """The first word is a command, the second one of some as well."""
        self.assertEqual(["server\tthe cloud end", "token"], self.offered(""))
        self.assertEqual(["create\tmake one", "list\tlist them"], self.offered("token", ""))

    def test_flags(self) -> None:
        """What follows are the command's own flags, with their first sentences."""
        flags = ["--state-dir\tWhere it's kept", "--watch\tGo on"]
        self.assertEqual(flags, self.offered("server", "--"))
        self.assertEqual(flags[:1], self.offered("token", "create", "--s"))
        self.assertEqual([], self.offered("unknown", "--"))

    def test_value(self) -> None:
        """A flag that has a value is followed by names of files."""
        self.assertEqual(["/etc/passwd"], self.offered("server", "--state-dir", "/etc/passwd")[:1])

    def test_every_command(self) -> None:
        """The script of the real commands is one that fish reads."""
        run("fish", completion.fish(every()), "--no-execute")


class ManualTests(SynchronousTestCase):
    """Pages of the manual."""

    def test_page(self) -> None:
        """It has the name, the arguments, and each flag below its group."""
        text = manual.page("token create", "make one", "Makes one.", ("NODE",), TABLE)
        self.assertIn(".TH YURTTUNNEL\\-TOKEN\\-CREATE 1", text)
        self.assertIn("yurttunnel token create NODE [flags]", text)
        self.assertLess(text.index(".SH BASICS"), text.index(".B \\-\\-state\\-dir="))
        self.assertLess(text.index(".SH LIMITS"), text.index(".B \\-\\-watch"))

    def test_examples(self) -> None:
        """They stand before the flags, as in the help."""
        text = manual.page("token create", "make one", "Makes one.", (), TABLE, EXAMPLES)
        shown = (
            ".SH EXAMPLES\n.TP\nAt once:\n.B yurttunnel token create \\-\\-lifetime 1h\n.SH BASICS"
        )
        self.assertIn(shown, text)

    def test_no_requests(self) -> None:
        """Text that looks like a request of roff is shown."""
        text = manual.page("x", ".so /etc/passwd", "'tricky \\fB", (), ())
        self.assertIn("\n\\&'tricky \\efB\n", text)
        requests = set(re.findall(r"^[.'](\w+)", text, flags=re.MULTILINE))
        self.assertEqual({"TH", "SH"}, requests)

    def test_on_a_terminal(self) -> None:
        """It is shown by man, where there is one; else it is printed, as into a pipe."""
        here = Path(self.mktemp()).absolute()
        here.mkdir()
        man = here / "man"
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
                    env={**os.environ, "PATH": str(here)}, cwd=ROOT, timeout=60,
                    stdin=subprocess.DEVNULL, stdout=writer,
                )  # fmt: skip
                text = reader.read1(65536).decode().replace("\r\n", "\n")
            self.assertEqual(0, ended.returncode)
            self.assertTrue(text.startswith(shown), text)

    def test_every_command(self) -> None:
        """The page of all of it names each command, and man reads each page without a word."""
        named = manual.overview([(name, text) for name, (text, _) in every().items()])
        for name, (text, table) in every().items():
            self.assertIn(f".B {name}".replace("-", "\\-"), named)
            page = manual.page(name, text, text, (), table, EXAMPLES)
            run("groff", page, "-man", "-Tascii", "-ww", "-z")
