"""The verb ``spike``: what the tests see of an effect of known size in a user's model."""
