"""What the machine has: its memory and its threads, measured while work runs."""
