"""Entry point of `python -m spanjax.convert`."""

import sys

from spanjax.convert import main

if __name__ == "__main__":
    sys.exit(main())
