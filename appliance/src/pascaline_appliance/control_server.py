"""The control plane on the wire: WebSocket connections of workers, each with an outbox of its own so that a worker that
does not read holds up nobody. Turns text into messages for the registry and back; decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
import ssl
import struct

from pydantic import BaseModel, ValidationError
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from pascaline_appliance import admission
from pascaline_appliance.config import Config, Control
from pascaline_appliance.contract.control import (
    MAX_MESSAGE_BYTES,
    Broken,
    Connect,
    Join,
    Leave,
    Refused,
    Resume,
    from_worker,
)
from pascaline_appliance.errors import AddressInUseError, ApplianceError, Refusal
from pascaline_appliance.registry import Registry

log = logging.getLogger(__name__)

OUTBOX_MESSAGES = 256
"""A worker that lets this many messages pile up is as good as lost."""
FIRST_MESSAGE_S = 30.0
SILENCE_SHARE = 0.7
"""Of the deadline: for so long a worker's kernel, not its process, may be silent. Ours asks once a second."""
SILENCE_CHECK_S = 0.25
LAST_MESSAGE_S = 2.0
"""For the last message to leave, and for the closing handshake."""


class WorkerConnection:
    """One worker's connection: what the registry may do with it, and the task that sends."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._outbox: asyncio.Queue[BaseModel | None] = asyncio.Queue(OUTBOX_MESSAGES)
        self._finished = False

    def send(self, message: BaseModel) -> None:
        """Queue a message; a full outbox closes the connection."""
        if self._finished:
            return
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self._finished = True
            self._connection.transport.abort()

    def finish(self, message: BaseModel) -> None:
        """Queue the last message and close the connection after it."""
        self.send(message)
        if not self._finished:
            self._finished = True
            try:
                self._outbox.put_nowait(None)
            except asyncio.QueueFull:  # nobody would close the connection
                self._connection.transport.abort()

    async def pump(self) -> None:
        """Send what is queued until the last message; then close."""
        with contextlib.suppress(ConnectionClosed):
            while (message := await self._outbox.get()) is not None:
                await self._connection.send(message.model_dump_json())
            await self._connection.close()


def unanswered_s(connection: socket.socket) -> float:
    """Seconds since the peer's kernel last said anything, if it owes an answer to ours; else 0.

    From Linux's struct tcp_info: its third and fourth byte count retransmissions and probes without an answer, the ages
    of the last data and of the last ACK stand in ms at byte 52. After a pause of our own the question comes first.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
    silence_ms: int = min(struct.unpack_from("=II", info, 52))
    return silence_ms / 1000 if info[2] or info[3] else 0.0


async def watch(connection: ServerConnection, limit_s: float) -> None:
    """Cut a connection whose peer is silent. The kernel's own limits do not add up to one: TCP_USER_TIMEOUT counts from
    the first retransmission, and a ping that falls into the silence starts it anew.
    """
    raw = connection.transport.get_extra_info("socket")
    while unanswered_s(raw) < limit_s:
        await asyncio.sleep(SILENCE_CHECK_S)
    connection.transport.abort()


def tls_context(control: Control) -> ssl.SSLContext | None:
    """The one place that decides about encryption. None: plain connections, which config.Control wants said."""
    del control
    return None


def bind(control: Control) -> list[socket.socket]:
    """Listening sockets: loopback always, the rack's address if one is configured."""
    addresses = [str(control.address)] if control.address.is_loopback else ["127.0.0.1", str(control.address)]
    sockets: list[socket.socket] = []
    for address in addresses:
        try:
            sockets.append(socket.create_server((address, control.port)))
        except OSError as error:
            for opened in sockets:
                opened.close()
            way_out = "stop the other process or change control.port"
            if error.errno != errno.EADDRINUSE:
                way_out = "change control.address"
            raise AddressInUseError(
                f"cannot listen on {address}:{control.port}: {os.strerror(error.errno or 0)}; {way_out}"
            ) from error
    return sockets


