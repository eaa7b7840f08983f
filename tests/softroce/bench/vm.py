"""Runs a task inside a VM: the host's tree at the same paths, the fabric inside, everything under software emulation.

Touches a run folder under build/vm, deleted after success; a failure leaves the console's log there. A VM that does not
boot, or ends without the command's exit status, is a BenchError.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import FABRIC, REPOSITORY, BenchError, Outcome, Task
from .kernel import VM_FOLDER, Image, prepare

PLACE = "rxe-vm"
BOOT_TIMEOUT_S = 300.0  # 6 s on an idle machine; 39 s were seen on a busy one
POWER_OFF_TIMEOUT_S = 30.0
# no_timer_check: the kernel gives the timer's interrupt a few ticks to come, and panics; an emulator that shares its
# host's CPUs may not run for so long.
KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check mitigations=off "
    "random.trust_bootloader=on rdinit=/init"
)


def run(task: Task) -> Outcome:
    """Boot, run, power off."""
    image = prepare()
    control = Path(tempfile.mkdtemp(dir=VM_FOLDER, prefix="run-"))
    (control / "start.sh").write_text(_start_script(task))
    began = time.monotonic()
    with subprocess.Popen(
        _qemu(image, control, task), stdin=None if task.interactive else subprocess.DEVNULL
    ) as qemu:
        try:
            boot_s = _wait_for_boot(qemu, control, began)
            _wait_for_end(qemu, control, task)
        finally:
            qemu.kill()
    try:
        status = int((control / "status").read_text())
    except (OSError, ValueError):
        raise BenchError(
            f"the VM ended without the command's exit status\n{_console_tail(control)}"
        ) from None
    total_s = time.monotonic() - began
    shutil.rmtree(control)
    return Outcome(PLACE, status, boot_s, total_s)


def _start_script(task: Task) -> str:
    """The script that guest_init.sh starts, as root of the overlay."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in task.variables(PLACE).items()]
    share = []
    if task.share:
        path = shlex.quote(str(task.share))
        options = "trans=virtio,version=9p2000.L,msize=524288,cache=none"
        share = [f"mkdir -p {path}", f"mount -t 9p -o {options} share {path}"]
    lines = [
        "stty sane" if task.interactive else "stty -F /dev/ttyS1 raw -echo",
        "set -e",
        "export HOME=/dev/shm TMPDIR=/dev/shm TERM=dumb",
        *exports,
        *share,
        f"cd {shlex.quote(str(REPOSITORY))}",
        f"sh {shlex.quote(str(FABRIC))} {task.workers}",
        "touch /run/bench/booted",
        f"exec {shlex.join(task.command)}",
    ]
    return "\n".join(lines) + "\n"


def _qemu(image: Image, control: Path, task: Task) -> list[str]:
    # Nehalem: AVX is 4 to 7 times slower than SSE under emulation. /dev/kvm existing does not mean that it works.
    kvm = os.environ.get("PASCALINE_KVM") == "1"
    command = ["setpriv", "--pdeathsig", "KILL"]  # a VM must not outlive whoever asked for it
    command += ["qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none"]
    command += ["-machine", "q35,usb=off,smbus=off,sata=off", "-smp", "2", "-m", str(task.memory_mb)]
    command += ["-accel", "kvm", "-cpu", "host"] if kvm else ["-accel", "tcg", "-cpu", "Nehalem"]
    command += ["-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", KERNEL_ARGUMENTS]
    command += ["-serial", f"file:{control / 'console.log'}"]
    command += ["-chardev", "stdio,id=terminal,signal=off", "-serial", "chardev:terminal"]
    command += _folder("root", Path("/"), "readonly=on,")
    command += _folder("control", control)
    if task.share:
        task.share.mkdir(parents=True, exist_ok=True)
        command += _folder("share", task.share)
    return command


def _folder(tag: str, path: Path, options: str = "") -> list[str]:
    escaped = str(path).replace(",", ",,")
    backend = f"local,id={tag},path={escaped},{options}security_model=none,multidevs=remap"
    return ["-fsdev", backend, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def _wait_for_boot(qemu: subprocess.Popen[bytes], control: Path, began: float) -> float:
    while not (control / "booted").exists():
        if qemu.poll() is not None:
            raise BenchError(f"the VM ended before the fabric was up\n{_console_tail(control)}")
        if time.monotonic() - began > BOOT_TIMEOUT_S:
            raise BenchError(f"the VM did not boot within {BOOT_TIMEOUT_S:.0f} s\n{_console_tail(control)}")
        time.sleep(0.1)
    return time.monotonic() - began


def _wait_for_end(qemu: subprocess.Popen[bytes], control: Path, task: Task) -> None:
    deadline = time.monotonic() + task.timeout_s
    while qemu.poll() is None:
        if (control / "status").exists():
            # The command has ended; a power-off that hangs is no reason to lose its result.
            deadline = min(deadline, time.monotonic() + POWER_OFF_TIMEOUT_S)
        if time.monotonic() > deadline:
            if (control / "status").exists():
                return
            raise BenchError(
                f"the command did not end within {task.timeout_s:.0f} s\n{_console_tail(control)}"
            )
        time.sleep(0.1)


def _console_tail(control: Path, lines: int = 30) -> str:
    log = control / "console.log"
    sys.stdout.flush()
    text = log.read_text(errors="replace") if log.exists() else ""
    return f"--- the console's last lines ({log}) ---\n" + "\n".join(text.splitlines()[-lines:])
