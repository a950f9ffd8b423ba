"""Numbers to answers: accuracy, and the questions about attention."""
