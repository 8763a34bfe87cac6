"""Statements to Python functions, one per basic block."""
