"""The configuration file: what loads, and what is refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pascaline_appliance import config as config_module
from pascaline_appliance.config import load_config
from pascaline_appliance.errors import ConfigError
from tests.appliance.rack import tables, toml

EXAMPLE = Path(config_module.__file__).with_name("example.toml")


def test_the_example_loads_as_it_is() -> None:
    config = load_config(EXAMPLE)
    assert str(config.data.address) == "10.77.0.1/24"
    assert config.port[0].devargs.startswith("net_af_packet0,iface=pascaline0")


def test_what_the_example_shows_commented_out_are_the_defaults(tmp_path: Path) -> None:
    shown = []
    for line in EXAMPLE.read_text().splitlines():
        key = line.removeprefix("# ").partition(" = ")[0]
        absent = key in ("gateway", "mtu", "window", "chunk_bytes")
        wished = line.startswith("# ") and " = " in line and key.isidentifier() and not absent
        shown.append(line.removeprefix("# ") if wished else line)
    path = tmp_path / "all.toml"
    path.write_text("\n".join(shown))
    assert load_config(path) == load_config(EXAMPLE)
    assert sum(line.startswith("# ") for line in shown) < 17, "keys are not shown any more"


@pytest.mark.parametrize(
    ("table", "key", "value", "sentence"),
    [
        ("data", "adress", "10.0.0.1/24", "data.adress is not a known key"),
        ("dada", "address", "10.0.0.1/24", "dada is not a known key"),
        ("data", "dscp", 64, "data.dscp = 64: Input should be less than or equal to 63"),
        ("data", "mtu", 1500, "data.mtu = 1500: Input should be 256, 512, 1024, 2048 or 4096"),
        (
            "data",
            "address",
            "10.0.0.0/24",
            "data.address = '10.0.0.0/24': 10.0.0.0 is the address of the network",
        ),
        (
            "data",
            "address",
            "10.0.0.255/24",
            "10.0.0.255 is the address of the network 10.0.0.0/24 itself, or its",
        ),
        ("data", "address", "224.0.0.1/24", "224.0.0.1 cannot be the data port's"),
        ("data", "address", "127.0.0.1/8", "127.0.0.1 cannot be the data port's"),
        ("data", "gateway", "10.78.0.1", "data: gateway 10.78.0.1 is outside 10.77.0.0/24"),
        ("data", "gateway", "10.77.0.1", "data: gateway 10.77.0.1 is the appliance's own address"),
        (
            "data",
            "address",
            "10.0.0/24",
            "data.address = '10.0.0/24': is not an address with a prefix length",
        ),
        ("data", "address", "fd00::77::1/64", "is not an address with a prefix length, such as 10.77.0.1/24"),
        ("data", "address", "fe80::1/64", "fe80::1 cannot be the data port's"),
        ("data", "address", "::ffff:10.77.0.1/120", "cannot be the data port's"),
        ("data", "address", "ff02::1/64", "ff02::1 cannot be the data port's"),
        ("data", "gateway", "fd00:77::fe", "gateway fd00:77::fe is of IPv6, address 10.77.0.1/24 of IPv4"),
        ("data", "gateway", "10.77.0", "data.gateway = '10.77.0': is not an IP address"),
        ("port", "device", "eth0", "port.0.device = 'eth0': 'eth0' is not an EAL device argument"),
        ("limits", "window", 3, "limits.window = 3: Input should be 1, 2, 4, 8, 16, 32, 64 or 128"),
        (
            "limits",
            "slot_bytes",
            131072,
            "2 * window 4 * chunks of 65536 bytes are 524288 bytes of slots for one job, slot_bytes = 131072 for",
        ),
        ("lanes", "cores", [1] * 17, "lanes.cores: List should have at most 16 items"),
        ("lanes", "ports", [0, 0], "lanes.ports names 2 ports, lanes.cores 1 lanes: one for each"),
        ("lanes", "ports", [1], "lanes.ports names port 1, the last [[port]] is number 0"),
        ("lanes", "addresses", ["10.77.0.1"] * 2, "lanes.addresses has 2 addresses, lanes.cores 1 lanes"),
        ("lanes", "addresses", ["10.78.0.1"], "lane 0 10.78.0.1, its port's network is 10.77.0.0/24"),
        ("lanes", "steering", "rss", "lanes.steering = 'rss': Input should be 'auto', 'ib_bth'"),
        ("port", "address", "10.77.0.1/24", "port.0 has an address or a gateway of its own"),
        (
            "port2",
            "device",
            "--vdev=net_ring1",
            "port.1 has no address, and data.address 10.77.0.1/24 is the",
        ),
        ("port2", "address", "10.77.0.0/24", "port.1.address = '10.77.0.0/24': 10.77.0.0 is the address of"),
        (
            "limits",
            "deadline_s",
            10.9,
            "deadline_s = 10.9 cannot be kept when a fault is seen after progress_s = 10:",
        ),
        ("control", "port", "4790", "control.port = '4790': Input should be a valid integer"),
        ("control", "address", "10.77.0.2", "set control.insecure_listen = true"),
        ("memory", "huge_pages", 1, "memory.huge_pages = 1: Input should be a valid boolean"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    tmp_path: Path, table: str, key: str, value: Any, sentence: str
) -> None:
    configuration = tables(tmp_path)
    configuration.setdefault(table, {"device": "--vdev=net_ring1"} if table == "port2" else {})[key] = value
    path = tmp_path / "wrong.toml"
    path.write_text(toml(configuration))
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert sentence in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def two_ports(tmp_path: Path, **lanes: Any) -> str:
    """A second port and two lanes, and what is changed of them."""
    configuration = tables(tmp_path)
    port2 = {"device": "--vdev=net_ring1", "address": lanes.pop("address", "10.78.0.1/24")}
    configuration["lanes"] = {"cores": [1, 2], **lanes}
    path = tmp_path / "two.toml"
    path.write_text(toml({**configuration, "port2": port2}))
    config = load_config(path)
    return " ".join(f"{port} {config.lane_address(lane)}" for lane, port in enumerate(config.lane_ports))


def test_lanes_take_their_ports_in_turn_or_as_they_are_told(tmp_path: Path) -> None:
    assert two_ports(tmp_path) == "0 10.77.0.1 1 10.78.0.1"
    assert two_ports(tmp_path, ports=[1, 0]) == "1 10.78.0.1 0 10.77.0.1"
    assert two_ports(tmp_path, addresses=["10.77.0.1", "10.78.0.9"]) == "0 10.77.0.1 1 10.78.0.9"
    assert two_ports(tmp_path, cores=[1, 2, 3]) == "0 10.77.0.1 1 10.78.0.1 0 10.77.0.1"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cores": [1]}, r"no lane reads port 1: 1 lanes are on ports \[0\]"),
        ({"ports": [1, 1]}, r"no lane reads port 0: 2 lanes are on ports \[1, 1\]"),
        ({"address": "fd00::1/64"}, r"port.1 has the address fd00::1/64, data.address is 10.77.0.1/24"),
        ({"address": "10.77.0.1/24"}, r"port.1 has the address 10.77.0.1 of another port"),
        ({"addresses": ["10.77.0.1", "10.77.0.2"]}, r"lane 1 10.77.0.2, its port's network is 10.78.0.0/24"),
        (
            {"cores": [1, 2, 3], "addresses": ["10.77.0.1", "10.78.0.1", "10.77.0.1"]},
            r"lanes.addresses gives 10.77.0.1 to two lanes",
        ),
    ],
)
def test_lanes_and_ports_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        two_ports(tmp_path, **changes)


def test_the_data_port_may_have_an_ipv6_address(tmp_path: Path) -> None:
    configuration = tables(tmp_path)
    configuration["data"] = {"address": "fd00:77::1/64", "gateway": "fe80::fe"}
    path = tmp_path / "ipv6.toml"
    path.write_text(toml(configuration))
    data = load_config(path).data
    assert (str(data.address), str(data.gateway)) == ("fd00:77::1/64", "fe80::fe")


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"data is missing; port is missing"):
        load_config(path)


def test_a_number_without_an_end_is_refused(tmp_path: Path) -> None:
    """JSON has no infinity: a worker would be offered null."""
    path = tmp_path / "endless.toml"
    path.write_text(
        toml({**tables(tmp_path), "limits": {}}).replace("[limits]", "[limits]\nstraggler_timeout_s = inf")
    )
    with pytest.raises(
        ConfigError, match=r"limits\.straggler_timeout_s = inf: Input should be a finite number"
    ):
        load_config(path)


def test_both_addresses_of_a_point_to_point_link_are_hosts(tmp_path: Path) -> None:
    path = tmp_path / "pair.toml"
    path.write_text(toml({**tables(tmp_path), "data": {"address": "10.0.0.0/31", "gateway": "10.0.0.1"}}))
    assert str(load_config(path).data.address) == "10.0.0.0/31"
