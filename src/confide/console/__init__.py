"""What the command line shows: messages, tables and the progress of a run."""
