"""The C kernels of the codec thc: what reference.py computes, bit for bit, for numpy arrays and at memory's speed.

The only module that imports the extension. Arrays are read and written where they lie; any 4-byte alignment will do.
The GIL is released while a kernel runs. Which variant runs is the CPU's choice; PASCALINE_KERNELS forces one (for
tests, and to find a fault): scalar, avx2, avx512.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pascaline.codec.thc.params import Params
from pascaline.errors import ConfigurationError, LocalSetupError, UnsupportedTensor

try:
    from pascaline._kernels import ffi, lib
except ImportError as error:  # installed without a compiler, most often
    ffi = lib = None
    _missing = str(error)

VARIABLE = "PASCALINE_KERNELS"
VARIANTS = ("scalar", "avx2", "avx512")
"""All that exist for x86-64; elsewhere there is only the first."""

Floats = NDArray[np.float32]


def available() -> bool:
    """Whether this installation has the extension."""
    return lib is not None


def remedy() -> str:
    """What to say where the extension is not there."""
    return (
        f"pascaline's C kernels are not there ({_missing}), most often because it was installed without a C compiler: "
        "install gcc and python3-dev and then pascaline again, with PASCALINE_REQUIRE_KERNELS=1 to see what fails"
    )


def variant() -> str:
    """Name of the variant in use."""
    return _text(_library().psc_kernels_variant())


def variants() -> tuple[str, ...]:
    """Those that this CPU runs."""
    return tuple(name for name in VARIANTS if _library().psc_kernels_runs(name.encode()))


def compiler() -> str:
    """The C compiler's version that made the extension, for measurements."""
    return _text(_library().psc_kernels_compiler())


def use(name: str) -> None:
    """Run this variant from now on, in every thread. Raises ConfigurationError."""
    _library()
    _choose(name, "")


def norms(
    params: Params,
    grad: Floats,
    residual: Floats | None = None,
    loss_scale: float = 1.0,
    out: Floats | None = None,
) -> Floats:
    """Each block's own norm, f32 (blocks,), of the chunk `grad` (+ residual * loss_scale), f32 (elems,)."""
    library, job = _library(), _job(params)
    elems = grad.size
    result = np.empty(params.blocks(elems), np.float32) if out is None else out
    library.psc_thc_norms(
        job,
        _read("grad", grad, np.float32, elems),
        _maybe("residual", residual, elems),
        loss_scale,
        elems,
        _write("norms", result, np.float32, params.blocks(elems)),
    )
    return result


def tensor_norm(params: Params, block_norms: Floats) -> Floats:
    """The one norm of a tensor with `scale_per` tensor, f32 (1,), of its blocks' norms in order, f32 (blocks,)."""
    blocks = block_norms.size
    norm = _library().psc_thc_tensor_norm(
        _job(params), _read("block_norms", block_norms, np.float32, blocks), blocks
    )
    return np.array([norm], np.float32)


def encode(
    params: Params,
    rank: int,
    sequence: int,
    chunk: int,
    grad: Floats,
    residual: Floats | None,
    residual_out: Floats | None,
    loss_scale: float,
    scales: Floats,
    tensor_coordinates: int,
    packed: NDArray[np.uint8],
) -> None:
    """Write the chunk's indices to `packed`, u8 (packed_bytes,), and what they miss to `residual_out`, f32 (elems,).

    As reference.encode. `residual_out` may be `residual`; no other two arrays may overlap.
    """
    elems = grad.size
    if not 0 <= rank < params.n:
        raise ConfigurationError(f"rank {rank} is not one of the {params.n} of these thc parameters")
    job = _job(params)  # held until the kernel has returned
    _library().psc_thc_encode(
        _chunk(job, sequence, chunk, tensor_coordinates),
        rank,
        _read("grad", grad, np.float32, elems),
        _maybe("residual", residual, elems),
        _NULL if residual_out is None else _write("residual_out", residual_out, np.float32, elems),
        loss_scale,
        elems,
        _read("scales", scales, np.float32, params.blocks(elems)),
        _write("packed", packed, np.uint8, params.packed_bytes(elems)),
    )


