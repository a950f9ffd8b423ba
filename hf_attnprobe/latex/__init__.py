"""Tables of LaTeX, ready for a paper. Pure."""
