"""The tests; each of them is watched, whichever way it is run."""

from tests.watchdog import watch

watch()
