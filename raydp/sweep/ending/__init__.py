"""What follows the last run: the result, its notes, the selection and the report."""
