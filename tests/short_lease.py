"""`spanjax.train` with leases of seconds, on a simulated machine that MACHINE names; its steps take MACHINE_STEP_SECONDS."""

import os
import time

from spanjax import train
from spanjax.experiment import pretrain
from spanjax.storage import lease, objects

lease.RENEW_SECONDS, lease.VALID_SECONDS, lease.WATCH_SECONDS = 1.0, 5.0, 0.2
lease._machine = lambda: os.environ["MACHINE"]
objects.FIRST_DELAY, objects.RETRY_SECONDS = 0.02, 60.0
original = pretrain.open_feed


def late(*arguments, **options):
    for batch in original(*arguments, **options):
        time.sleep(float(os.environ["MACHINE_STEP_SECONDS"]))
        yield batch


if __name__ == "__main__":
    pretrain.open_feed = late
    train.end(train.main())
