"""Only what pyproject.toml cannot say yet: the cffi module to compile."""

from setuptools import setup

setup(cffi_modules=["build_kernels.py:ffi"])
