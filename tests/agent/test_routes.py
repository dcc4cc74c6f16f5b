"""Which address is dialed next."""

from __future__ import annotations

from twisted.internet.defer import fail
from twisted.internet.error import ConnectionRefusedError
from twisted.trial.unittest import TestCase

from yurttunnel.agent.routes import Answer, Routes


class Client:
    """What a route sees of its client."""

    server = ""
    answer = Answer.NONE
    at_home = True
    draining = resumes = False


class Nowhere:
    """An endpoint that leads nowhere; what comes of an attempt is for the test to say."""

    def connect(self, factory):
        """Fail."""
        return fail(ConnectionRefusedError())


class RoutesTests(TestCase):
    """Two addresses, and clients that are told of several servers."""

    def setUp(self):
        """Have a client with a session at ``b``."""
        self.routes = Routes(lambda host, port: Nowhere())
        self.routes.shared = True
        self.routes.use([("b", 1)])
        self.holder = self.route()
        self.dial(self.holder, {"b": Answer.SESSION})
        self.routes.use([("a", 1), ("b", 1)])
        self.seeker = self.route()

    def route(self):
        """Make the route of one more client."""
        route = self.routes.new_route()
        route.client = Client()
        return route

    def dial(self, route, answers):
        """Have a client make an attempt with such answers; give where it led to."""
        route.connect(None).addErrback(lambda reason: reason.trap(ConnectionRefusedError))
        host, _ = route.location
        route.client.answer = answers[host]
        return host

    def at_home(self):
        """Return whether the first client has dialed where its session has been."""
        return self.holder.client.at_home

    def dials(self, number, **answers):
        """Return where so many attempts of the second client lead to."""
        return [self.dial(self.seeker, answers) for _ in range(number)]

    def test_connected_server_is_spared(self):
        """While nobody answers at one address, the one that is connected is dialed less and less.

        It is not forgotten: there may be another server behind it.
        """
        dialed = self.dials(200, a=Answer.NONE, b=Answer.ALREADY_CONNECTED)
        self.assertLessEqual(dialed[:60].count("b"), 8)
        self.assertGreaterEqual(dialed[100:].count("b"), 5)

    def test_begins_anew(self):
        """When a server is missing what was before counts no more."""
        answers = {"a": Answer.NONE, "b": Answer.ALREADY_CONNECTED}
        while self.routes.choose(self.seeker) != ("b", 1):
            self.dial(self.seeker, answers)
        self.routes.begin_anew()
        self.assertEqual(["a"], self.dials(1, **answers))

    def test_new_address(self):
        """A new address is no better than those that have failed before it was there."""
        self.dials(50, a=Answer.NONE, b=Answer.ALREADY_CONNECTED)
        self.routes.use([("a", 1), ("b", 1), ("c", 1)])
        dialed = self.dials(3, a=Answer.NONE, b=Answer.ALREADY_CONNECTED, c=Answer.NONE)
        self.assertIn("a", dialed)

    def test_session_is_known_at_once(self):
        """An address at which there is a session now has not failed for the next client."""
        while self.dials(1, a=Answer.NONE, b=Answer.ALREADY_CONNECTED) != ["b"]:
            """Fail at the one until it is the other's turn."""
        self.assertEqual(["a"], self.dials(1, a=Answer.SESSION))
        self.routes.note_sessions()
        self.routes.note_sessions()
        looker = self.route()
        answers = {"a": Answer.ALREADY_CONNECTED, "b": Answer.ALREADY_CONNECTED}
        self.assertEqual("a", self.dial(looker, answers))

    def test_client_that_drains(self):
        """It looks where its session is before all else, and is in nobody's way there."""
        self.holder.client.draining = self.holder.client.resumes = True
        self.routes.use([("b", 1)])
        self.dial(self.seeker, {"b": Answer.SESSION})
        self.assertEqual(1, self.seeker.number)
        self.routes.use([("a", 1), ("b", 1)])
        answers = {"a": Answer.NONE, "b": Answer.NONE}
        self.assertEqual(("b", True), (self.dial(self.holder, answers), self.at_home()))
        while self.dial(self.holder, answers) != "a":
            """Look at both in turn."""
        self.assertFalse(self.at_home())
        self.routes.use([("a", 1)])
        self.assertEqual("a", self.dial(self.holder, {"a": Answer.SESSION}))
        self.assertTrue(self.at_home(), "there is no other place by now")

    def test_client_that_resumes(self):
        """It looks where its session is before all else, whoever else is there meanwhile."""
        self.holder.client.resumes = True
        answers = {"a": Answer.NONE, "b": Answer.NONE}
        self.assertEqual("b", self.dial(self.holder, answers))
        while self.dial(self.holder, answers) != "a":
            """Look at both in turn."""
        self.seeker.location = "b", 1
        self.assertEqual("b", self.dial(self.holder, answers))
