"""The exceptions that Regatta raises on purpose.

    RegattaError                 exit code 1
    ├── UsageError               2   a wrong argument, configuration, function or data set
    │   ├── DataError            2   a partition that is missing, cut off or different from the others
    │   │   └── LimitError       2   a file that is, or would become, larger than a reader's limit
    │   └── MissingExtraError    2   an optional dependency that is not installed
    ├── NotFoundError            3   no repository, run or configuration of that name
    ├── ConflictError            4   the name is taken, or another controller holds the run
    ├── DiskError                1   a disk that is full or fails, which is not a configuration's fault
    ├── PausedError              1   a run that cannot go on now, though no configuration is to blame: resume it
    └── CorruptError             1   a file of Regatta's that fails its checks
        └── NewerVersionError    1   a file that a newer version of Regatta has written

Each says what was received, where, and what to do about it.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

LEAST_SIMILARITY = 0.55  # of a name that is suggested, from 0 to 1
SIMILARITY_GAP = 0.2  # names that are less similar than the best one by this much are not suggested


class RegattaError(Exception):
    """What went wrong, where, and what to do: the base of every deliberate error."""

    exit_code = 1

    def __init__(
        self, message: str, *, hint: str | None = None, place: str | None = None, candidates: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.place = place
        self.candidates = tuple(candidates)

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.message}" if self.place else self.message]
        if self.candidates:
            lines.append("Did you mean " + " or ".join(self.candidates) + "?")
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)


class UsageError(RegattaError):
    exit_code = 2


class DataError(UsageError):
    pass


class LimitError(DataError):
    """More was found than a reader takes; says both numbers."""

    def __init__(self, what: str, found: int, limit: int, *, place: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"There are {found:,} {what}; {limit:,} is the limit.", place=place, hint=hint)
        self.found, self.limit = found, limit


class MissingExtraError(UsageError):
    """An optional dependency is needed and absent; names the extra that brings it."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed.",
            hint=f"Install it in the clone of Regatta: pip install '.[{extra}]'",
        )


class NotFoundError(RegattaError):
    exit_code = 3


class ConflictError(RegattaError):
    exit_code = 4


class DiskError(RegattaError):
    pass


class PausedError(RegattaError):
    pass


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def disk_error(error: OSError) -> DiskError:
    """The error of a disk as Regatta says it: what, where, and what to do."""
    what = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota of the disk is used up"}
    return DiskError(
        f"The file cannot be written: {what.get(error.errno or 0, (error.strerror or str(error)).lower())}.",
        place=None if error.filename is None else str(error.filename),
        hint="Make room on the disk. `regatta gc --grace 0` needs none, and frees what no version uses.",
    )


class CorruptError(RegattaError):
    pass


class NewerVersionError(CorruptError):
    pass


def nearest(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The known names that are most similar to a misspelt one, best first."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=count, cutoff=LEAST_SIMILARITY)
    similarity = {match: difflib.SequenceMatcher(None, match, name.casefold()).ratio() for match in found}
    return tuple(by_folded[match] for match in found if similarity[match] > similarity[found[0]] - SIMILARITY_GAP)
