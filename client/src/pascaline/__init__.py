"""Pascaline: gradients of a training job are added by an appliance in the rack. This is what a job imports.

The story "tensor in -> tensor out" stands in `reduce`; membership of a job in `session`; PyTorch's door in
`pascaline.torch`. Importing this package needs neither torch nor an RDMA device.
"""

from pascaline.codec import ErrorFeedback
from pascaline.errors import (
    ApplianceUnreachable,
    ConfigurationError,
    ContractMismatch,
    EpochEnded,
    JoinRefused,
    LocalSetupError,
    PascalineError,
    SessionClosed,
    Timeout,
    UnsupportedTensor,
)
from pascaline.session import Session
from pascaline.session.work import Work

__version__ = "0.1.0"

__all__ = [
    "ApplianceUnreachable",
    "ConfigurationError",
    "ContractMismatch",
    "EpochEnded",
    "ErrorFeedback",
    "JoinRefused",
    "LocalSetupError",
    "PascalineError",
    "Session",
    "SessionClosed",
    "Timeout",
    "UnsupportedTensor",
    "Work",
    "__version__",
]
