"""The exchange's text and order, without RDMA: known lines, and a client that says what it should not."""

from __future__ import annotations

import socket

import pytest

from tests.perftest.exchange import KEYS_BYTES, VERSION, Keys, Server
from tests.perftest.target import gid_of

KEYS = Keys(qpn=0x11, psn=0x925534, rkey=0x6FF, va=0x7F8319866000, gid=gid_of("10.77.0.10"))
LINE = (
    b"0000:0001:000011:925534:000006ff:00007f8319866000:"
    b"00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:0a:00000000:\0"
)


def test_the_line_is_perftests() -> None:
    assert KEYS.pack() == LINE
    assert Keys.unpack(LINE) == KEYS
    assert len(LINE) == KEYS_BYTES


@pytest.mark.parametrize("line", [LINE[:-1], LINE + b"\0", LINE.replace(b":ff", b"", 1) + b":ff", b"done\0"])
def test_another_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        Keys.unpack(line)


def served() -> tuple[socket.socket, Server]:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    return ours, Server(theirs, lambda _: None)


def test_negotiation_echoes_the_client_and_yields_its_mtu() -> None:
    client, server = served()
    said = VERSION.ljust(16, b"\0") + b"\0\0\x10\0" + b"\0\0\0\x40" + b"3\0"
    client.sendall(said)
    assert server.negotiate() == 1024
    assert client.recv(100) == said


def test_another_version_is_refused() -> None:
    client, server = served()
    client.sendall(b"5.99".ljust(16, b"\0"))
    with pytest.raises(ValueError, match=r"5\.99.*6\.06"):
        server.negotiate()


def test_a_client_that_leaves_early_is_an_error() -> None:
    client, server = served()
    client.sendall(LINE[:50])
    client.close()
    with pytest.raises(ConnectionError, match="50 of 108"):
        server.keys(KEYS)


def test_the_last_word_is_done() -> None:
    client, server = served()
    client.sendall(LINE + b"dune\0")
    with pytest.raises(ValueError, match="dune"):
        server.close(KEYS)


def test_a_client_that_closes_after_its_last_word_sees_no_error_and_makes_none() -> None:
    client, server = served()
    client.sendall(LINE)  # perftest reads the answer to this, then says its last word and closes at once
    client.sendall(b"done\0")
    server.close(KEYS)
    assert client.recv(200) == LINE
    client.close()
    server.until_closed()
