"""Example plugins from a page of the documentation, saved where the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from twisted.plugin import pluginPackagePaths

from twisted import plugins

DOCS = Path(__file__).parents[1] / "docs"


def install_example(case, page, number=0):
    """Install an example for the duration of a test; return the text of the page."""
    text = (DOCS / page).read_text("utf-8")
    code = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[number]
    path = re.findall(r"Save it as `plugins/(\S+\.py)`", text)[number]
    folder = Path(case.mktemp()).absolute()
    file = folder / path
    file.parent.mkdir(parents=True)
    file.write_text(code, "utf-8")
    # As in the package's __init__, with PYTHONPATH as the page says.
    case.patch(sys, "path", [str(folder), *sys.path])
    found = pluginPackagePaths(plugins.__name__)
    case.patch(plugins, "__path__", [*plugins.__path__, *found])
    case.addCleanup(_forget, file.stem)
    return text


def _forget(module):
    """Remove the plugin, so that other tests do not see it."""
    del sys.modules[f"{plugins.__name__}.{module}"]
    delattr(plugins, module)
