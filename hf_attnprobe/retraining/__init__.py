"""Tests that train models beside a base (Wiegreffe & Pinter 2019, Mohankumar et al. 2020).

A file per test, which registers itself; a test, its function and its file have one name.
"""

TESTS = ("uniform", "seeds", "adversary", "diagnostic_mlp", "rationale")
"""In the order of reports. The diagnostic MLP uses the adversary's models."""
