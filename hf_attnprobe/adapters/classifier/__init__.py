"""Adapters of this package's attention classifiers."""
