"""Runs many steps from one file, over grids of settings, and writes one report."""
