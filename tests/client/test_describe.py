"""What ranks compare of a codec, in words: a refusal must name the parameter that differs."""

from __future__ import annotations

import dataclasses
import re

from pascaline import codec as codecs
from pascaline.codec.thc import settings

SWITCHED = {
    "norm": "max",
    "rotate": False,
    "scale_per": "tensor",
    "rounding": "independent",
    "fresh_rotation": False,
    "debias": 1.05,
    "bits": 2,
    "correlation": 0.25,
}


def test_a_description_says_every_parameter_that_is_not_the_default() -> None:
    assert codecs.describe(codecs.Thc(), 0) == "thc"
    for key, value in SWITCHED.items():
        assert codecs.describe(codecs.Thc(**{key: value}), 0) == f"thc {key} {value}"
    assert codecs.describe(codecs.Thc(g=20, p=1 / 3), 7) == f"thc g 20 p {1 / 3!r} seed 7"
    assert codecs.describe(codecs.TopK(share=0.1), 0) == "topk share 0.1"
    assert codecs.describe(codecs.resolve("f32"), 7, 2) == "f32"
    tables = [codecs.Thc(table=(*range(15), last), t=2.0) for last in (15, 16)]
    assert codecs.describe(tables[0], 0) != codecs.describe(tables[1], 0)
    said = {one.name for one in dataclasses.fields(codecs.Thc)} - {"name", "g", "p", "table", "t"}
    assert said == SWITCHED.keys()  # a new parameter wants a row


def test_what_a_setting_does_anyway_is_not_said() -> None:
    for name in settings.NAMES:
        usual = settings.defaults(name)
        assert codecs.describe(codecs.Thc(name=name, **usual), 0) == name
        params = settings.setting(name, 2, 0)
        for key in usual.keys() - {"correlation", "t"}:
            assert getattr(params, key) == usual[key]


def test_a_description_that_is_too_long_is_cut_and_still_tells_jobs_apart() -> None:
    options = [codecs.Thc(**SWITCHED | {"debias": debias}) for debias in (1.05, 1.06)]  # type: ignore[arg-type]
    for room in range(9, 129):
        texts = [codecs.describe(one, 2**64 - 1, room) for one in options]
        assert texts[0] != texts[1]
        assert all(len(text) <= room for text in texts)
    assert re.fullmatch(r"thc norm max and 8 more #[0-9a-f]{8}", codecs.describe(options[0], 1, 36))
    assert re.fullmatch(r"#[0-9a-f]{8}", codecs.describe(options[0], 1, 9))
