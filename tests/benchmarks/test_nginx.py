"""Detection of the modules of the installed nginx."""

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.nginx import stream_module
from benchmarks.processes import BenchmarkFailed


class StreamModuleTests(SynchronousTestCase):
    """The module for TCP, from what ``nginx -V`` says."""

    def test_a_module_that_is_compiled_in_needs_no_directive(self):
        """nginx rejects a directive for a module that is compiled in."""
        self.assertEqual(stream_module("configure arguments: --with-stream --with-threads"), "")

    def test_a_dynamic_module_is_loaded_from_the_modules_path(self):
        """The path is where that nginx looks for modules."""
        directory = Path(self.mktemp())
        directory.mkdir()
        module = directory / "ngx_stream_module.so"
        module.touch()
        configuration = f"configure arguments: --modules-path={directory} --with-stream=dynamic"
        self.assertEqual(stream_module(configuration), f"load_module {module};")

    def test_a_missing_module_is_reported_with_its_package(self):
        """On Debian the module is a separate package."""
        directory = self.mktemp()
        configuration = f"configure arguments: --modules-path={directory} --with-stream=dynamic"
        error = self.assertRaises(BenchmarkFailed, stream_module, configuration)
        self.assertIn(directory, str(error))
        self.assertIn("libnginx-mod-stream", str(error))
