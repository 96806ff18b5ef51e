"""Tasks that are made of another task by adding or removing examples."""
