"""What the machine says about its caches, for `status`."""

from __future__ import annotations

from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")


def l2_bytes(core: int, system: Path = SYSTEM) -> int | None:
    """Bytes of the L2 cache that a CPU has, or shares; None where the machine does not say, as some virtual ones.

    `system`: sysfs's folder of CPUs (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu: size is in KiB).
    """
    for index in (system / f"cpu{core}/cache").glob("index*"):
        try:
            if (index / "level").read_text().strip() == "2":
                return int((index / "size").read_text().strip().removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return None
