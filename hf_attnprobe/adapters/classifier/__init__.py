"""Attention classifiers of this package behind the protocol of tests."""
