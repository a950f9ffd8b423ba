"""One text and what the tests measure of it: scores of its tokens, prediction in words."""
