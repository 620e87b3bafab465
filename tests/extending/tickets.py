"""Fine-tuning on a task of one's own.

Command:
    python -m spanjax.train --config tickets.py --init-from runs/smoothed --train train.txt --dev dev.txt --workdir runs/tickets
"""

from task import Tickets

from spanjax.run import Run
from spanjax.training.optimizers import AdamW

RUN = Run(objective=Tickets(length=64, epochs=3), optimizer=AdamW(learning_rate=5e-5), batch_size=32)
