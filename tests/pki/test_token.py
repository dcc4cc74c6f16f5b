"""Join tokens: their form, the server's store, and the file with a valid one."""

from __future__ import annotations

import hashlib
import json
import stat

from twisted.logger import LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from tests.pki.support import Issuer, clock_now, state_directory
from yurttunnel.pki.directory import StateDirectory, StateError
from yurttunnel.pki.identity import parse_identifiers
from yurttunnel.pki.join_token import JoinTokenFile
from yurttunnel.pki.records import NodeRecord, NodeRecords
from yurttunnel.pki.revocation import Revocations, revoke_node
from yurttunnel.pki.token import JOIN_TOKEN_FILE, BadToken, JoinToken, TokenRefused, TokenStore

PIN = "5" * 64


class JoinTokenTests(TestCase):
    """The one-string form."""

    def test_round_trip(self) -> None:
        """A formatted token is parsed to the same token, with any surrounding blanks."""
        token = JoinToken("0123456789abcdef", "f" * 32, PIN)
        self.assertEqual(str(token), f"0123456789abcdef.{'f' * 32}.sha256:{PIN}")
        self.assertEqual(JoinToken.parse(f" {token}\n"), token)

    def test_malformed(self) -> None:
        """Other text is rejected without repeating it, since it may be a secret."""
        good = str(JoinToken("0123456789abcdef", "f" * 32, PIN))
        for text in ("", good[:-1], good.upper(), good.replace("sha256", "md5"), f"{good}.x"):
            error = self.assertRaises(BadToken, JoinToken.parse, text)
            self.assertNotIn("ffff", str(error))

    def test_secret_is_not_shown(self) -> None:
        """The secret is not in logs and tracebacks."""
        self.assertEqual(
            repr(JoinToken("0123456789abcdef", "f" * 32, PIN)), "<JoinToken 0123456789abcdef>"
        )


