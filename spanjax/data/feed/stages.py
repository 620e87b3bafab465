"""Masking policies one after the other: words, then phrases, then entities, as ERNIE does (Sun et al., 2019, section 3.2)."""

import dataclasses

from spanjax.data.feed.hashing import Unsigned
from spanjax.data.feed.masking import Distribution, MaskingPolicy, WholeWords
from spanjax.data.feed.words import Integers, SpecialIds, TextRows


@dataclasses.dataclass(frozen=True)
class Stage:
    """A policy and when it begins."""

    first_step: int = 0
    """The first step of the stage."""
    policy: MaskingPolicy = WholeWords()
    """What masks from that step on, with a rate and a replacement of its own."""


@dataclasses.dataclass(frozen=True)
class Staged(MaskingPolicy):
    """Stages in turn; held-out rows are masked by the last. `rate`, `schedule` and `replacement` are those of the stages, and
    are refused here; `copies` is that of all, and is refused there."""

    stages: tuple[Stage, ...] = (Stage(),)
    """The first begins at step 0."""

    def problems(self) -> dict[str, bool]:
        """Stages that are out of order, or not there; settings that nothing reads."""
        steps = [stage.first_step for stage in self.stages]
        return super().problems() | {
            f"stages begin at the steps {steps}: expected at least one, 0 first, rising": not steps
            or steps[0] != 0
            or steps != sorted({*steps}),
            "a stage of stages: expected a plain policy": any(
                isinstance(stage.policy, Staged) for stage in self.stages
            ),
            "rate, schedule or replacement beside the stages: give them to the policies of the stages": (
                self.rate,
                self.schedule,
                self.replacement,
            )
            != (MaskingPolicy.rate, MaskingPolicy.schedule, MaskingPolicy.replacement),
            "copies in a stage: give them to Staged, which counts them over all stages": any(
                each.copies for each in self.policies
            ),
        }

    @property
    def policies(self) -> tuple[MaskingPolicy, ...]:
        """See `MaskingPolicy.policies`."""
        return tuple(stage.policy for stage in self.stages)

    def at(self, step: int | None) -> MaskingPolicy:
        """See `MaskingPolicy.at`."""
        begun = [stage.policy for stage in self.stages if step is None or stage.first_step <= step]
        return begun[-1]

    @property
    def tags(self) -> tuple[str, ...]:
        """See `MaskingPolicy.tags`."""
        return tuple(dict.fromkeys(tag for each in self.policies for tag in each.tags))

    @property
    def most(self) -> float:
        """See `MaskingPolicy.most`."""
        return max(each.most for each in self.policies)

    def rate_at(self, step: int) -> float:
        """See `MaskingPolicy.rate_at`."""
        return self.at(step).rate_at(step)

    def masked_places(self, rows: TextRows, specials: SpecialIds, key_B: Unsigned, rate_B: Distribution) -> Integers:
        """Those of the last stage; batches are masked by the stage of their step, see `at`."""
        return self.at(None).masked_places(rows, specials, key_B, rate_B)
