"""The verb ``calibrate``: how often the verdict is wrong where the truth is known."""
