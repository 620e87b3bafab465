"""Entry point of `python -m spanjax.evaluate`."""

import sys

from spanjax.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
