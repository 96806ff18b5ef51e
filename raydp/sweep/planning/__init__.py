"""What will run, with all warnings, before anything starts."""
