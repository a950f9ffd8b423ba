"""What an audit will take, measured before it runs: work, time, memory, disk."""
