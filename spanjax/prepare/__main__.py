"""Entry point of `python -m spanjax.prepare`."""

import sys

from spanjax.prepare import main

if __name__ == "__main__":
    sys.exit(main())
