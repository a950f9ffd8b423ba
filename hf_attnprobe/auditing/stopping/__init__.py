"""An audit that stops when it is sure, or when its time is up, and goes on when asked."""
