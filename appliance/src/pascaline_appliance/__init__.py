"""The appliance process: owns the data plane, admits jobs, swaps queue pair data with workers, and tells who asks.

It stands beside the story "packet in -> result out": lanes run without it, and nothing here touches a packet.
"""

__version__ = "0.1.0"
