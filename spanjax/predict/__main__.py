"""Entry point of `python -m spanjax.predict`."""

import sys

from spanjax.predict import main

if __name__ == "__main__":
    sys.exit(main())
