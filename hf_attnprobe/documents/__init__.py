"""What an audit found, read from its rows and facts, and how that is said."""
