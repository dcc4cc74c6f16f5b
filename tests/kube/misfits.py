"""YAML that is well formed, in which a value is not what its tag or its form says."""

MISFITS = (
    "!!timestamp foo",
    "!!bool foo",
    "!!int ''",
    "!!float x",
    "2001-99-99",
    "1" * 5000,
    "&a !!int {=: *a}",
)
"""What PyYAML makes of these are errors of many kinds, and none of its own."""
