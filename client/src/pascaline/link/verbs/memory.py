"""Registered memory: whole pages that the NIC reads from or writes to, cut into slots. Touches mmap and MRs only."""

from __future__ import annotations

import ctypes
import errno
import mmap
import resource
from typing import Any

from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError

from pascaline.errors import LocalSetupError


class Registered:
    """`slots` slots of `slot_bytes` bytes in one memory region. A forked child does not get these pages at all."""

    def __init__(self, pd: Any, slots: int, slot_bytes: int, access: int) -> None:
        self.bytes = slots * slot_bytes
        self._memory = mmap.mmap(-1, self.bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_DONTFORK)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        whole = memoryview(self._memory)
        self.slots = [whole[slot * slot_bytes : (slot + 1) * slot_bytes] for slot in range(slots)]
        try:
            self._mr = MR(pd, self.bytes, access, address=self.address)
        except PyverbsRDMAError as error:
            raise _refused(self.bytes, error) from error
        self.lkey: int = self._mr.lkey
        self.rkey: int = self._mr.rkey

    def close(self) -> None:
        """Deregister. The pages go when the last view of them goes."""
        self._mr.close()


def _refused(bytes_: int, error: Any) -> LocalSetupError:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft // 1024} KiB"
    if error.error_code not in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
        return LocalSetupError(f"registering {bytes_} bytes with the RDMA device failed: {error}")
    return LocalSetupError(
        f"registering {bytes_} bytes with the RDMA device was refused; `ulimit -l` (locked memory) is {limit}: "
        "raise it, for instance `* - memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity in a "
        "systemd unit or `--ulimit memlock=-1` for a container, or ask for a smaller window or chunk_bytes"
    )
