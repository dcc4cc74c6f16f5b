"""Well-formed YAML with values that do not match their tags or forms."""

MISFITS = (
    "!!timestamp foo",
    "!!bool foo",
    "!!int ''",
    "!!float x",
    "2001-99-99",
    "1" * 5000,
    "&a !!int {=: *a}",
)
"""PyYAML raises exceptions of many types for these, but none of its own."""
