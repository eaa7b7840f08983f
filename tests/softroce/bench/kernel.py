"""The VM's kernel and first root: a stock Debian kernel package, unpacked (never installed) into build/vm.

Touches build/vm and apt's download cache only. The result is kept until the folder is deleted or guest_init.sh changes.
"""

from __future__ import annotations

import hashlib
import lzma
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import REPOSITORY, BenchError

VM_FOLDER = REPOSITORY / "build" / "vm"
INIT = Path(__file__).with_name("guest_init.sh")
XZ_MAGIC = b"\xfd7zXZ\x00"
# In this order; modprobe adds what they depend on. crc32_generic is named because rxe asks for "crc32" by name only.
MODULES = (
    *("virtio_pci", "9p", "9pnet_virtio", "overlay", "crc32_generic"),
    *("veth", "stp", "llc", "bridge", "ib_uverbs", "rdma_rxe"),
)


@dataclass(frozen=True)
class Image:
    """What QEMU boots."""

    kernel: Path
    initramfs: Path


def prepare() -> Image:
    """Return the cached image; make it on the first call (70 MB download)."""
    key = hashlib.sha256(INIT.read_bytes() + " ".join(MODULES).encode()).hexdigest()[:12]
    folder = VM_FOLDER / f"image-{key}"
    if not folder.exists():
        VM_FOLDER.mkdir(parents=True, exist_ok=True)
        # Built aside and renamed, so that a broken or concurrent build never leaves half an image.
        with tempfile.TemporaryDirectory(dir=VM_FOLDER, prefix="making-") as scratch:
            made = Path(scratch) / "image"
            made.mkdir()
            _make(_unpack_package(Path(scratch)), Path(scratch), made)
            try:
                made.rename(folder)
            except OSError:
                if not folder.exists():  # else somebody else was faster
                    raise
    return Image(folder / "vmlinux", folder / "initramfs.cpio")


def _tool(*command: str, cwd: Path | None = None, stdin: bytes | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, check=False)
    except FileNotFoundError:
        raise BenchError(f"{command[0]} is missing: run `make setup` as root") from None
    if done.returncode:
        raise BenchError(f"`{' '.join(command)}` failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()


def _unpack_package(scratch: Path) -> Path:
    """Download the package behind linux-image-amd64 (its name carries the version, which changes) and unpack it."""
    lines = _tool("apt-cache", "depends", "linux-image-amd64").splitlines()
    names = [line.split()[-1] for line in lines if line.strip().startswith("Depends: linux-image-")]
    if not names:
        raise BenchError("apt knows no linux-image-amd64: run `apt-get update` on a Debian system")
    _tool("apt-get", "-o", "APT::Sandbox::User=root", "download", names[0], cwd=scratch)
    root = scratch / "root"
    _tool("dpkg-deb", "-x", str(next(scratch.glob("*.deb"))), str(root))
    return root


def _make(root: Path, scratch: Path, out: Path) -> None:
    vmlinuz = next((root / "boot").glob("vmlinuz-*"))
    release = vmlinuz.name.removeprefix("vmlinuz-")
    (out / "vmlinux").write_bytes(_uncompressed(vmlinuz.read_bytes()))

    _tool("depmod", "-b", str(root), release)
    files: dict[Path, None] = {}  # an ordered set
    for module in MODULES:
        for line in _tool("modprobe", "-d", str(root), "-S", release, "--show-depends", module).splitlines():
            if line.startswith("insmod "):
                files[Path(line.split()[1])] = None

    tree = scratch / "initramfs"
    for name in ("bin", "modules"):
        (tree / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", tree / "bin" / "busybox")
    shutil.copy(INIT, tree / "init")
    (tree / "init").chmod(0o755)
    for file in files:
        shutil.copy(file, tree / "modules" / file.name)
    (tree / "modules" / "order").write_text("".join(f"{file.name}\n" for file in files))
    listing = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*"))).encode()
    _tool("cpio", "-o", "-H", "newc", "-O", str(out / "initramfs.cpio"), cwd=tree, stdin=listing)


def _uncompressed(vmlinuz: bytes) -> bytes:
    """Return the ELF kernel inside: letting the guest unpack itself under emulation costs seconds."""
    start = vmlinuz.find(XZ_MAGIC)
    if start < 0:
        return vmlinuz  # another compression: QEMU boots it as it is, only slower
    return lzma.LZMADecompressor().decompress(vmlinuz[start:])