class TokenStoreTests(TestCase):
    """The server's store of tokens."""

    def setUp(self) -> None:
        """Create an empty store."""
        self.clock = clock_now()
        self.directory = state_directory(self)
        self.store = TokenStore(self.clock, self.directory, PIN)

    def test_issued(self) -> None:
        """An issued token is valid until it expires, also after a restart."""
        token = self.store.issue(60)
        self.assertEqual(token.pin, PIN)
        for store in (self.store, TokenStore(self.clock, self.directory, PIN)):
            self.assertEqual(store.check(token.token_id, token.secret).token_id, token.token_id)

    def test_expired(self) -> None:
        """A token is rejected from the moment it expires."""
        token = self.store.issue(60)
        self.clock.advance(59.9)
        self.store.check(token.token_id, token.secret)
        self.clock.advance(0.1)
        error = self.assertRaises(TokenRefused, self.store.check, token.token_id, token.secret)
        self.assertTrue(error.expired)
        self.assertIn("expired at", str(error))

    def test_wrong(self) -> None:
        """A wrong secret and an unknown id get the same error, also after the expiry."""
        token = self.store.issue(60)
        answers = set()
        for token_id, secret in (
            (token.token_id, "0" * 32),
            ("0" * 16, token.secret),
            ("", ""),
            (token.token_id, ""),
        ):
            error = self.assertRaises(TokenRefused, self.store.check, token_id, secret)
            answers.add((str(error), error.expired))
        self.clock.advance(61)
        error = self.assertRaises(TokenRefused, self.store.check, token.token_id, "0" * 32)
        answers.add((str(error), error.expired))
        self.assertEqual(len(answers), 1)

    def test_secret_is_not_kept(self) -> None:
        """The file has only the hash of the secret, and is closed to others."""
        token = self.store.issue(60)
        content = self.directory.path.joinpath("tokens.json").read_text()
        self.assertNotIn(token.secret, content)
        self.assertIn(hashlib.sha256(token.secret.encode()).hexdigest(), content)
        status = self.directory.path.joinpath("tokens.json").stat()
        self.assertEqual(stat.S_IMODE(status.st_mode), 0o600)

    def test_expired_ones_are_remembered(self) -> None:
        """The last 64 expired tokens are distinguished from unknown ones, also after a restart."""
        tokens = []
        for _ in range(66):
            tokens.append(self.store.issue(60))
            self.clock.advance(61)
        self.store.issue(60)
        content = json.loads(self.directory.path.joinpath("tokens.json").read_text())
        self.assertEqual(len(content["tokens"]), 65)
        store = TokenStore(self.clock, self.directory, PIN)
        for token, expired in ((tokens[1], False), (tokens[2], True), (tokens[-1], True)):
            error = self.assertRaises(TokenRefused, store.check, token.token_id, token.secret)
            self.assertEqual(error.expired, expired)

    def test_expired_for_good(self) -> None:
        """Setting the clock back does not make an expired token valid again."""
        token = self.store.issue(60)
        self.clock.advance(61)
        self.store.issue(60)
        self.clock.rightNow -= 61
        for store in (self.store, TokenStore(self.clock, self.directory, PIN)):
            error = self.assertRaises(TokenRefused, store.check, token.token_id, token.secret)
            self.assertTrue(error.expired)

    def test_expired_ones_do_not_displace_good_ones(self) -> None:
        """Remembered expired tokens do not displace valid ones."""
        for _ in range(70):
            self.store.issue(1)
        self.clock.advance(2)
        tokens = [self.store.issue(60) for _ in range(64)]
        self.assertTrue(all(self.store.find(token) for token in tokens))

    def test_bound(self) -> None:
        """At most 64 tokens are valid at once; among equal ones, the oldest are removed."""
        tokens = [self.store.issue(60) for _ in range(65)]
        self.assertIsNone(self.store.find(tokens[0]))
        self.assertIsNotNone(self.store.find(tokens[1]))

    def test_bound_of_unequal_ones(self) -> None:
        """Those that expire first are removed, and the new one is kept however short its life."""
        lasting = self.store.issue(600)
        tokens = [self.store.issue(60) for _ in range(64)]
        self.assertIsNone(self.store.find(tokens[0]))
        for token in (lasting, *tokens[1:]):
            self.assertIsNotNone(self.store.find(token))
        self.assertIsNotNone(self.store.find(self.store.issue(1)))
        created = [each.created for each in self.store.valid()]
        self.assertEqual(64, len(created))
        self.assertEqual(sorted(created), created)

    def test_broken_file(self) -> None:
        """A foreign file is an error that names it and the fix."""
        for content in (b"{", b"[]", b'{"tokens": [{"id": "a"}]}', b'{"tokens": 1}'):
            self.directory.write("tokens.json", content)
            error = self.assertRaises(StateError, TokenStore, self.clock, self.directory, PIN)
            self.assertIn("tokens.json is not a list", str(error))


