"""``yurttunnel completion``: scripts for shells to complete commands, flags and their values.

They are generated from the tables of flags; completing a word runs no command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from yurttunnel.ops.flag_table import Entry, Flag, Switch, spellings
from yurttunnel.ops.flags import OneOf


class CommandTables(NamedTuple):
    """The description of a command; ``choices`` are the values of its first argument."""

    text: str
    table: Sequence[Entry]
    choices: Sequence[str] = ()


Tables = Mapping[str, CommandTables]
"""Commands by name."""

_HELP = "help"

_BEFORE_NAMES = (_HELP, "man")
"""The words that can precede the name of a command."""

_COMMON_FLAGS = {"--help": "Show help with examples", "--version": "Show the installed version"}
"""What can replace a command; the first is also a flag of each command."""


def bash(commands: Tables) -> str:
    """Return the script for bash; ``complete -o default`` falls back to file names."""
    seconds = _second_words(commands)
    cases = "".join(_case(name, each) for name, each in commands.items())
    two_word_cases = "".join(
        f'        {word}) offered="{others}" ;;\n' for word, others in seconds.items()
    )
    return f"""\
# Completion of yurttunnel in bash: source <(yurttunnel completion bash)
_yurttunnel() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local first=1 command= offered= flags=
    # The equals sign of --flag=value is a word of its own.
    if [ "$current" = "=" ]; then
        current=
    elif [ "$previous" = "=" ]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    case "${{COMP_WORDS[1]}}" in
    {"|".join(_BEFORE_NAMES)})
        [ "$COMP_CWORD" -eq 1 ] || first=2
        ;;
    esac
    command="${{COMP_WORDS[first]}}"
    case "$command" in
    {"|".join(seconds)})
        command="$command ${{COMP_WORDS[first+1]}}"
        ;;
    esac
    if [ "$COMP_CWORD" -eq "$first" ]; then
        offered="{" ".join(_first_words(commands))}"
        flags="{" ".join(_COMMON_FLAGS)}"
    elif [ "$COMP_CWORD" -eq $((first + 1)) ] && [ "$command" != "${{COMP_WORDS[first]}}" ]; then
        case "${{COMP_WORDS[first]}}" in
{two_word_cases}        esac
    elif [ "$first" -eq 1 ]; then
        case "$command" in
{cases}        esac
    fi
    case "$current" in
    -*) offered="$flags" ;;
    *) offered="${{offered:-$flags}}" ;;
    esac
    COMPREPLY=($(compgen -W "$offered" -- "$current"))
}}
complete -o default -F _yurttunnel yurttunnel
"""


def _case(name: str, command: CommandTables) -> str:
    """Return the completions after a command: its arguments and flags, or a flag's values."""
    flags = " ".join([*(f"--{entry.name}" for entry in command.table), "--help"])
    by_values: dict[str, list[str]] = {}
    for entry in command.table:
        values = _values(entry)
        if values is not None:
            by_values.setdefault(" ".join(values), []).extend(spellings(entry))
    cases = "".join(
        f'            {"|".join(spellings)}) offered="{values}" flags= ;;\n'
        for values, spellings in by_values.items()
    )
    of_flags = f'            case "$previous" in\n{cases}            esac\n' if cases else ""
    return (
        f'        "{name}")\n'
        f'            offered="{" ".join(command.choices)}" flags="{flags}"\n'
        f"{of_flags}            ;;\n"
    )


def zsh(commands: Tables) -> str:
    """Return the script for zsh, which uses those of bash.

    It also works as a file ``_yurttunnel`` in ``fpath``: zsh runs that as the function the first
    time, and it must complete then, too.
    """
    return (
        "#compdef yurttunnel\n"
        "# Completion of yurttunnel in zsh: source <(yurttunnel completion zsh)\n"
        "(( $+functions[compdef] )) || { autoload -U compinit && compinit }\n"
        "autoload -U +X bashcompinit && bashcompinit\n"
        f"{bash(commands)}"
        "[[ $funcstack[1] != _yurttunnel ]] || _bash_complete -o default -F _yurttunnel\n"
    )


_FISH = """\
# Completion of yurttunnel in fish: yurttunnel completion fish | source
function __yurttunnel_begins -d 'Whether the line begins with these words behind the first one'
    set -l words (commandline -opc)
    set -e words[1]
    set -l last (count $argv)
    test "$words[1..$last]" = "$argv"
end"""


