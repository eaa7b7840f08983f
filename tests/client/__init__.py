"""Tests of the client that need neither an RDMA device nor an appliance."""
