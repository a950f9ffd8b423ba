"""The tests of a trained model as it is, on every text, and the report of what they say."""