def decode(
    params: Params,
    sequence: int,
    chunk: int,
    contributors: int,
    sums: NDArray[np.uint8] | NDArray[np.uint16],
    scales: Floats,
    tensor_coordinates: int,
    values: Floats,
) -> None:
    """Write the chunk's sum over `contributors` ranks to `values`, f32 (elems,); `sums`: u8 or u16 (coordinates,)."""
    elems = values.size
    if not 0 <= contributors <= params.n:
        raise ConfigurationError(
            f"{contributors} contributors are not 0 to the {params.n} of these thc parameters"
        )
    library, job = _library(), _job(params)
    run, dtype = (
        (library.psc_thc_decode_u8, np.uint8)
        if params.sum_bits == 8
        else (library.psc_thc_decode_u16, np.uint16)
    )
    run(
        _chunk(job, sequence, chunk, tensor_coordinates),
        contributors,
        _read("sums", sums, dtype, params.coordinates(elems)),
        elems,
        _read("scales", scales, np.float32, params.blocks(elems)),
        _write("values", values, np.float32, elems),
    )


_NULL = ffi.NULL if ffi else None
_C_TYPES = {np.float32: "float[]", np.uint8: "uint8_t[]", np.uint16: "uint16_t[]"}


@cache
def _library() -> Any:
    """The extension, once it has been told which variant to use."""
    if lib is None:
        raise LocalSetupError(remedy())
    if name := os.environ.get(VARIABLE):
        _choose(name, f"{VARIABLE}: ")
    return lib


def extension() -> tuple[Any, Any]:
    """(ffi, lib) with its variant chosen, for the other codecs' kernels."""
    return ffi, _library()


def _choose(name: str, who: str) -> None:
    if not lib.psc_kernels_choose(name.encode()):
        able = ", ".join(one for one in VARIANTS if lib.psc_kernels_runs(one.encode()))
        raise ConfigurationError(f"{who}this CPU does not run the kernels {name!r}: choose one of {able}")


def _text(text: Any) -> str:
    value: str = ffi.string(text).decode()
    return value


@lru_cache(maxsize=64)
def _job(params: Params) -> Any:
    """The C side's own numbers of `params`, kept as long as they are in the cache."""
    library = _library()
    settings = ffi.new("struct psc_thc_settings *")
    for field in ("seed", "bits", "n", "t", "debias", "rotate", "fresh_rotation"):
        setattr(settings, field, getattr(params, field))
    settings.norm = getattr(library, f"PSC_THC_{params.norm.upper()}")
    settings.rounding = getattr(library, f"PSC_THC_{params.rounding.upper()}")
    settings.scale_per_tensor = params.scale_per == "tensor"
    settings.table[0 : len(params.table)] = params.table
    job = library.psc_thc_job_new(settings)
    if job == ffi.NULL:
        raise ConfigurationError(
            f"the C kernels refuse {params}, which codec.thc.Params allowed: they are of two versions"
        )
    return ffi.gc(job, library.psc_thc_job_free)


def _chunk(job: Any, sequence: int, chunk: int, tensor_coordinates: int) -> Any:
    return ffi.new("struct psc_thc_chunk *", (job, sequence, chunk, tensor_coordinates))


def _read(name: str, array: NDArray[Any], dtype: type[Any], elems: int) -> Any:
    """The array's memory as a C array of `dtype`. Raises UnsupportedTensor."""
    flags = array.flags
    if array.dtype != dtype or array.size != elems or not (flags.c_contiguous and flags.aligned):
        raise UnsupportedTensor(
            f"{name} is {array.dtype} with {array.size} elements, "
            f"{'contiguous' if flags.c_contiguous else 'not contiguous'} and "
            f"{'aligned' if flags.aligned else 'not aligned'}: thc's kernels need {np.dtype(dtype)} with {elems}, "
            "contiguous and aligned"
        )
    return ffi.from_buffer(_C_TYPES[dtype], array)


def _write(name: str, array: NDArray[Any], dtype: type[Any], elems: int) -> Any:
    if not array.flags.writeable:
        raise UnsupportedTensor(f"{name} is read-only: thc's kernels write to it")
    return _read(name, array, dtype, elems)


def _maybe(name: str, array: Floats | None, elems: int) -> Any:
    return _NULL if array is None else _read(name, array, np.float32, elems)
