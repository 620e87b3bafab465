"""`spanjax.train` whose batches come late while the file that SPANJAX_CHAOS_SLOW names is there."""

import os
import pathlib
import sys
import time

from spanjax import session, train

SLOW = pathlib.Path(os.environ["SPANJAX_CHAOS_SLOW"])
original = session.open_feed


def late(*arguments, **options):
    for batch in original(*arguments, **options):
        until = time.monotonic() + 60
        while SLOW.exists() and time.monotonic() < until:
            time.sleep(0.05)
        yield batch


if __name__ == "__main__":
    session.open_feed = late
    sys.exit(train.main())
