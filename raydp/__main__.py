"""`python -m raydp`: the command."""

from raydp.cli.main import command

command()
