"""Entry point of `python -m spanjax.serve`."""

import sys

from spanjax.serve import main

if __name__ == "__main__":
    sys.exit(main())
