"""Entry point of `python -m spanjax.plan`."""

import sys

from spanjax.plan import main

if __name__ == "__main__":
    sys.exit(main())
