"""Generated texts of which is known what decides their labels."""
