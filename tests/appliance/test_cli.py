"""The command without an appliance: what it says when the library does not load, and when nobody answers properly."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

from pascaline_appliance import cli, status_server
from pascaline_appliance.errors import NotRunningError
from tests.appliance.rack import tables, toml


def test_a_library_that_does_not_load_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "appliance.toml"
    path.write_text(toml(tables(tmp_path)))
    monkeypatch.setitem(sys.modules, "pascaline_appliance.service", None)
    monkeypatch.setattr(sys, "argv", ["pascaline-appliance", "run", "--config", str(path)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    stderr = capsys.readouterr().err
    assert left.value.code == 17
    assert stderr.count("\n") == 1
    assert "the data plane does not load" in stderr
    assert "install libpascaline" in stderr


@pytest.mark.parametrize("answer", [b"", b'{"version": '], ids=["nothing", "half"])
def test_an_answer_that_breaks_off_is_one_sentence(tmp_path: Path, answer: bytes) -> None:
    """As from an appliance that is being stopped."""
    path = tmp_path / "status.sock"
    with status_server.bind(path) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(NotRunningError, match=rf"broke off after {len(answer)} bytes"):
            status_server.ask(path)
        server.join()
