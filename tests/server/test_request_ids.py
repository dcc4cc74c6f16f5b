"""Request ids."""

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.server.request_ids import RequestIds


class RequestIdsTests(SynchronousTestCase):
    """``RequestIds`` creates request ids."""

    def test_unique_ids(self):
        """Each id has a counter, and a prefix of the process."""
        ids = RequestIds()
        made = {ids.make() for _ in range(100)} | {RequestIds().make() for _ in range(100)}
        self.assertEqual(len(made), 200)
        self.assertEqual(RequestIds("abc").make(), "abc-1")

    def test_valid_ids_of_callers(self):
        """An id of printable characters is kept."""
        self.assertEqual(RequestIds("p").from_caller([b"audit-0a:7/b"]), "audit-0a:7/b")

    def test_other_ids_are_replaced(self):
        """Long, empty, invalid and repeated ids are not fit for a log."""
        for proposed in ([], [b""], [b"a" * 129], [b"a b"], [b"a\nb"], [b"\xff"], [b"a", b"b"]):
            self.assertEqual(RequestIds("p").from_caller(proposed), "p-1")
