"""Running a model over texts: encode, batch, predict and read attention."""
