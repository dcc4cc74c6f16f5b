"""``yurttunnel man``: manual pages in roff (man(7)), generated from the tables of flags."""

from __future__ import annotations

from collections.abc import Sequence

from yurttunnel import __version__
from yurttunnel.ops.flag_table import Entry, by_group, syntax, with_default
from yurttunnel.ops.help import Example


def page(
    name: str,
    text: str,
    description: str,
    words: Sequence[str],
    table: Sequence[Entry],
    examples: Sequence[Example] = (),
) -> str:
    """Return the page of a command; ``words`` are its positional arguments."""
    title = "-".join(("yurttunnel", *name.split()))
    synopsis = " ".join(("yurttunnel", name, *words, "[flags]"))
    parts = [_head(title), *_section("NAME", f"{title} - {text}")]
    parts += _section("SYNOPSIS", synopsis)
    parts += _section("DESCRIPTION", description or text)
    if examples:
        parts.append(".SH EXAMPLES")
    for each in examples:
        command = each.command(f"yurttunnel {name}")
        parts += (".TP", _escaped(f"{each.purpose}:"), f".B {_escaped(command)}")
    for group, entries in by_group(table).items():
        parts.append(f".SH {_escaped(group.value.upper())}")
        for entry in entries:
            parts += (".TP", f".B {_escaped(syntax(entry))}", _escaped(with_default(entry)))
    parts += _section("SEE ALSO", "yurttunnel(1)")
    return "\n".join(parts) + "\n"


def overview(commands: Sequence[tuple[str, str]]) -> str:
    """Return the page of ``yurttunnel`` itself; ``commands`` are names and descriptions."""
    parts = [
        _head("yurttunnel"),
        *_section("NAME", "yurttunnel - a reverse tunnel for machines that nobody can dial"),
        *_section("SYNOPSIS", "yurttunnel COMMAND [flags]"),
        ".SH COMMANDS",
    ]
    for name, text in commands:
        parts += (".TP", f".B {_escaped(name)}", _escaped(text))
    parts += _section(
        "SEE ALSO", ", ".join(f"yurttunnel-{'-'.join(n.split())}(1)" for n, _ in commands)
    )
    return "\n".join(parts) + "\n"


def _head(title: str) -> str:
    return f'.TH {_escaped(title.upper())} 1 "" "yurttunnel {__version__}"'


def _section(heading: str, text: str) -> tuple[str, str]:
    return f".SH {heading}", _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    """Escape ``text`` for roff: hyphens, and a control character at its beginning."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
