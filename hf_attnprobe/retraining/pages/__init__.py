"""The page of a retraining, a file per part."""
