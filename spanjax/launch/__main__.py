"""Entry point of `python -m spanjax.launch`."""

import sys

from spanjax.launch import main

if __name__ == "__main__":
    sys.exit(main())
