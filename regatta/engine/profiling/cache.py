"""What pilots found out in earlier runs and explanations, so that the next ones need not find it out again.

    <repository>/profiles/<key>.json      one for each sweep's functions, kind of data, devices and versions

A file that is damaged, or of another version, is as good as none, and is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from blake3 import blake3

from regatta.cluster import Cluster
from regatta.configuration import Scalar, config_id
from regatta.data import Dataset
from regatta.durable import replacing
from regatta.engine.messages import ModelProfile
from regatta.errors import RegattaError
from regatta.plan.strategy.form_packs import ANY_CUDA_BUILD, Builds, PackRate

VERSION = 2
FILES = 256  # those not used for longest go first
CONFIGS = 1000  # of one file, the newest
MOST = 1e15  # of bytes, rows or seconds: no pilot has found more
BEYOND = 2.0  # numbers that are so many times as large as any that was seen are tried
ALIKE = 1.5  # configurations of one structure tell of another if their times differ by no more than this factor
_PACKAGES = {
    "torch": ("torch",),
    "keras": ("keras", "tensorflow", "tensorflow-cpu"),
    "jax": ("jax", "jaxlib"),
    "numpy": ("numpy",),
}

Values = Mapping[str, Scalar]


@dataclass(frozen=True)
class Known:
    """A configuration that was tried, and the seconds that this took."""

    values: Values
    pilot: ModelProfile
    seconds: float = 0.0


@dataclass(frozen=True)
class CachedPackRate:
    """A pack that was tried."""

    rate: PackRate
    configs: tuple[str, ...]  # its members


@dataclass
class ProfileCache:
    """The profile of one key."""

    path: Path
    configs: dict[str, Known] = field(default_factory=dict)  # by id
    packs: dict[str, CachedPackRate] = field(default_factory=dict)  # by build
    ratios: dict[str, float] = field(default_factory=dict)  # of communication to computation in groups, by build
    start_seconds: float | None = None  # until a process is there that prepares data
    memory: float | None = None  # bytes of a device for each worker
    _builds: tuple[Builds, dict[str, list[Known]]] | None = None

    @classmethod
    def open(cls, folder: Path, key: str) -> ProfileCache:
        """What the folder knows under a key, which may be nothing; the folder need not be there."""
        found = cls(folder / f"{key}.json")
        found._read()
        with contextlib.suppress(OSError):  # nothing to touch, or nothing that may be touched
            os.utime(found.path)
        return found

    def find(self, values: Values) -> ModelProfile | None:
        """What was measured of a configuration, or else of one that is built like it."""
        known = self.configs.get(config_id(values)) or self._like(values)
        return None if known is None else known.pilot

    def spent(self, configs: Iterable[str]) -> float:
        """The seconds that pilots of these configurations took."""
        return sum(self.configs[config].seconds for config in configs if config in self.configs)

    def rates(self) -> dict[str, PackRate]:
        """What was measured of packs, by build."""
        return {build: known.rate for build, known in self.packs.items()}

    def rate(self, build: str, members: Sequence[str]) -> PackRate | None:
        """What was measured of packs of a build, if it was of as many members as are to be tried now."""
        known = self.packs.get(build)
        if known is None or known.rate.members < len(members):
            return None
        same = bool(members) and set(members) <= set(known.configs)
        return known.rate if same or build != ANY_CUDA_BUILD else None

    def keep(
        self,
        configs: Iterable[Known] = (),
        packs: Mapping[str, CachedPackRate] | None = None,
        ratios: Mapping[str, float] | None = None,
        start_seconds: float | None = None,
        memory: float | None = None,
    ) -> None:
        """Remember what was measured; a folder that cannot be written to keeps nothing, and nobody is worse off."""
        new = {config_id(known.values): known for known in configs}
        if not (new or packs or ratios):
            return
        self._read()  # another run may have written since
        self.configs = {**{name: known for name, known in self.configs.items() if name not in new}, **new}
        self.configs = dict(list(self.configs.items())[-CONFIGS:])
        self.packs.update(packs or {})
        self.ratios.update(ratios or {})
        self.start_seconds = self.start_seconds if start_seconds is None else start_seconds
        self.memory = self.memory if memory is None else memory
        self._builds = None
        with contextlib.suppress(OSError):
            self._write()
            _forget_oldest(self.path.parent)

    def _like(self, values: Values) -> Known | None:
        """Of equal decisive values; what else differs must be known not to matter, to the build nor to the time."""
        builds, kinds = self._builds or self._learnt()
        alike = kinds.get(builds.of(config_id(values), values), [])
        varied = {name for name in values if len({repr(known.values.get(name)) for known in alike}) > 1}
        near = [known for known in alike if _same_but_for(known.values, values, varied)]
        if not all(_is_near(values[name], [known.values.get(name) for known in near]) for name in varied):
            return None
        times = [known.pilot.train_seconds_per_row for known in near]
        if not times or max(times) > ALIKE * min(times):
            return None
        return sorted(near, key=lambda known: known.pilot.train_seconds_per_row)[len(near) // 2]

    def _learnt(self) -> tuple[Builds, dict[str, list[Known]]]:
        """The builds of all that are known, and who is of which; once, for it takes its time."""
        builds, kinds = Builds(), dict[str, list[Known]]()
        for name, known in self.configs.items():
            if known.pilot.build not in ("", ANY_CUDA_BUILD):
                builds.learn(name, known.values, known.pilot.build)
                kinds.setdefault(known.pilot.build, []).append(known)
        self._builds = builds, kinds
        return self._builds

    def _read(self) -> None:
        try:
            found = json.loads(self.path.read_bytes())
            if found["version"] != VERSION:
                return
            configs = [_known(line) for line in found["configs"]]
            packs = {line["build"]: _known_rate(line) for line in found["packs"]}
            ratios = {str(build): _number(ratio) for build, ratio in found.get("ratios", {}).items()}
            start, memory = (
                None if found.get(name) is None else _number(found[name]) for name in ("start_seconds", "memory")
            )
            named = {config_id(known.values): known for known in configs}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, RegattaError):
            return  # not there, not ours, or damaged
        self.configs, self.packs, self.ratios, self._builds = named, packs, ratios, None
        self.start_seconds, self.memory = start, memory

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        configs = [{**asdict(known), "values": dict(known.values)} for known in self.configs.values()]
        packs = [{"build": build, **asdict(known)} for build, known in self.packs.items()]
        others = {"ratios": self.ratios, "start_seconds": self.start_seconds, "memory": self.memory}
        text = json.dumps({"version": VERSION, "configs": configs, "packs": packs, **others})
        with replacing(self.path, durable=False, durable_name=False) as written:
            written.write_text(text)


def _forget_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in files[:-FILES]:
        path.unlink(missing_ok=True)


def _same_but_for(values: Values, others: Values, names: set[str]) -> bool:
    return all(repr(values.get(name)) == repr(others.get(name)) for name in (values.keys() | others.keys()) - names)


def _is_near(value: object, seen: Sequence[object]) -> bool:
    """Whether a value is one of those that were seen, or a number among them or not far outside."""
    numbers = [abs(float(other)) for other in seen if isinstance(other, int | float) and not isinstance(other, bool)]
    if isinstance(value, bool) or not isinstance(value, int | float) or len(numbers) < len(seen):
        return any(repr(value) == repr(other) for other in seen)
    return min(numbers, default=1.0) / BEYOND <= abs(value) <= max(numbers, default=0.0) * BEYOND


def _known(line: Mapping[str, Any]) -> Known:
    found = line["pilot"]
    pilot = ModelProfile(**{name: _plain(name, found[name]) for name in found.keys() & _FIELDS})
    return Known({str(name): value for name, value in line["values"].items()}, pilot, _number(line["seconds"]))


def _known_rate(line: Mapping[str, Any]) -> CachedPackRate:
    rate = line["rate"]
    found = PackRate(int(_number(rate["members"])), _number(rate["gain"]), str(rate["reason"]), _number(rate["fixed"]))
    if found.gain <= 0:
        raise ValueError(f"A gain of {found.gain}.")
    return CachedPackRate(found, tuple(map(str, line["configs"])))


_FIELDS = {part.name for part in fields(ModelProfile)}
_WORDS, _LISTS, _COUNTS = ("build",), ("metrics", "forgotten"), ("train_rows", "eval_rows", "state_bytes", "peak_bytes")


def _plain(name: str, value: Any) -> Any:
    """A field of a pilot as it was written; anything else is a ValueError."""
    if name in _WORDS:
        return str(value)
    if name == "unsharable":
        return bool(value)
    if name in _LISTS:
        return tuple(map(str, value))
    if name in _COUNTS:
        return int(_number(value))
    return None if value is None and name == "eval_fixed_seconds" else _number(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
        raise ValueError(f"{value!r} is no number from 0 to {MOST:g}")
    return float(value)


def profile_key(codes: Sequence[object], dataset: Dataset, framework: str, cluster: Cluster) -> str:
    """The same for sweeps whose models take the same time: by functions, kind of data, devices and versions.

    `codes` are those of the sweep's functions (`code_identity.describe_code`), `cluster` is sized.
    """
    columns = [(column.name, column.dtype, tuple(column.shape)) for column in dataset.columns]
    unknown = [_size(part.path) for part in (*dataset.train, *dataset.eval) if part.rows is None]
    data = columns, len(dataset.train), len(dataset.eval), unknown
    packages = _PACKAGES.get(framework) or tuple(name for names in _PACKAGES.values() for name in names)
    versions = [_version(package) for package in ("regatta", *packages)]
    place = sorted((name, repr(value)) for name, value in cluster.describe().items())
    parts = (VERSION, codes, data, framework, place, device_names(cluster.device), versions)
    return blake3(repr(parts).encode()).hexdigest(length=16)


def _size(path: Path) -> int | None:
    """Of a file whose rows nobody knows before it is read."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def device_names(device: str) -> list[str]:
    """The processor of this machine and, unless only that is used, its GPUs; without asking a framework."""
    cards = [] if device == "cpu" else sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [_processor(), *(_line(card, "Model") for card in cards)]


def _processor() -> str:
    return _line(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()


def _line(path: Path, name: str) -> str:
    try:
        found = re.search(rf"^{name}\s*:\s*(.+)$", path.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
