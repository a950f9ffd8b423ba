"""Engines that place the work of a job: thin, and none of them a dependency."""
