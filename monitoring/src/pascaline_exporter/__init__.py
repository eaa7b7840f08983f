"""pascaline-exporter: the appliance's statistics segment as Prometheus metrics.

`segment` reads the shared file, `collector` names what it found, `cli` serves it. Nothing here writes to the segment
or talks to the appliance, so a broken exporter cannot disturb a training job.
"""

__version__ = "0.1.0"
