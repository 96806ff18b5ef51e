"""Points tables: their columns, files, means over seeds, and notes on what is missing."""
