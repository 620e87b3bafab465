"""Entry point of `python -m spanjax.doctor`."""

import sys

from spanjax.doctor import main

if __name__ == "__main__":
    sys.exit(main())
