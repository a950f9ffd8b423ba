"""Files on disk: folders and their owners, rows, plain data, provenance."""