def fish(commands: Tables) -> str:
    """Return the script for fish."""
    lines = [_FISH]
    seconds = _second_words(commands)
    known = _first_words(commands)
    lines += (_fish("__fish_use_subcommand", f"-a {first}") for first in (*seconds, _HELP))
    lines += (
        _fish("__fish_use_subcommand", f"-l {flag[2:]} -d {_single(text)}")
        for flag, text in _COMMON_FLAGS.items()
    )
    named = [each for each in known if each not in _BEFORE_NAMES]
    lines.append(_fish(_between(" ".join(_BEFORE_NAMES), named), f"-a {_single(' '.join(known))}"))
    for name, (text, table, choices) in commands.items():
        first, _, other = name.partition(" ")
        condition = "__fish_use_subcommand"
        if other:
            condition = _between(first, seconds[first].split())
        lines.append(_fish(condition, f"-a {other or first} -d {_single(text)}"))
        if choices:
            lines.append(_fish(_between(first, choices), f"-a {_single(' '.join(choices))}"))
        # A flag's value may equal the name of a command.
        begins = f"__yurttunnel_begins {name}"
        lines += (
            f"complete -c yurttunnel -n {_single(begins)} {_fish_flag(each)}" for each in table
        )
        lines.append(_fish(begins, f"-l help -d {_single(_COMMON_FLAGS['--help'])}"))
    return "\n".join(lines) + "\n"


def _between(first: str, others: Sequence[str]) -> str:
    """Return the condition of fish for completing the second word after a first one."""
    missing = f"not __fish_seen_subcommand_from {' '.join(others)}"
    return f"__fish_seen_subcommand_from {first}; and {missing}"


def _fish(condition: str, what: str) -> str:
    """Return the line that completes a word, without file names."""
    return f"complete -c yurttunnel -f -n {_single(condition)} {what}"


def _fish_flag(entry: Entry) -> str:
    parts = [f"-{'s' if len(each) == 2 else 'l'} {each.lstrip('-')}" for each in spellings(entry)]
    values = _values(entry)
    if values:
        parts.append(f"-x -a {_single(' '.join(values))}")
    elif values is not None:
        parts.append("-r")
    return " ".join([*parts, "-d", _single(_sentence(entry.text))])


SHELLS: Mapping[str, Callable[[Tables], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


_NO_FILES = ":4"
"""The last line for kubectl, which disables file names
(``ShellCompDirectiveNoFileComp`` of github.com/spf13/cobra)."""


def for_kubectl(commands: Tables, words: Sequence[str]) -> str:
    """Return the completions of the last of the words after ``kubectl yurttunnel``, a line each.

    They are the output of ``kubectl_complete-yurttunnel`` (KEP-2379, "Shell Completion Support").
    """
    *before, current = words or ("",)
    found = [
        f"{word}\t{text}"
        for word, text in _next_words(commands, before)
        # Flags are only offered after a dash, as by kubectl's own commands.
        if word.startswith(current) and (current or word[0] != "-")
    ]
    return "\n".join([*found, _NO_FILES, ""])


def _next_words(commands: Tables, before: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what can follow these words, each with a description."""
    seconds = _second_words(commands)
    if not before or tuple(before) == (_HELP,):
        yield from ((first, "") for first in (*seconds, _HELP))
        yield from ((name, each.text) for name, each in commands.items() if " " not in name)
        yield from _COMMON_FLAGS.items()
    elif before[0] in seconds and len(before) == 1:
        for name, each in commands.items():
            first, _, other = name.partition(" ")
            if first == before[0]:
                yield other, each.text
    elif command := commands.get(" ".join(before[: 2 if before[0] in seconds else 1])):
        yield from _flag_values(command, before[-1])


def _flag_values(command: CommandTables, previous: str) -> Iterator[tuple[str, str]]:
    """Yield the arguments and flags of a command, or the values of the preceding flag."""
    for entry in command.table:
        values = _values(entry)
        if values is not None and previous in spellings(entry):
            yield from ((value, "") for value in values)
            return
    yield from ((choice, "") for choice in command.choices)
    yield from ((f"--{entry.name}", _sentence(entry.text)) for entry in command.table)
    yield "--help", _COMMON_FLAGS["--help"]


def _first_words(commands: Iterable[str]) -> list[str]:
    return [*dict.fromkeys(name.split()[0] for name in commands), _HELP]


def _second_words(commands: Iterable[str]) -> dict[str, str]:
    """Return the second words of two-word commands by first word, separated by spaces."""
    found: dict[str, str] = {}
    for name in commands:
        first, space, other = name.partition(" ")
        if space:
            found[first] = f"{found.get(first, '')} {other}".strip()
    return found


def _values(entry: Entry) -> Sequence[str] | None:
    """Return the possible values of a flag; empty if any value is allowed.

    Returns ``None`` for a flag without a value, or with one only after an equals sign.
    """
    if isinstance(entry, Switch) or (isinstance(entry, Flag) and entry.stands_alone):
        return None
    return entry.parse.choices if isinstance(entry.parse, OneOf) else ()


def _sentence(text: str) -> str:
    """Return the first sentence: there is room for one line."""
    return text.partition(". ")[0].partition(": ")[0].rstrip(".")


def _single(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
