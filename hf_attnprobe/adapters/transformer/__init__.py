"""Adapter of any Transformer: reads its attention, edits it, and resumes above the edit."""
