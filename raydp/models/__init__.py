"""Base models, adapters and networks."""

import logging

# bitsandbytes, which peft imports where it is installed, remarks on kernels that nobody here can
# install.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
