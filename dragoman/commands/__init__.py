"""What a user types: a file for every few commands, each of which parses, calls one function and prints."""
