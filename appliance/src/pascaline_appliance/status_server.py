"""What a running appliance says about itself, over a Unix socket: one JSON object per connection. Reads only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pascaline_appliance.errors import AddressInUseError, NotRunningError

CLIENT_TIMEOUT_S = 5.0


def bind(path: Path) -> socket.socket:
    """A listening socket at `path`; a socket that nobody serves any more is taken over."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)) == 0:
                    raise AddressInUseError(
                        f"another appliance serves {path}: stop it or change status.socket"
                    )
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen()
    except OSError as error:
        listener.close()
        raise AddressInUseError(f"cannot make the status socket {path}: {error.strerror}") from error
    except AddressInUseError:
        listener.close()
        raise
    return listener


async def serve(listener: socket.socket, describe: Callable[[], dict[str, Any]]) -> asyncio.Server:
    """Answer each connection with one description."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        with contextlib.suppress(ConnectionError):
            writer.write(json.dumps(describe()).encode())
            await writer.drain()
            writer.close()

    return await asyncio.start_unix_server(answer, sock=listener)


def ask(path: Path) -> dict[str, Any]:
    """The description of the appliance that serves `path`; NotRunningError if none does."""
    text = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CLIENT_TIMEOUT_S)
            connection.connect(str(path))
            while part := connection.recv(65536):
                text += part
        description: dict[str, Any] = json.loads(text)
    except OSError as error:
        raise NotRunningError(
            f"no appliance answers at {path} ({error.strerror or error}): is it running, and is this its status.socket?"
        ) from error
    except ValueError as error:
        raise NotRunningError(
            f"what answers at {path} broke off after {len(text)} bytes: the appliance is being stopped, see its log"
        ) from error
    return description
