"""Tests that read attention as shares of a text (Mohankumar et al. 2020, Section 5)."""
