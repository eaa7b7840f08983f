"""The control connection: typed messages of contract/control.py over one WebSocket, pings both ways.

During the join the joining thread reads from it; afterwards a thread of its own hands messages on as they
come. Touches the socket and the contract only.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from pascaline.contract import control
from pascaline.errors import ApplianceUnreachable, ContractMismatch

CONNECT_S = 2.0
HANDSHAKE_S = 2.5
EMULATED_HANDSHAKE_S = 15.0
"""Soft-RoCE often means an emulated machine, where a handshake takes seconds when several workers start."""
_PING_EVERY_S = 2.0
_PONG_WITHIN_S = 60.0
"""The appliance's process, and ours: a thread that holds the GIL for long keeps the answer from being read."""
_DEAD_PEER_S = 5
"""Kernel keep-alive: a dead host is noticed without the interpreter, whose GIL a long import may hold."""
_SILENCE_SHARE = 0.7
"""Of the deadline: a host that is cut off must know it before, and the kernel asks once a second."""
_SILENCE_CHECK_S = 0.25

Message = Any
"""One of contract.control's models from the appliance."""


class ConnectionLost(Exception):
    """The connection is closed or dead; the message says how."""


class Control:
    """One worker's connection to the appliance."""

    def __init__(self, host: str, port: int, handshake_s: float = HANDSHAKE_S) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._open = contextlib.ExitStack()
        try:
            self._socket = socket.create_connection((host, port), timeout=CONNECT_S)
            self._socket.settimeout(None)
            _keep_alive(self._socket)
            connecting = connect(
                f"ws://{self.address}/",
                sock=self._socket,
                compression=None,
                open_timeout=handshake_s,
                close_timeout=1,
                ping_interval=_PING_EVERY_S,
                ping_timeout=_PONG_WITHIN_S,
                max_size=control.MAX_MESSAGE_BYTES,
            )
            self._websocket = self._open.enter_context(connecting)
        except (OSError, WebSocketException) as error:
            raise ApplianceUnreachable(
                f"the appliance at {self.address} does not answer ({error or type(error).__name__}): check the address "
                "(appliance=... or PASCALINE_APPLIANCE) and `pascaline-appliance status` there"
            ) from error
        self._thread: threading.Thread | None = None
        self._silence_s = float("inf")

    def fileno(self) -> int:
        """Descriptor of the socket: a forked child must not hold it."""
        return self._socket.fileno()

    def limit_silence(self, deadline_s: float) -> None:
        """From now on the connection is lost, well before `deadline_s`, when the appliance's host does not answer."""
        self._silence_s = _SILENCE_SHARE * deadline_s
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._silence_s * 1000))

    def send(self, message: Message) -> None:
        """Send one message. Raises ConnectionLost."""
        try:
            self._websocket.send(message.model_dump_json())
        except (ConnectionClosed, OSError) as error:
            raise ConnectionLost(str(error)) from error

    def receive(self, timeout_s: float | None) -> Message:
        """Next message. Raises TimeoutError, ConnectionLost, and ContractMismatch for what the contract
        does not know.
        """
        try:
            text = self._websocket.recv(timeout_s)
        except (ConnectionClosed, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ConnectionLost(str(error)) from error
        try:
            return control.from_appliance.validate_json(text)
        except ValidationError as error:
            raise ContractMismatch(
                f"the appliance at {self.address} sent a message that version {control.CONTROL_VERSION} of the control "
                f"contract does not know ({error.errors()[0]['msg']}): install the same release on both ends"
            ) from error

    def deliver(self, on_message: Callable[[Message], None], on_end: Callable[[Exception], None]) -> None:
        """From now on a thread of its own hands every message to `on_message`, and the connection's end to `on_end`."""

        def read() -> None:
            try:
                while True:
                    try:
                        message = self.receive(_SILENCE_CHECK_S)
                    except TimeoutError:
                        self._check_silence()
                    else:
                        on_message(message)
            except (ConnectionLost, ContractMismatch) as error:
                on_end(error)

        self._thread = threading.Thread(target=read, name="pascaline-control", daemon=True)
        self._thread.start()

    def _check_silence(self) -> None:
        """The kernel's own limits do not add up to one: TCP_USER_TIMEOUT counts from the first retransmission, and a
        ping that falls into the silence starts it anew.
        """
        silence_s = _unanswered_s(self._socket)
        if silence_s > self._silence_s:
            raise ConnectionLost(f"the appliance's host has not answered for {silence_s:.1f} s")

    def close(self) -> None:
        """Close the connection; the thread ends."""
        self._open.close()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(timeout=2)


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _DEAD_PEER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_S * 1000)


def _unanswered_s(sock: socket.socket) -> float:
    """Seconds since the peer's kernel last said anything, if it owes an answer to ours; else 0.

    From Linux's struct tcp_info: its third and fourth byte count retransmissions and probes without an answer, the ages
    of the last data and of the last ACK stand in ms at byte 52. After a pause of our own the question comes first.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
    except OSError:  # closed meanwhile, which the next receive says
        return 0.0
    silence_ms: int = min(struct.unpack_from("=II", info, 52))
    return silence_ms / 1000 if info[2] or info[3] else 0.0