class JoinTokenFileTests(TestCase):
    """The ``join-token`` file."""

    def setUp(self) -> None:
        """Start the service with a lifetime of an hour."""
        self.clock = clock_now()
        self.directory = state_directory(self)
        self.start()

    def start(self) -> None:
        """Start the service, as after a restart of the server."""
        self.store = TokenStore(self.clock, self.directory, PIN)
        records = NodeRecords(self.directory)
        self.revocations = Revocations(self.clock, self.directory, records)
        self.service = JoinTokenFile(self.clock, self.directory, self.store, self.revocations, 3600)
        self.service.startService()
        self.addCleanup(self.service.stopService)

    def token(self) -> JoinToken:
        """Read the file."""
        return JoinToken.parse((self.directory.read("join-token", secret=True) or b"").decode())

    def test_written_at_start(self) -> None:
        """Once the service has started, the file has a valid token and is closed to others."""
        self.assertIsNotNone(self.store.find(self.token()))

    def test_always_good(self) -> None:
        """The token in the file is valid for at least a third of its life, over several lives."""
        seen = set()
        for _ in range(4 * 60):
            self.clock.advance(60)
            issued = self.store.find(self.token())
            assert issued is not None
            left = issued.expires.timestamp() - self.clock.seconds()
            self.assertGreaterEqual(left, 3600 / 3 - 60)
            seen.add(issued.token_id)
        self.assertGreater(len(seen), 4)

    def test_a_file_that_cannot_be_replaced(self) -> None:
        """Tokens that could not be written to the file do not displace others."""
        write = StateDirectory.write

        def refuse(directory: StateDirectory, name: str, content: bytes) -> None:
            if name == JOIN_TOKEN_FILE:
                raise StateError(f"{name} cannot be written: it is busy")
            write(directory, name, content)

        self.patch(StateDirectory, "write", refuse)
        given = self.store.issue(40 * 3600)
        for _ in range(30 * 60):
            self.clock.advance(60)
        self.assertEqual([given.token_id], [each.token_id for each in self.store.valid()])

    def test_former_one_stays_good(self) -> None:
        """A token that was copied from the file is valid until it expires."""
        token = self.token()
        self.clock.pump([60] * 50)
        self.assertNotEqual(self.token(), token)
        self.assertIsNotNone(self.store.find(token))

    def test_restart(self) -> None:
        """A restart keeps the token in the file while it is valid."""
        token = self.token()
        self.service.stopService()
        self.start()
        self.assertEqual(self.token(), token)

    def test_replaced_when_unusable(self) -> None:
        """A file that was lost, damaged or is of another authority is replaced."""
        other = TokenStore(self.clock, state_directory(self), PIN).issue()
        for content in (None, b"nonsense", b"\xff\xfe", str(other).encode()):
            self.service.stopService()
            self.directory.remove("join-token")
            if content is not None:
                self.directory.write("join-token", content)
            self.start()
            self.assertIsNotNone(self.store.find(self.token()))

    def test_revocation_replaces_it(self) -> None:
        """After a revocation, the file has a newer token."""
        records = NodeRecords(self.directory)
        now = Issuer.make(self).authority.certificate.not_valid_before_utc
        records.put(NodeRecord("edge-1", parse_identifiers("host=edge-1"), "ab", ("k",), now))
        token = self.token()
        revoke_node(self.clock, self.directory.path, "edge-1")
        self.revocations.refresh()
        self.assertNotEqual(self.token(), token)
        self.assertIsNotNone(self.store.find(self.token()))

    def test_many_revocations(self) -> None:
        """However many nodes are revoked, a token with a longer lifetime stays valid."""
        token = self.store.issue(30 * 86400)
        for number in range(64):
            revoke_node(self.clock, self.directory.path, f"edge-{number}")
            self.revocations.refresh()
            self.clock.advance(1)
        self.assertIsNotNone(self.store.find(token))
        self.assertIsNotNone(self.store.find(self.token()))

    def test_revocation_in_the_future(self) -> None:
        """If the clock is set back behind a revocation, the token is replaced once."""
        self.test_revocation_replaces_it()
        self.clock.rightNow -= 86400
        self.service.refresh()
        token = self.token()
        for _ in range(3):
            self.service.refresh()
        self.assertEqual(self.token(), token)

    def test_made_by_a_clock_that_was_ahead(self) -> None:
        """A token beyond the lifetime limit is revoked and replaced, and no other is."""
        self.service.stopService()
        self.directory.remove("join-token")
        self.clock.advance(365 * 86400)
        self.start()
        ahead, explicit = self.token(), self.store.issue(3600)
        self.clock.rightNow -= 365 * 86400
        self.service.refresh()
        for store in (self.store, TokenStore(self.clock, self.directory, PIN)):
            self.assertIsNone(store.find(ahead))
            self.assertIsNotNone(store.find(explicit))
            issued = store.find(self.token())
            assert issued is not None
            self.assertLessEqual(issued.expires.timestamp(), self.clock.seconds() + 3601)

    def test_clock_a_little_ahead(self) -> None:
        """The tolerated difference of two clocks revokes no token."""
        token = self.token()
        self.clock.rightNow -= 240
        self.service.refresh()
        self.assertEqual(token, self.token())

    def test_failure_is_logged(self) -> None:
        """A failed write is logged, and retried until it succeeds."""
        self.directory.remove("join-token")
        (self.directory.path / "join-token").mkdir()
        with capturedLogs() as events:
            self.clock.advance(60)
        [line] = [formatEvent(e) for e in events if e["log_level"] is LogLevel.error]
        self.assertRegex(line, "^replacing the join token failed: .*/join-token is a directory")
        (self.directory.path / "join-token").rmdir()
        self.clock.advance(60)
        self.assertIsNotNone(self.store.find(self.token()))
