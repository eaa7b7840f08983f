"""Start and stop of the real process: every failure has an exit code and one sentence, and a stop is clean."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.appliance.conftest import Start
from tests.appliance.job import refused
from tests.appliance.rack import PATIENCE_S, WORKER_IP, Rack, ip, until
from tests.appliance.worker import Control

HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
AF_PACKET = "--vdev=net_af_packet0,framesz=8192,blocksz=131072,framecnt=512,iface="


@pytest.fixture
def narrow_link(rack: Rack) -> Iterator[str]:
    """An interface whose MTU carries a RoCE MTU of 1024 at most."""
    ip("-n", rack.name, "link", "add", "narrow0", "mtu", "1500", "type", "veth", "peer", "name", "narrow1")
    for interface in ("narrow0", "narrow1"):
        ip("-n", rack.name, "link", "set", interface, "up")
    yield "narrow0"
    ip("-n", rack.name, "link", "delete", "narrow0")


def expect_failure(start: Start, code: int, *parts: str, **changes: dict[str, Any]) -> None:
    """One sentence on stderr that has all `parts`, nothing else, and the exit code."""
    got, stderr = start(**changes).failure()
    assert got == code, stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith("pascaline-appliance: ")
    for part in parts:
        assert part in stderr


def test_an_unknown_key(start: Start) -> None:
    expect_failure(start, 10, "data.colour is not a known key", data={"colour": "red"})


def test_too_few_huge_pages(start: Start) -> None:
    memory = {"huge_pages": True, "memory_mib": 1048576}
    expect_failure(
        start, 11, "want 1048576 MiB of huge pages", "sysctl vm.nr_hugepages=524288", memory=memory
    )


def test_an_interface_that_is_not_there(start: Start) -> None:
    expect_failure(
        start, 12, 'device "net_af_packet0,', "iface=nowhere0", port={"device": f"{AF_PACKET}nowhere0"}
    )


def test_a_pci_device_that_is_not_there(start: Start) -> None:
    expect_failure(start, 12, 'device "0000:ff:1f.7" is not there', port={"device": "-a 0000:ff:1f.7"})


def test_a_driver_that_does_not_send_chains(start: Start) -> None:
    device = {"device": "--vdev=net_null0"}
    expect_failure(start, 17, 'device "net_null0" cannot be used: its driver net_null', port=device)


def test_a_link_too_narrow_for_the_wished_mtu(start: Start, narrow_link: str) -> None:
    expect_failure(
        start,
        13,
        "RoCE MTU 4096 wants a link MTU of 4176, interface narrow0 has 1500",
        "ip link set narrow0 mtu 4176",
        port={"device": AF_PACKET + narrow_link},
        data={"mtu": 4096},
    )


def test_a_memif_whose_buffers_are_too_small(start: Start, tmp_path: Path) -> None:
    expect_failure(
        start,
        13,
        "RoCE MTU 4096 wants memif buffers of 4190 bytes",
        "has 2048: give it bsize=8192 or lower data.mtu",
        port={"device": f"--vdev=net_memif0,socket={tmp_path / 'm.sock'},socket-abstract=no"},
        data={"mtu": 4096},
    )


def test_a_memif_whose_rings_are_not_as_configured(start: Start, tmp_path: Path) -> None:
    memif = f"--vdev=net_memif0,socket={tmp_path / 'm.sock'},socket-abstract=no,bsize=8192,rsize=9"
    expect_failure(
        start,
        17,
        "port.rx_ring_packets = 1024 and port.tx_ring_packets = 512",
        "its rsize=9 is 512",
        port={"device": memif, "rx_ring_packets": 1024},
    )


def test_without_a_wish_the_mtu_is_the_link_s(start: Start, narrow_link: str) -> None:
    appliance = start(port={"device": AF_PACKET + narrow_link})
    assert "RoCE MTU 1024" in appliance.ready()
    assert appliance.stop() == 0


def test_a_control_port_in_use(start: Start, rack: Rack) -> None:
    with rack.inside(lambda: socket.create_server(("127.0.0.1", 4790))):
        expect_failure(start, 14, "cannot listen on 127.0.0.1:4790: Address already in use")


def test_a_control_address_of_another_machine(start: Start) -> None:
    control = {"address": "10.99.0.1", "insecure_listen": True}
    expect_failure(start, 14, "cannot listen on 10.99.0.1:4790", "change control.address", control=control)


def test_a_statistics_file_that_cannot_be(start: Start) -> None:
    stats = {"path": "/proc/nowhere/stats"}
    expect_failure(start, 15, "cannot create the statistics file /proc/nowhere/stats", stats=stats)


def test_a_core_that_is_not_ours(start: Start) -> None:
    expect_failure(
        start, 16, "lanes.cores names CPU 1000, this process may use only CPUs 0", lanes={"cores": [1000]}
    )


def test_too_little_memory(start: Start) -> None:
    expect_failure(
        start,
        17,
        "from the 64 MiB of memory.memory_mib: raise it",
        memory={"memory_mib": 64},
        port={"rx_ring_packets": 16384},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_stop(start: Start, tmp_path: Path, number: int) -> None:
    appliance = start()
    appliance.ready()
    magic, version, _, lanes, _, stopped = struct.unpack("<6I", (tmp_path / "stats").read_bytes()[:24])
    assert (magic, version, lanes, stopped) == (0x50534353, 1, 1, 0)
    assert (tmp_path / "stats").stat().st_mode & 0o777 == 0o644
    assert appliance.stop(number) == 0
    assert struct.unpack("<6I", (tmp_path / "stats").read_bytes()[:24])[5] == 1
    assert not (tmp_path / "status.sock").exists()
    assert appliance.stderr == ""


def test_a_crash_leaves_nothing_that_hinders_the_next_start(start: Start, tmp_path: Path) -> None:
    appliance = start()
    appliance.ready()
    inode = (tmp_path / "stats").stat().st_ino
    appliance.stop(signal.SIGKILL)
    assert (tmp_path / "status.sock").exists()
    again = start()
    again.ready()
    assert (tmp_path / "stats").stat().st_ino != inode
    assert again.stop() == 0


def test_systemd_is_told(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(PATIENCE_S)
        appliance = start(environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert notified.recv(100) == b"READY=1"
        assert appliance.stop() == 0
        assert notified.recv(100) == b"STOPPING=1"


def test_the_rack_s_address_is_listened_on_only_when_told_and_said_so(start: Start, rack: Rack) -> None:
    appliance = start(control={"address": WORKER_IP, "insecure_listen": True})
    appliance.ready()
    assert f"control.insecure_listen = true: {WORKER_IP}:4790 takes any worker" in appliance.stderr
    for address in ("127.0.0.1", WORKER_IP):
        rack.inside(lambda address=address: socket.create_connection((address, 4790), PATIENCE_S)).close()
    assert appliance.stop() == 0


def test_huge_pages(start: Start) -> None:
    reserved = HUGE_PAGES / "nr_hugepages"
    before = int(reserved.read_text())
    reserved.write_text(str(before + 64))
    try:
        if int((HUGE_PAGES / "free_hugepages").read_text()) < 64:
            pytest.skip("128 MiB of huge pages cannot be reserved here")
        appliance = start(memory={"huge_pages": True, "memory_mib": 128})
        appliance.ready()
        assert int((HUGE_PAGES / "free_hugepages").read_text()) == 0 or before > 0
        assert appliance.stop() == 0
    finally:
        reserved.write_text(str(before))


@pytest.mark.parametrize(
    ("variable", "value", "choice"),
    [
        ("PASCALINE_ARITH", "sse4", '"scalar", "avx2" and "avx512"'),
        ("PASCALINE_CRC", "", '"slicing", "pclmul", "vpclmul_each" and "vpclmul"'),
    ],
)
def test_a_variant_that_is_not_there(start: Start, variable: str, value: str, choice: str) -> None:
    got, stderr = start({variable: value}).failure()
    assert got == 10, stderr
    assert stderr.startswith(f'pascaline-appliance: {variable} is "{value}", which is not among {choice}')
    assert stderr.count("\n") == 1


def test_status_says_what_runs(start: Start, tmp_path: Path) -> None:
    appliance = start({"PASCALINE_ARITH": "scalar", "PASCALINE_CRC": "slicing"})
    appliance.ready()
    command = [
        sys.executable,
        "-m",
        "pascaline_appliance",
        "status",
        "--socket",
        str(tmp_path / "status.sock"),
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout
    assert "RoCE MTU 4096 bytes, payload lent, 10.77.0.1/24" in text
    assert "0 on core" in text
    assert "steering port of its own\n" in text
    assert "kernels scalar for ops, slicing for the ICRC" in text
    assert "slots   lane 0: 0 of 8388608 bytes; " in text
    until(lambda: appliance.status()["lanes"][0]["polls"] > 0)
    assert appliance.stop() == 0
    late = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert late.returncode == 18
    assert "no appliance answers at" in late.stderr


def test_what_reads_streams_is_in_the_budget_of_slots(rack: Rack, start: Start) -> None:
    """320 bytes a rank and pool: a job whose slots fill the lane's memory fits only without such an op."""
    slots = 2 * 65536 + 2 * 2 * 4096
    appliance = start(limits={"slot_bytes": slots, "window": 1, "small_window": 2})
    appliance.ready()
    fields = {"window": 1, "chunk_bytes": 65536}
    refused(
        Control(rack, ops=["sum_f32", "expand_sum_f32"], **fields),
        "budget",
        f"the job's slots take {slots + 640} bytes (640 of them for the streams of 1 ranks); lane 0 has {slots}",
    )
    control = Control(rack, ops=["sum_f32"], **fields)
    assert control.receive()["type"] == "offer"
    assert appliance.status()["lanes"][0]["slot_bytes"] == slots
    control.close()
    assert appliance.stop() == 0
