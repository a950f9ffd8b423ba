"""The sections of one audit's page, a file each. Pure: its result in, HTML out."""
