"""Finds the RDMA port of this worker: a device, its active Ethernet port, and its GIDs that can be routed.

Reads device state only; creates nothing but the device context. Errors say what is missing and how it is had.
"""

from __future__ import annotations

import contextlib
import ipaddress
from dataclasses import dataclass, replace
from typing import Any

import pyverbs.enums as e
from pyverbs.device import Context, get_device_list
from pyverbs.fork import fork_init
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

from pascaline.errors import ConfigurationError, LocalSetupError
from pascaline.link.verbs.descriptors import opening, rdma_descriptors

_RXE_VENDOR_ID = 0xFFFFFF
_HOW_TO_HAVE_ONE = (
    "load the NIC's driver, or for soft-RoCE run `modprobe rdma_rxe` and "
    "`rdma link add rxe0 type rxe netdev eth0`"
)


@dataclass(frozen=True)
class Port:
    """An open device, the port to use and the address that its traffic carries."""

    context: Any
    device: str
    number: int
    gid_index: int
    address: str
    """Address of the GID: IPv4, or IPv6 where the port has no IPv4 address."""
    mtu_bytes: int
    """The port's active path MTU: a larger one is accepted and then nothing is ever sent."""
    software: bool
    """Linux soft-RoCE: retransmission needs a longer timeout there."""
    descriptors: frozenset[int] = frozenset()
    """Of the open device."""
    gid_index6: int | None = None
    address6: str | None = None
    """The IPv6 GID beside an IPv4 one, for an appliance whose data port has an IPv6 address."""

    def towards(self, peer: str) -> tuple[int, str]:
        """GID index and address of the family of `peer`."""
        if ":" in peer and self.gid_index6 is not None and self.address6 is not None:
            return self.gid_index6, self.address6
        return self.gid_index, self.address


def open_port(wish: str | None) -> Port:
    """Open the device that `wish` names ("rxe0", "rxe0:1"), else the first one with an active RoCE port."""
    # A forked child's first write must not move pages that the NIC uses; the buffers are marked as well.
    with contextlib.suppress(PyverbsError):
        fork_init()
    names = _device_names()
    device, number = _parse_wish(wish, names)
    refusals = []
    for name in [device] if device else names:
        with opening:
            before = rdma_descriptors()
            found = _usable_port(name, number)
            if isinstance(found, Port):
                return replace(found, descriptors=frozenset(rdma_descriptors() - before))
        refusals.append(found)
    raise LocalSetupError("; ".join(refusals))


def _device_names() -> list[str]:
    try:
        names = sorted(device.name.decode() for device in get_device_list())
    except PyverbsRDMAError:  # also raised when the kernel has no RDMA support at all
        names = []
    if not names:
        raise LocalSetupError(f"this machine has no RDMA device: {_HOW_TO_HAVE_ONE}")
    return names


def _parse_wish(wish: str | None, names: list[str]) -> tuple[str | None, int | None]:
    if not wish:
        return None, None
    name, _, port = wish.partition(":")
    if port and not port.isdecimal():
        raise ConfigurationError(f"device {wish!r} is not NAME or NAME:PORT, such as 'rxe0' or 'mlx5_0:1'")
    if name not in names:
        raise LocalSetupError(
            f"RDMA device {name!r} does not exist here; there is {', '.join(names)}: "
            "name one of them in PASCALINE_DEVICE or leave it unset"
        )
    return name, int(port) if port else None


def _usable_port(name: str, wanted: int | None) -> Port | str:
    """The port of one device, or the sentence why it has none."""
    try:
        context = Context(name=name)
    except PyverbsError as error:
        return (
            f"RDMA device {name!r} cannot be opened ({error}): this user must be able to read and write "
            "/dev/infiniband/uverbs* (in a container, pass --device=/dev/infiniband)"
        )
    try:
        found = _port_of(context, name, wanted)
    except PyverbsError as error:
        found = f"RDMA device {name!r} does not say what it can do: {error}"
    if isinstance(found, str):
        context.close()
    return found


def _port_of(context: Any, name: str, wanted: int | None) -> Port | str:
    attributes = context.query_device()
    numbers = [wanted] if wanted else range(1, attributes.phys_port_cnt + 1)
    why = f"RDMA device {name!r} has no port {wanted}"
    for number in numbers:
        if number > attributes.phys_port_cnt:
            break
        state = context.query_port(number)
        if state.link_layer != e.IBV_LINK_LAYER_ETHERNET:
            why = f"port {name}:{number} is not Ethernet: Pascaline speaks RoCE v2"
        elif state.state != e.IBV_PORT_ACTIVE:
            why = f"port {name}:{number} is not active: `ip link set` its network interface up"
        elif not (gids := _routable_gids(context, number, state.gid_tbl_len)):
            why = (
                f"port {name}:{number} has no RoCE v2 GID of an IPv4 or a routable IPv6 address: "
                "give its network interface an address (`ip addr add`)"
            )
        else:
            software = attributes.vendor_id == _RXE_VENDOR_ID
            index6, address6 = gids[1] if len(gids) > 1 else (None, None)
            return Port(
                context,
                name,
                number,
                *gids[0],
                mtu_bytes=128 << state.active_mtu,
                software=software,
                gid_index6=index6,
                address6=address6,
            )
    return why


def _routable_gids(context: Any, number: int, entries: int) -> list[tuple[int, str]]:
    """Index and address of each family's first RoCE v2 entry, IPv4 before IPv6; indices differ from boot to boot."""
    found: dict[int, tuple[int, str]] = {}
    for entry in context.query_gid_table(entries):
        gid = ipaddress.IPv6Address(entry.gid_str())
        if entry.port_num == number and entry.gid_type == e.IBV_GID_TYPE_ROCE_V2 and not gid.is_link_local:
            address = gid.ipv4_mapped or gid
            found.setdefault(address.version, (entry.gid_index, str(address)))
    return [found[version] for version in sorted(found)]


def gid_of(address: str) -> str:
    """The GID that maps an IP address, in the full 8x4 hexadecimal form that pyverbs needs."""
    ip = ipaddress.ip_address(address)
    mapped = ipaddress.IPv6Address(f"::ffff:{ip}") if ip.version == 4 else ip
    return mapped.exploded
