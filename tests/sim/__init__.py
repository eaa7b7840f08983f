"""The deterministic rack: many seeds of dpdk_c/sim, added up and judged."""
