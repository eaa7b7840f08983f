"""The link over RoCEv2: device and GID found, queue pairs made, WRITEs posted. The only room that imports pyverbs.

Import it when a session is about to join, not before: a machine without pyverbs can still import pascaline.
"""

from pascaline.link.verbs.library import require

require()

from pascaline.link.verbs.device import Port, open_port  # noqa: E402
from pascaline.link.verbs.link import VerbsLink  # noqa: E402

__all__ = ["Port", "VerbsLink", "open_port"]
