"""How Sphinx makes a site of the pages, as they are in the repository: ``tox run -e docs``."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx

REPOSITORY = Path(__file__).parents[2]

project = "yurttunnel"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "deploy/**.md", "yurtlab/README.md"]
exclude_patterns = [".*", "build", "_trial_temp*"]
html_theme = "furo"
html_title = "yurttunnel"
myst_heading_anchors = 4
# The navigation has what the first page lists; the rest is found by links and by the search.
suppress_warnings = ["toc.not_included"]

_SECTION = re.compile(r"^## (.*)\n((?:(?!## ).*\n)*)", re.MULTILINE)
_ROW = re.compile(r"^\| \[[^\]]*\]\(([^)#]+\.md)", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:\s]+)\)")


def _with_pages_for_directories(app: Sphinx, name: str, source: list[str]) -> None:
    """Lead links to directories, which GitHub lists, to the pages that tell of them."""
    here = (REPOSITORY / name).parent

    def page(link: re.Match[str]) -> str:
        target = here / link[1]
        if not target.is_dir():
            return link[0]
        while not (target / "README.md").exists():
            target = target.parent
        return f"]({os.path.relpath(target / 'README.md', here)})"

    source[0] = _LINK.sub(page, source[0])


def _with_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Make the navigation of the tables of the first page: a part for each heading."""
    if name != root_doc:
        return
    seen: set[str] = set()
    for heading, text in _SECTION.findall(source[0]):
        pages = [page for page in _ROW.findall(text) if page not in seen]
        seen.update(pages)
        tree = "\n".join(pages)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{tree}\n```\n"


def _finish(app: Sphinx, error: Exception | None) -> None:
    """Copy pictures that HTML in pages names, and lead from the top of the site to page one."""
    if error is not None:
        return
    for picture in (REPOSITORY / "docs").glob("*.png"):
        shutil.copy(picture, Path(app.outdir) / "docs")
    first = '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n'
    (Path(app.outdir) / "index.html").write_text(first)


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("source-read", _with_pages_for_directories)
    app.connect("source-read", _with_navigation)
    app.connect("build-finished", _finish)
