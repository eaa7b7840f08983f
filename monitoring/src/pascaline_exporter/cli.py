"""The command `pascaline-exporter`: serves the metrics over HTTP until SIGTERM or SIGINT.

The only module here that knows sockets, signals and exit codes.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from prometheus_client import CollectorRegistry, start_http_server

from pascaline_exporter import __version__
from pascaline_exporter.collector import SegmentCollector

DEFAULT_STATS = Path("/run/pascaline/stats")


def _listen_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDRESS:PORT such as 127.0.0.1:9790 or [::1]:9790")
    return host, int(port)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pascaline-exporter",
        description="Serves the appliance's statistics segment as Prometheus metrics.",
    )
    parser.add_argument(
        "--listen",
        type=_listen_address,
        default="127.0.0.1:9790",
        metavar="ADDRESS:PORT",
        help="where to serve; port 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--stats",
        type=Path,
        default=DEFAULT_STATS,
        metavar="PATH",
        help="the segment's file (default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=__version__)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the exporter. Returns the process's exit code: 0 after SIGTERM or SIGINT, 1 if it cannot listen."""
    arguments = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    log = logging.getLogger("pascaline-exporter")
    asked_to_stop = threading.Event()

    def stop(signum: int, frame: FrameType | None) -> None:
        asked_to_stop.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(SegmentCollector(arguments.stats))
    host, port = arguments.listen
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        log.error("cannot listen on %s port %d (%s): choose another --listen", host, port, error.strerror)
        return 1
    log.info("serving %s on http://%s:%d/metrics", arguments.stats, host, server.server_port)
    asked_to_stop.wait()
    server.shutdown()
    server.server_close()
    thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
