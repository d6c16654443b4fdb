"""Courses that are trained together: what the scheduler takes for one model is a bundle of one course or of many.

The members of a bundle are in step: each unit of the bundle is one unit of each of them. Who is left out of a unit,
because it is stopped or has trained enough, leaves the bundle, and joins another when it is to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from regatta.engine.controller.trials import Course
from regatta.plan.schedule.units import Unit


@dataclass
class Bundle:
    """Some courses under one name; a single course has its own."""

    name: str
    courses: list[Course]
    to_judge: dict[int, list[Course]] = field(default_factory=dict)  # by epoch: who trained it
    is_pack: bool = False
    ended: bool = False  # its courses are in other bundles, or wait for one

    def active(self) -> list[Course]:
        return [course for course in self.courses if not course.stopped and not course.failed]

    def epochs(self) -> int:
        """So many epochs are wanted of the bundle."""
        return max(course.epochs for course in self.active())

    def takes(self, unit: Unit) -> list[Course]:
        """Who takes part in a unit that begins; who does not is in step no longer."""
        if unit.kind == "eval":
            waits = self.to_judge.get(unit.epoch, [])
            left_out = [course for course in waits if course.stopped or course.failed]
            self.to_judge[unit.epoch] = [course for course in waits if course not in left_out]
            self.courses = [course for course in self.courses if course not in left_out]
            return list(self.to_judge[unit.epoch])
        self.courses = [course for course in self.active() if course.epochs >= unit.epoch]
        return list(self.courses)

    def trained(self, epoch: int, courses: list[Course]) -> None:
        """These have trained an epoch, and are to be judged here, if anywhere."""
        for course in courses:
            course.visits = 0
        if not self.ended:
            self.to_judge[epoch] = courses

    def holds(self, course: Course) -> bool:
        return course in self.everyone()

    def everyone(self) -> list[Course]:
        """Those in step, and those that only wait to be judged."""
        found = dict.fromkeys(self.courses)
        for courses in self.to_judge.values():
            found |= dict.fromkeys(courses)
        return list(found)


class Bundles:
    """The bundles of a run, which of them each course is in, who waits for one, and who is under way where."""

    def __init__(self) -> None:
        self._by_name: dict[str, Bundle] = {}
        self._of: dict[str, Bundle] = {}
        self._waiting: list[Course] = []
        self._packs = 0
        self.under_way: dict[str, list[Course]] = {}  # by worker

    def __getitem__(self, name: str) -> Bundle:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Bundle]:
        return iter(self._by_name.values())

    def of(self, course: Course) -> Bundle | None:
        """The bundle in which a course is in step with others, or by itself."""
        bundle = self._of.get(course.id)
        return bundle if bundle is not None and course in bundle.courses else None

    def wait(self, course: Course) -> None:
        """A course is to be put into a bundle once nothing of it is under way."""
        if course not in self._waiting:
            self._waiting.append(course)

    def ready(self) -> list[Course]:
        """Those of the waiting whose last unit counts and who are nowhere else; they wait no longer."""
        found = [course for course in self._waiting if self._is_free(course)]
        self._waiting = [course for course in self._waiting if course not in found]
        return found

    def add(self, courses: Sequence[Course], epochs_to_judge: Iterable[int]) -> Bundle:
        """A new bundle, of which these epochs are trained and not judged yet."""
        name = courses[0].id
        if len(courses) > 1:
            self._packs += 1
            name = f"pack-{self._packs}"
        while name in self._by_name:  # it was by itself before, and in a pack since
            name += "+"
        waits = {epoch: list(courses) for epoch in epochs_to_judge}
        bundle = Bundle(name, list(courses), waits, is_pack=len(courses) > 1)
        self._by_name[name] = bundle
        self._of.update({course.id: bundle for course in courses})
        return bundle

    def disband(self, bundle: Bundle, alone: bool = False) -> None:
        """Its courses go on in other bundles, or one by one: something under them took a worker with it."""
        for course in bundle.everyone():
            course.alone |= alone
            if not course.stopped and not course.failed:
                self.wait(course)
        bundle.courses, bundle.to_judge, bundle.ended = [], {}, True

    def restart(self, left_of: Callable[[str], int]) -> None:
        """All who have units left wait for a bundle, as at the beginning; nothing is under way."""
        for bundle in self:
            if bundle.everyone() and left_of(bundle.name):
                self.disband(bundle)
        self._by_name, self._of = {}, {}

    def count_from(self, names: Iterable[str]) -> None:
        """There were packs of these names before this controller."""
        self._packs = max((int(name.removeprefix("pack-")) for name in names), default=0)

    def _is_free(self, course: Course) -> bool:
        elsewhere = self._of.get(course.id)
        running = any(course in courses for courses in self.under_way.values())
        return not course.entries and not running and (elsewhere is None or not elsewhere.holds(course))
