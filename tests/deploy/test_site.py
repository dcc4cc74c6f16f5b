"""The site of the documentation, as ``tox run -e docs`` builds it."""

from __future__ import annotations

import configparser
import importlib.util
import json
import sys
from pathlib import Path

from twisted.internet import reactor
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial import unittest

from tests.deploy.rendering import REPOSITORY


def site_arguments(directory: Path) -> list[str]:
    """Return the arguments of Sphinx in tox's environment ``docs``, for a site in a directory."""
    tox = configparser.ConfigParser()
    tox.read(REPOSITORY / "tox.ini")
    [line] = tox["testenv:docs"]["commands"].splitlines()
    program, *arguments, site = line.replace("{env_tmp_dir}", str(directory)).split()
    assert (program, site) == ("sphinx-build", "build/site"), line
    return [*arguments, str(directory / "site")]


class SiteTests(unittest.TestCase):
    """The site is built from the pages in the repository."""

    timeout = 240

    if importlib.util.find_spec("sphinx") is None:
        skip = "Sphinx is not installed: pip install -e '.[docs]'"

    async def test_build(self) -> None:
        """The build has no warnings about broken links or anything else, and finds every page."""
        directory = Path(self.mktemp()).absolute()
        directory.mkdir()
        arguments = ["-m", "sphinx", *site_arguments(directory)]
        _, errors, status = await getProcessOutputAndValue(
            sys.executable, arguments, path=str(REPOSITORY), reactor=reactor
        )
        self.assertEqual((b"", 0), (errors, status))
        index = (directory / "site" / "searchindex.js").read_text()
        found = json.loads(index.removeprefix("Search.setIndex(").removesuffix(")"))
        pages = {
            str(page.relative_to(REPOSITORY).with_suffix(""))
            for page in REPOSITORY.glob("docs/**/*.md")
        }
        self.assertLessEqual(pages, {*found["docnames"]})
        self.assertTrue((directory / "site" / "index.html").exists())
