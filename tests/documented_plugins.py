"""Plugins that a page of the documentation has as examples, saved where it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from twisted.plugin import pluginPackagePaths

from twisted import plugins

DOCS = Path(__file__).parents[1] / "docs"


def install_example(case, page, number=0):
    """Have Twisted find an example for as long as a test takes; return the text of the page."""
    text = (DOCS / page).read_text("utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[number]
    path = re.findall(r"Save it as `plugins/(\S+\.py)`", text)[number]
    folder = Path(case.mktemp()).absolute()
    file = folder / path
    file.parent.mkdir(parents=True)
    file.write_text(code, "utf-8")
    # As the package does when it is imported, with PYTHONPATH as the text says.
    case.patch(sys, "path", [str(folder), *sys.path])
    found = pluginPackagePaths(plugins.__name__)
    case.patch(plugins, "__path__", [*plugins.__path__, *found])
    case.addCleanup(_forget, file.stem)
    return text


def _forget(module):
    """Leave nothing of the plugin to other tests."""
    del sys.modules[f"{plugins.__name__}.{module}"]
    delattr(plugins, module)
