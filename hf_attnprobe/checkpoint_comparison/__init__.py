"""Models audited alike and compared with the first: checkpoints, or versions of one."""
