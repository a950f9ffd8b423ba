"""Decoders that answer from a passage: the prompt, passes over it, and their adapter."""
