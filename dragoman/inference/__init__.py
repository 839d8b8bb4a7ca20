"""Text in, predictions out: the command line, reports and Python users go through here."""
