"""Finds pyverbs. Distributions ship it for their own Python only, outside of any virtual environment.

First step of the link: may touch sys.path and the environment, nothing of RDMA itself.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from pascaline.errors import LocalSetupError

DISTRIBUTION_PACKAGES = Path("/usr/lib/python3/dist-packages")
_MODULES = ("addr", "cq", "device", "enums", "fork", "mr", "pd", "pyverbs_error", "qp", "wr")


def require() -> None:
    """Make every pyverbs module that this room uses importable, or say what to install."""
    try:
        _import_all()
        return
    except ModuleNotFoundError:
        pass
    if not (DISTRIBUTION_PACKAGES / "pyverbs").is_dir():
        raise LocalSetupError(
            "pyverbs, the RDMA library's Python binding, is not installed: run `apt install python3-pyverbs` "
            "(or your distribution's package of rdma-core's pyverbs; it is not on PyPI)"
        )
    # Appended, not inserted, so that the environment's own numpy wins; and taken out again once pyverbs is loaded.
    sys.path.append(str(DISTRIBUTION_PACKAGES))
    try:
        _import_all()
    except ImportError as error:
        built_for = sorted(
            {path.name.split(".")[1] for path in (DISTRIBUTION_PACKAGES / "pyverbs").glob("qp.*.so")}
        )
        raise LocalSetupError(
            f"pyverbs in {DISTRIBUTION_PACKAGES} is built for {', '.join(built_for) or 'no Python'} and this is "
            f"{sys.implementation.cache_tag} ({error}): use a virtual environment of the distribution's Python, "
            "or `apt install python3-pyverbs` for this one"
        ) from error
    finally:
        sys.path.remove(str(DISTRIBUTION_PACKAGES))


def _import_all() -> None:
    for module in _MODULES:
        importlib.import_module(f"pyverbs.{module}")
