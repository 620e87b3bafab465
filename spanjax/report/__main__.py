"""Entry point of `python -m spanjax.report`."""

import sys

from spanjax.report import main

if __name__ == "__main__":
    sys.exit(main())
