"""The farthest attention within ε, found in the ways that models and heads allow."""
