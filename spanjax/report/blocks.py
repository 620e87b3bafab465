"""The whole report, section by section."""

from collections.abc import Sequence

from spanjax import __version__
from spanjax.report.comparisons import comparison_blocks
from spanjax.report.curves import curve_blocks
from spanjax.report.document import TITLE, Block, Heading, Text
from spanjax.report.groups import grouped
from spanjax.report.masking import masking_blocks
from spanjax.report.runs import Recorded
from spanjax.report.settings import settings_blocks
from spanjax.report.tables import loss_table, score_blocks


def blocks_of(runs: Sequence[Recorded], rows: int, examples: int) -> list[Block]:
    """Builds all sections; measures `rows` of every pretraining run (0: all), and fills in `examples` by its checkpoint."""
    groups = grouped(runs)
    count = f"{len(runs)} run{'s' * (len(runs) != 1)} in {len(groups)} group{'s' * (len(groups) != 1)}"
    blocks: list[Block] = [Heading(1, TITLE), Text(f"{count}; spanjax {__version__}.")]
    blocks += settings_blocks(groups)
    blocks += score_blocks(groups)
    pretraining = [group for group in groups if not group.tuned]
    table = loss_table(pretraining)
    if table:
        blocks += [Heading(2, "Held-out losses of pretraining"), table]
        blocks.append(Text("Losses of different maskings, vocabularies or rows are not comparable.", small=True))
    blocks += comparison_blocks(groups)
    blocks += curve_blocks(groups)
    return [*blocks, *masking_blocks(groups, rows, examples)]
