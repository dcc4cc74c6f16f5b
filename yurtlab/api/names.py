"""The syntax of names and labels, and kube-apiserver's messages for invalid ones.

The rules and the messages are those of k8s.io/apimachinery pkg/util/validation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from yurtlab.api.errors import Cause, invalid_value, required

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SERVICE_LABEL = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_QUALIFIED_NAME})?"

_ENDS = "and must start and end with an alphanumeric character"
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-',"
    f" {_ENDS} (e.g. 'my-name',  or '123-abc'"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-'"
    f" or '.', {_ENDS} (e.g. 'example.com'"
)
_SERVICE_LABEL_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an"
    " alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or"
    " 'abc-123'"
)
_QUALIFIED_NAME_RULE = (
    f"must consist of alphanumeric characters, '-', '_' or '.', {_ENDS}"
    " (e.g. 'MyName',  or 'my.name',  or '123-abc'"
)
_LABEL_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or"
    f" '.', {_ENDS} (e.g. 'MyValue',  or 'my_value',  or '12345'"
)

NameRule = Callable[[str], list[str]]
"""Returns the errors in a name; empty if it is valid."""


def dns_label(text: str) -> list[str]:
    """Validate a DNS label: containers, namespaces, volumes."""
    return _check(text, 63, _LABEL, _LABEL_RULE)


def dns_subdomain(text: str) -> list[str]:
    """Validate a DNS subdomain: most objects."""
    return _check(text, 253, _SUBDOMAIN, _SUBDOMAIN_RULE)


def service_name(text: str) -> list[str]:
    """Validate the name of a service, which begins with a letter."""
    return _check(text, 63, _SERVICE_LABEL, _SERVICE_LABEL_RULE)


def validate_metadata(metadata: dict[str, Any], rule: NameRule) -> list[Cause]:
    """Validate the metadata of a new object, whose name must follow ``rule``."""
    causes: list[Cause] = []
    name, base = metadata.get("name"), metadata.get("generateName")
    if name:
        causes += [invalid_value("metadata.name", name, problem) for problem in rule(name)]
    elif base:
        # The generated name ends with a letter or a digit.
        problems = rule(base.rstrip("-.") or base)
        causes += [invalid_value("metadata.generateName", base, problem) for problem in problems]
    else:
        causes.append(required("metadata.name", "name or generateName is required"))
    return causes + validate_labels(metadata)


def validate_labels(metadata: dict[str, Any]) -> list[Cause]:
    """Validate labels and the names of annotations."""
    causes: list[Cause] = []
    for key, value in (metadata.get("labels") or {}).items():
        causes += [invalid_value("metadata.labels", key, one) for one in _qualified_name(key)]
        causes += [invalid_value("metadata.labels", value, one) for one in _label_value(value)]
    for key in metadata.get("annotations") or {}:
        problems = _qualified_name(key.lower())
        causes += [invalid_value("metadata.annotations", key, one) for one in problems]
    return causes


def _check(text: str, longest: int, pattern: str, problem: str) -> list[str]:
    """Return the errors; ``problem`` ends with examples, which the pattern follows."""
    problems = []
    if len(text) > longest:
        problems.append(f"must be no more than {longest} characters")
    if not re.fullmatch(pattern, text):
        problems.append(f"{problem}, regex used for validation is '{pattern}')")
    return problems


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if slash and not prefix:
        return ["prefix part must be non-empty"]
    problems = [f"prefix part {one}" for one in dns_subdomain(prefix)] if slash else []
    named = _check(name, 63, _QUALIFIED_NAME, _QUALIFIED_NAME_RULE)
    return problems + [f"name part {one}" for one in named]


def _label_value(text: str) -> list[str]:
    return _check(text, 63, _LABEL_VALUE, _LABEL_VALUE_RULE)
