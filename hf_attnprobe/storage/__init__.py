"""What is on disk: folders and whose they are, rows, plain data, provenance."""
