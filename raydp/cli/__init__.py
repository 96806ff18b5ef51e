"""The sub-commands of `raydp`: arguments in, one function called, the answer printed."""
