"""Which of a worker's addresses counts: the one of the data port's family, if it can be a worker's."""

from __future__ import annotations

import pytest

from pascaline_appliance.admission import check_join
from pascaline_appliance.config import Config
from pascaline_appliance.contract.control import CONTROL_VERSION, Join
from pascaline_appliance.dataplane import WIRE_VERSION
from pascaline_appliance.errors import Refusal

V4, V6 = "10.77.0.1/24", "fd00:77::1/64"


def joined(data: str, address: str, address6: str | None) -> Join:
    config = Config.model_validate({"data": {"address": data}, "port": [{"device": "--vdev=net_null0"}]})
    join = Join(
        control_version=CONTROL_VERSION,
        wire_version=WIRE_VERSION,
        job="job",
        restart_count=0,
        rank=0,
        world_size=1,
        ops=["sum_i32"],
        plan="",
        mtu=1024,
        address=address,
        address6=address6,
        host="trainer",
    )
    return check_join(join, config, ())


@pytest.mark.parametrize(
    ("data", "address", "address6", "counts"),
    [
        (V4, "10.77.0.2", None, "10.77.0.2"),
        (V4, "10.77.0.2", "fd00:77::2", "10.77.0.2"),
        (V4, "192.0.2.9", None, "192.0.2.9"),
        (V6, "10.77.0.2", "fd00:77::2", "fd00:77::2"),
        (V6, "fd00:77::2", None, "fd00:77::2"),
        (V6, "FD00:77:0::0:2", None, "fd00:77::2"),
        (V6, "2001:db8::9", None, "2001:db8::9"),
    ],
)
def test_an_address_of_the_data_port_s_family_counts(
    data: str, address: str, address6: str | None, counts: str
) -> None:
    join = joined(data, address, address6)
    assert (join.address, join.address6) == (counts, None)


@pytest.mark.parametrize(
    ("data", "address", "address6", "sentence"),
    [
        (
            V4,
            "fd00:77::2",
            None,
            "address fd00:77::2, the appliance's data port 10.77.0.1: give .* an IPv4 address",
        ),
        (
            V6,
            "10.77.0.2",
            None,
            "address 10.77.0.2, the appliance's data port fd00:77::1: give .* an IPv6 address",
        ),
        (V6, "10.77.0.2", "fe80::2", "cannot have the address fe80::2"),
        (V6, "fe80::2%eth0", None, "cannot have the address fe80::2%eth0"),
        (V6, "::ffff:10.77.0.2", None, "cannot have the address ::ffff:"),
        (V6, "fd00:77::1", None, "cannot have the address fd00:77::1"),
        (V6, "ff02::1", None, "cannot have the address ff02::1"),
        (V6, "::", None, "cannot have the address ::"),
        (V4, "10.77.0.1", "fd00:77::2", "cannot have the address 10.77.0.1"),
        (V6, "here", None, "'here' of rank 0 is not an IP address"),
    ],
)
def test_an_address_that_cannot_be_is_refused(
    data: str, address: str, address6: str | None, sentence: str
) -> None:
    with pytest.raises(Refusal, match=sentence) as refused:
        joined(data, address, address6)
    assert refused.value.reason == "address"
