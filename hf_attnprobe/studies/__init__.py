"""Many steps from one file, one report: grids, and the tables of papers."""
