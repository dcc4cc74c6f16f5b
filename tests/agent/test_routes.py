"""The choice of the next address."""

from __future__ import annotations

import enum

from twisted.trial.unittest import TestCase

from yurttunnel.agent.routes import Routes


class Client:
    """The attributes of a client that routes use."""

    location = home = None
    number = rejections = 0
    draining = has_session = standing_by = False


class Answer(enum.Enum):
    """The result of an attempt."""

    NONE = "none"
    ALREADY_CONNECTED = "already connected"
    SESSION = "session"


class RoutesTests(TestCase):
    """Two addresses, and clients that know of several servers."""

    def setUp(self):
        """Create a client with a session at ``b``."""
        self.clients = []
        self.routes = Routes(lambda host, port, skip: host, self.clients)
        self.routes.shared = True
        self.routes.use([("b", 1)])
        self.holder = self.client()
        self.dial(self.holder, {"b": Answer.SESSION})
        self.routes.use([("a", 1), ("b", 1)])
        self.seeker = self.client()

    def client(self):
        """Create one more client."""
        self.clients.append(Client())
        return self.clients[-1]

    def dial(self, client, answers):
        """Let a client make an attempt with these results; return the location."""
        host = self.routes.next(client)
        self.assertEqual((host, 1), client.location)
        if answers[host] is Answer.SESSION:
            self.routes.session_started(client)
        else:
            self.routes.failed(client, answers[host] is Answer.ALREADY_CONNECTED)
        return host

    def is_at_session_location(self):
        """Return whether the first client has dialed the location of its session."""
        return self.routes.is_at_session_location(self.holder)

    def dials(self, number, **answers):
        """Return the locations of the second client's next attempts."""
        return [self.dial(self.seeker, answers) for _ in range(number)]

    def test_connected_server_is_spared(self):
        """While one address does not respond, the one that is connected is dialed less and less
        often.

        It is still dialed: there may be another server behind it.
        """
        dialed = self.dials(200, a=Answer.NONE, b=Answer.ALREADY_CONNECTED)
        self.assertLessEqual(dialed[:60].count("b"), 8)
        self.assertGreaterEqual(dialed[100:].count("b"), 5)

    def test_a_failed_attempt_skips_an_address(self):
        """The next attempt begins with another address of the name, and a session stays at it."""
        skips = []
        self.routes.tls_endpoint = lambda host, port, skip: skips.append(skip) or host
        self.routes.use([("b", 1)])
        self.dials(1, b=Answer.NONE)
        self.dials(1, b=Answer.ALREADY_CONNECTED)
        self.dials(2, b=Answer.SESSION)
        self.assertEqual([0, 1, 2, 2], skips)

    def test_restarts_from_the_beginning(self):
        """A missing server resets the history."""
        while self.routes.next(self.seeker) != "b":
            self.routes.failed(self.seeker)
        self.routes.reset_history()
        self.assertEqual(["a"], self.dials(1, a=Answer.NONE))

    def test_new_address(self):
        """A new address is not preferred to those that failed before it was added."""
        self.dials(50, a=Answer.NONE, b=Answer.ALREADY_CONNECTED)
        self.routes.use([("a", 1), ("b", 1), ("c", 1)])
        dialed = self.dials(3, a=Answer.NONE, b=Answer.ALREADY_CONNECTED, c=Answer.NONE)
        self.assertIn("a", dialed)

    def test_session_is_known_at_once(self):
        """An address with a session counts as working for the next client."""
        while self.dials(1, a=Answer.NONE, b=Answer.ALREADY_CONNECTED) != ["b"]:
            """Fail at one address until the other's turn."""
        self.assertEqual(["a"], self.dials(1, a=Answer.SESSION))
        looker = self.client()
        answers = {"a": Answer.ALREADY_CONNECTED, "b": Answer.ALREADY_CONNECTED}
        self.assertEqual("a", self.dial(looker, answers))

    def test_client_that_drains(self):
        """A draining client prefers the location of its session, without occupying it."""
        self.holder.draining = self.holder.has_session = True
        self.routes.use([("b", 1)])
        self.dial(self.seeker, {"b": Answer.SESSION})
        self.assertEqual(1, self.seeker.number)
        self.routes.use([("a", 1), ("b", 1)])
        answers = {"a": Answer.NONE, "b": Answer.NONE}
        self.assertEqual(
            ("b", True), (self.dial(self.holder, answers), self.is_at_session_location())
        )
        while self.dial(self.holder, answers) != "a":
            """Try both in turn."""
        self.assertFalse(self.is_at_session_location())
        self.routes.use([("a", 1)])
        self.assertEqual("a", self.dial(self.holder, {"a": Answer.SESSION}))
        self.assertTrue(self.is_at_session_location(), "there is no other place by now")

    def test_client_that_resumes(self):
        """A resuming client prefers the location of its session, whoever else is there."""
        self.holder.has_session = True
        answers = {"a": Answer.NONE, "b": Answer.NONE}
        self.assertEqual("b", self.dial(self.holder, answers))
        while self.dial(self.holder, answers) != "a":
            """Try both in turn."""
        self.seeker.location = "b", 1
        self.assertEqual("b", self.dial(self.holder, answers))