class ControlServer:
    """Accepts workers."""

    def __init__(self, config: Config, registry: Registry) -> None:
        self._config = config
        self._registry = registry
        self._servers: list[Server] = []

    async def start(self, sockets: list[socket.socket]) -> None:
        """Serve on sockets that listen already."""
        for listener in sockets:
            server = await serve(
                self._handle,
                sock=listener,
                ssl=tls_context(self._config.control),
                max_size=MAX_MESSAGE_BYTES,
                compression=None,
                ping_interval=self._config.control.ping_interval_s,
                ping_timeout=self._config.control.ping_timeout_s,
                close_timeout=LAST_MESSAGE_S,
                server_header=None,
            )
            self._servers.append(server)

    async def stop(self) -> None:
        """Close all connections; what is queued for them has LAST_MESSAGE_S to leave."""
        for server in self._servers:
            server.close(close_connections=False)
        connections = [connection for server in self._servers for connection in server.connections]
        if connections:
            waits = [asyncio.create_task(connection.wait_closed()) for connection in connections]
            _, late = await asyncio.wait(waits, timeout=LAST_MESSAGE_S)
            for task in late:
                task.cancel()
        for connection in connections:
            connection.transport.abort()

    async def _handle(self, connection: ServerConnection) -> None:
        """One worker from its first message to the end of its connection."""
        silence_s = SILENCE_SHARE * self._config.limits.deadline_s
        self._configure(connection, silence_s)
        worker = WorkerConnection(connection)
        tasks = [
            asyncio.create_task(worker.pump()),
            asyncio.create_task(watch(connection, silence_s)),
        ]
        try:
            await self._converse(connection, worker)
        except ConnectionClosed:
            pass
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            await connection.close(1008, _close_reason(f"{where}: {first['msg']}"))
        except Exception:
            log.exception("a worker's connection failed")
            await connection.close(1011, "internal error of the appliance")
        finally:
            self._registry.lost(worker)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _configure(self, connection: ServerConnection, silence_s: float) -> None:
        """A dead peer ends the connection within the deadline; small messages leave at once."""
        raw = connection.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def _converse(self, connection: ServerConnection, worker: WorkerConnection) -> None:
        try:
            first = await asyncio.wait_for(connection.recv(), FIRST_MESSAGE_S)
        except TimeoutError:
            await connection.close(1008, f"no join within {FIRST_MESSAGE_S:g} s")
            return
        try:
            self._registry.join(worker, _parse_join(first))
        except Refusal as refusal:
            worker.finish(Refused(reason=refusal.reason, message=str(refusal)))
        async for text in connection:
            self._dispatch(worker, from_worker.validate_json(text))

    def _dispatch(self, worker: WorkerConnection, message: Join | Connect | Broken | Resume | Leave) -> None:
        try:
            if isinstance(message, Connect):
                self._registry.connect(worker, message)
            elif isinstance(message, Broken):
                self._registry.broken(worker, message)
            elif isinstance(message, Resume):
                self._registry.resume(worker, message)
            elif isinstance(message, Leave):
                self._registry.leave(worker, message)
            else:
                raise Refusal("rank", "a connection joins once")
        except Refusal as refusal:
            self._registry.refuse_member(worker, refusal)
        except ApplianceError as error:
            log.error("a worker's message cannot be executed: %s", error)
            self._registry.refuse_member(worker, Refusal("budget", str(error)))


def _close_reason(text: str) -> str:
    """As much of `text`, whose letters may be the peer's, as a close frame has room for."""
    return text.encode()[:120].decode(errors="ignore")


def _parse_join(text: str | bytes) -> Join:
    """The first message. Versions are compared before anything else, since another version may have other fields."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict) and fields.get("type") == "join":
        admission.check_versions(fields.get("control_version"), fields.get("wire_version"))
    message = from_worker.validate_json(text)
    if not isinstance(message, Join):
        raise Refusal("rank", "the first message of a connection is a join")
    return message
