"""What of the RDMA link can be tried without a device: descriptors that cannot be told apart, devices that refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pascaline.errors import LocalSetupError
from pascaline.link.verbs import device, link
from pascaline.link.verbs.device import PyverbsRDMAError


class Channel:
    closed = 0

    def close(self) -> None:
        Channel.closed += 1


def seen(monkeypatch: pytest.MonkeyPatch, *looks: set[int]) -> None:
    left = iter(looks)
    monkeypatch.setattr(link, "event_descriptors", lambda: next(left))


def test_another_library_s_descriptor_only_costs_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    Channel.closed = 0
    seen(monkeypatch, {3}, {3, 4, 5}, {3, 5}, {3, 5, 6})
    channel, number = link.open_channel(Channel)
    assert (type(channel), number, Channel.closed) == (Channel, 6, 1)


def test_descriptors_that_cannot_be_told_apart_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    Channel.closed = 0
    seen(monkeypatch, *[set()] * 20)
    with pytest.raises(LocalSetupError, match=r"cannot be told from others \(0 are new\)"):
        link.open_channel(Channel)
    assert Channel.closed == 5


def test_every_device_is_tried_and_each_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_context(name: str) -> Any:
        raise PyverbsRDMAError(f"Failed to open device {name}", 13)

    devices = [SimpleNamespace(name=name) for name in (b"mlx5_0", b"rxe0")]
    monkeypatch.setattr(device, "get_device_list", lambda: devices)
    monkeypatch.setattr(device, "Context", open_context)
    with pytest.raises(
        LocalSetupError, match=r"'mlx5_0' cannot be opened.*uverbs.*; RDMA device 'rxe0' cannot"
    ):
        device.open_port(None)
