"""The machine's addresses, and the default addresses to listen on."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from yurttunnel.ops.own_addresses import loopback_address, own_addresses, unspecified_address

_LOOPBACK = "     +-- 127.0.0.0/8 2 0 2\n        |-- 127.0.0.1\n           /32 host LOCAL\n"
_LOOPBACK_6 = "00000000000000000000000000000001 01 80 10 80       lo\n"
_OWN = "        |-- 192.0.2.7\n           /32 host LOCAL\n"
_OWN_6 = "20010db8000000000000000000000007 02 40 00 80     eth0\n"


class OwnAddressTests(SynchronousTestCase):
    """The addresses in the kernel's tables."""

    def proc(self, trie: str, if_inet6: str) -> Path:
        """Make a directory in the format of /proc/net."""
        proc = Path(self.mktemp())
        proc.mkdir()
        (proc / "fib_trie").write_text(trie)
        (proc / "if_inet6").write_text(if_inet6)
        return proc

    def test_listed(self) -> None:
        """Addresses of both families are listed, without link-local addresses."""
        proc = self.proc(
            "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n"
            "     +-- 192.0.2.0/24 2 0 2\n        |-- 192.0.2.0\n           /24 link UNICAST\n"
            f"{_OWN}"
            "        |-- 192.0.2.255\n           /32 link BROADCAST\n"
            "     |-- 169.254.1.1\n        /32 host LOCAL\n",
            f"{_OWN_6}fe800000000000000000000000000001 02 40 20 80     eth0\n",
        )
        found = {str(address) for address in own_addresses(proc)}
        self.assertEqual(found, {"192.0.2.7", "2001:db8::7"})

    def test_no_such_files(self) -> None:
        """Without the kernel's tables no address is found, and IPv4 is assumed."""
        proc = Path(self.mktemp())
        self.assertEqual(own_addresses(proc), set())
        self.assertEqual(
            ("0.0.0.0", "127.0.0.1"), (unspecified_address(proc), loopback_address(proc))
        )

    def test_where_to_listen(self) -> None:
        """IPv6 is the default only without an IPv4 address; loopback only without IPv4 loopback."""
        for trie, if_inet6, every, loopback in (
            (_LOOPBACK + _OWN, _LOOPBACK_6 + _OWN_6, "0.0.0.0", "127.0.0.1"),
            (_LOOPBACK + _OWN, "", "0.0.0.0", "127.0.0.1"),
            (_LOOPBACK, _LOOPBACK_6, "0.0.0.0", "127.0.0.1"),
            (_LOOPBACK, _LOOPBACK_6 + _OWN_6, "::", "127.0.0.1"),
            ("", _LOOPBACK_6 + _OWN_6, "::", "::1"),
        ):
            proc = self.proc(trie, if_inet6)
            self.assertEqual((every, loopback), (unspecified_address(proc), loopback_address(proc)))
