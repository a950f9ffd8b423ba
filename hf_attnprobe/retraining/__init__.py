"""Tests that train models beside a base (Wiegreffe & Pinter 2019)."""
