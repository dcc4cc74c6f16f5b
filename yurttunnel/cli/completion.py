"""``yurttunnel completion``: scripts by which shells complete commands and flags.

They are made from the tables of flags, and ask nobody when a key is pressed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from yurttunnel.ops.flag_table import Entry, Switch

Tables = Mapping[str, tuple[str, Sequence[Entry]]]
"""Commands by their names: what each does, and its flags."""


def bash(commands: Tables) -> str:
    """Return the script for bash; ``complete -o default`` goes on with names of files."""
    cases = "".join(
        f'        "{name}") words="{_flags(table)}" ;;\n' for name, (_, table) in commands.items()
    )
    first = " ".join(dict.fromkeys(name.split()[0] for name in commands))
    seconds = "".join(
        f'        {word}) words="{others}" ;;\n' for word, others in _second_words(commands).items()
    )
    return f"""\
# Completion of yurttunnel in bash: source <(yurttunnel completion bash)
_yurttunnel() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words=
    case "$command" in
    {"|".join(_second_words(commands))})
        command="$command ${{COMP_WORDS[2]}}"
        ;;
    esac
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{first}"
    elif [ "$COMP_CWORD" -eq 2 ] && [ "$command" != "${{COMP_WORDS[1]}}" ]; then
        case "${{COMP_WORDS[1]}}" in
{seconds}        esac
    else
        case "$command" in
{cases}        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _yurttunnel yurttunnel
"""


def zsh(commands: Tables) -> str:
    """Return the script for zsh, which takes those of bash.

    It serves as a file named ``_yurttunnel`` in ``fpath`` as well: that is run as the function
    the first time, and completes then, too.
    """
    return (
        "#compdef yurttunnel\n"
        "# Completion of yurttunnel in zsh: source <(yurttunnel completion zsh)\n"
        "(( $+functions[compdef] )) || { autoload -U compinit && compinit }\n"
        "autoload -U +X bashcompinit && bashcompinit\n"
        f"{bash(commands)}"
        "[[ $funcstack[1] != _yurttunnel ]] || _bash_complete -o default -F _yurttunnel\n"
    )


def fish(commands: Tables) -> str:
    """Return the script for fish."""
    lines = ["# Completion of yurttunnel in fish: yurttunnel completion fish | source"]
    seconds = _second_words(commands)
    lines += (_fish("__fish_use_subcommand", f"-a {first}") for first in seconds)
    for name, (text, table) in commands.items():
        first, _, other = name.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}"
        if other:
            condition = f"{seen}; and not __fish_seen_subcommand_from {seconds[first]}"
            seen = f"{seen}; and __fish_seen_subcommand_from {other}"
        else:
            condition = "__fish_use_subcommand"
        lines.append(_fish(condition, f"-a {other or first} -d {_single(text)}"))
        for entry in table:
            value = "" if isinstance(entry, Switch) else "-r "
            flag = f"-l {entry.name} {value}-d {_single(_sentence(entry.text))}"
            lines.append(f"complete -c yurttunnel -n {_single(seen)} {flag}")
    return "\n".join(lines) + "\n"


def _fish(condition: str, what: str) -> str:
    """Return the line that offers a word, and no names of files."""
    return f"complete -c yurttunnel -f -n {_single(condition)} {what}"


SHELLS: Mapping[str, Callable[[Tables], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


_NO_FILES = ":4"
"""The last line for kubectl: names of files are none of what can follow
(``ShellCompDirectiveNoFileComp`` of github.com/spf13/cobra)."""


def for_kubectl(commands: Tables, words: Sequence[str]) -> str:
    """Return what can be the last one of the words behind ``kubectl yurttunnel``, a line each.

    It is what ``kubectl_complete-yurttunnel`` prints (KEP-2379, "Shell Completion Support").
    """
    *before, current = words or ("",)
    found = [
        f"{word}\t{text}"
        for word, text in _following(commands, before)
        # A flag is offered, as by kubectl's own commands, once there is a dash.
        if word.startswith(current) and (current or word[0] != "-")
    ]
    return "\n".join([*found, _NO_FILES, ""])


def _following(commands: Tables, before: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what can stand behind these words, each with what it is about."""
    seconds = _second_words(commands)
    if not before:
        yield from ((first, "") for first in seconds)
        yield from ((name, text) for name, (text, _) in commands.items() if " " not in name)
    elif before[0] in seconds and len(before) == 1:
        for name, (text, _) in commands.items():
            first, _, other = name.partition(" ")
            if first == before[0]:
                yield other, text
    else:
        name = " ".join(before[: 2 if before[0] in seconds else 1])
        for entry in commands.get(name, ("", ()))[1]:
            yield f"--{entry.name}", _sentence(entry.text)


def _second_words(commands: Iterable[str]) -> dict[str, str]:
    """Return what can follow the first word of commands that have two, with spaces between."""
    found: dict[str, str] = {}
    for name in commands:
        first, space, other = name.partition(" ")
        if space:
            found[first] = f"{found.get(first, '')} {other}".strip()
    return found


def _flags(table: Sequence[Entry]) -> str:
    return " ".join([*(f"--{entry.name}" for entry in table), "--help"])


def _sentence(text: str) -> str:
    """Return the first sentence: there is one line."""
    return text.partition(". ")[0].partition(": ")[0].rstrip(".")


def _single(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
