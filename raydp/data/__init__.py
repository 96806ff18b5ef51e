"""What the package carries: the embedded model (`tiny/`, made by `make_tiny`) and the embedded sweep (`demo.yaml`)."""
