"""The checks of the self-test, a module for each assumption."""
