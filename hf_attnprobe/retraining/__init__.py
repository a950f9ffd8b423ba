"""Tests that train models beside a base (Wiegreffe & Pinter 2019, Mohankumar et al. 2020)."""

import importlib


# A test registers itself when its module is imported. This is the order of the report; the
# diagnostic MLP uses the adversary's models.
for _name in ("uniform", "seeds", "adversary", "diagnostic_mlp", "rationale"):
    importlib.import_module(f"{__name__}.{_name}")
