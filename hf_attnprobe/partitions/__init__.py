"""Audits in partitions: planned once, worked on by as many processes as there are."""
