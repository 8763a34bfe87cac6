"""The version of the package; setup.py reads it without importing anything else."""

__version__ = "0.1.0"
