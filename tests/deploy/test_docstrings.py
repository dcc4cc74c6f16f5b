"""Each method is documented once: in its docstring or where it is declared."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementedBy

import yurtlab
import yurttunnel


def classes() -> Iterator[type]:
    """Yield the public classes of both packages."""
    for package in (yurttunnel, yurtlab):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                module = importlib.import_module(found.name)
                for name, each in list(vars(module).items()):
                    own = inspect.isclass(each) and each.__module__ == module.__name__
                    if own and not name.startswith("_"):
                        yield each


def function_of(member: Any) -> Any:
    """Return the function of a method or a property, or None."""
    member = getattr(member, "fget", member)
    member = getattr(member, "__func__", member)
    return member if inspect.isfunction(member) else None


def is_declared(owner: type, name: str) -> bool:
    """Return whether a base class or an interface documents the method."""
    if any(name in interface.names(all=True) for interface in implementedBy(owner)):
        return True
    return any(getattr(vars(base).get(name), "__doc__", None) for base in owner.__mro__[1:-1])


class DocstringTests(SynchronousTestCase):
    """Docstrings of methods."""

    def test_each_method_is_documented_somewhere(self):
        """A public method has a docstring, or overrides or implements a documented one."""
        every = list(classes())
        self.assertGreater(len(every), 500)
        bare = [
            f"{owner.__module__}.{owner.__qualname__}.{name}"
            for owner in every
            for name, member in list(vars(owner).items())
            if not name.startswith("_")
            and (function := function_of(member)) is not None
            and not function.__doc__
            and not is_declared(owner, name)
        ]
        self.assertEqual([], bare)
