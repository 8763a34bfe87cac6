"""Micro-kernels whose results an H200 recorded, and what is needed to run them there and here."""
