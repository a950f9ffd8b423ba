"""What everything stands on: errors, options, progress, plain data. Imports no other package of ours."""
