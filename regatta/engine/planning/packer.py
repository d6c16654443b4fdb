"""Which courses are trained side by side, as the plan says of their builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from regatta.engine.controller.scheduled import Bundle
from regatta.engine.controller.trials import Course, Progress
from regatta.plan.strategy.form_packs import (
    Builds,
    PackCandidate,
    PackRate,
    form_packs,
)

Orders: TypeAlias = Callable[
    [str, int], Mapping[int, Sequence[int]] | None
]  # of a configuration, up to an epoch: epoch -> partitions in order


class Packer:
    """Forms packs of at most as many members as the plan says."""

    def __init__(self, orders: Orders) -> None:
        self.sizes: Mapping[str, int] = {}  # by the build of members
        self.rates: Mapping[str, PackRate] = {}
        self.builds = Builds()
        self._orders = orders

    def form(self, places: Mapping[Course, Progress], idle: int) -> list[list[Course]]:
        """The courses in bundles, at least as many as there are idle workers."""
        courses = {course.id: course for course in places}
        candidates = [self._candidate(course, far) for course, far in places.items()]
        groups = form_packs(candidates, self.sizes, idle)
        return [[courses[name] for name in names] for names in groups]

    def fits(self, bundle: Bundle) -> bool:
        """Whether a bundle is not larger than the plan has it; models on different ways cannot be put together."""
        first = bundle.courses[0]
        return len(bundle.courses) <= max(1, self.sizes.get(self.builds.of(first.id, first.values), 1))

    def gain(self, bundle: Bundle) -> float:
        """So many times as fast as one after another its courses are expected to be."""
        rate = self._rate(bundle)
        return 1.0 if rate is None else rate.gain_of(len(bundle.courses))

    def fixed(self, bundle: Bundle) -> float:
        """Seconds of a unit that each course takes to be put among the others."""
        rate = self._rate(bundle)
        return 0.0 if rate is None or not bundle.is_pack else rate.fixed

    def describe(self, bundle: Bundle) -> str:
        text, rate = f"{bundle.name}: {len(bundle.courses)} configurations are trained side by side", self._rate(bundle)
        if rate is not None:
            gain = f"their steps about {self.gain(bundle):.1f}x as fast as one after another"
            text += f", {gain} ({rate.gain:.1f}x measured with {rate.members})"
        return f"{text}."

    def _candidate(self, course: Course, far: Progress) -> PackCandidate:
        """What goes together is of one build, at one place, and has the same way before it."""
        fit = not course.alone and not course.stopped
        alike = (far, course.epochs, course.most, repr(self._orders(course.id, course.epochs)))
        return PackCandidate(course.id, self.builds.of(course.id, course.values) if fit else "", alike)

    def _rate(self, bundle: Bundle) -> PackRate | None:
        first = bundle.courses[0]
        return self.rates.get(self.builds.of(first.id, first.values))
