"""The profiles of earlier runs and plans, so that later ones need not measure again.

    <repository>/profiles/<key>.json      one file for each combination of functions, kind of data, devices and versions

A file that is damaged, or of another version, counts as missing and is replaced.
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
from regatta.plan.schedule.model_kinds import LabelsByValues
from regatta.plan.strategy.form_packs import ANY_CUDA_BUILD, PackRate

VERSION = 2
MAX_FILES = 256  # the least recently used are deleted first
MAX_CONFIGS = 1000  # in one file; the newest stay
MAX_NUMBER = 1e15  # bytes, rows or seconds: a larger number in a file is damage
EXTRAPOLATION = 2.0  # a number further outside the known values than this factor is measured
MAX_SPREAD = 1.5  # configurations of one build stand for another if their times differ by at most this factor
_PACKAGES = {
    "torch": ("torch",),
    "keras": ("keras", "tensorflow", "tensorflow-cpu"),
    "jax": ("jax", "jaxlib"),
    "numpy": ("numpy",),
}

Values = Mapping[str, Scalar]


@dataclass(frozen=True)
class CachedProfile:
    values: Values
    profile: ModelProfile
    seconds: float = 0.0  # that it took to measure


@dataclass(frozen=True)
class CachedPackRate:
    rate: PackRate
    configs: tuple[str, ...]  # that were its members


@dataclass
class ProfileCache:
    """The profiles under one key."""

    path: Path
    configs: dict[str, CachedProfile] = field(default_factory=dict)  # by id
    packs: dict[str, CachedPackRate] = field(default_factory=dict)  # by build
    ratios: dict[str, float] = field(default_factory=dict)  # of communication to computation in groups, by build
    start_seconds: float | None = None  # until a new process can preprocess data
    memory: float | None = None  # bytes of a device for each worker
    _builds: tuple[LabelsByValues, dict[str, list[CachedProfile]]] | None = None

    @classmethod
    def open(cls, folder: Path, key: str) -> ProfileCache:
        """The profiles that the folder holds under a key. There may be none, and the folder need not exist."""
        found = cls(folder / f"{key}.json")
        found._read()
        with contextlib.suppress(OSError):  # the file is missing, or read-only
            os.utime(found.path)
        return found

    def find(self, values: Values) -> ModelProfile | None:
        """The profile of a configuration, or else of one that costs the same."""
        known = self.configs.get(config_id(values)) or self._find_similar(values)
        return None if known is None else known.profile

    def spent(self, configs: Iterable[str]) -> float:
        return sum(self.configs[config].seconds for config in configs if config in self.configs)

    def rate(self, build: str, members: Sequence[str]) -> PackRate | None:
        """The rate of packs of a build, if it was measured with at least as many members."""
        known = self.packs.get(build)
        if known is None or known.rate.members < len(members):
            return None
        # All models on a GPU have the same build, so there the rate holds only for the same members.
        same_members = bool(members) and set(members) <= set(known.configs)
        return known.rate if same_members or build != ANY_CUDA_BUILD else None

    def add(
        self,
        configs: Iterable[CachedProfile] = (),
        packs: Mapping[str, CachedPackRate] | None = None,
        ratios: Mapping[str, float] | None = None,
        start_seconds: float | None = None,
        memory: float | None = None,
    ) -> None:
        """Add what was measured. In a folder that cannot be written to, nothing is kept."""
        new = {config_id(known.values): known for known in configs}
        if not (new or packs or ratios):
            return
        self._read()  # another run may have written since
        self.configs = {**{name: known for name, known in self.configs.items() if name not in new}, **new}
        self.configs = dict(list(self.configs.items())[-MAX_CONFIGS:])
        self.packs.update(packs or {})
        self.ratios.update(ratios or {})
        self.start_seconds = self.start_seconds if start_seconds is None else start_seconds
        self.memory = self.memory if memory is None else memory
        self._builds = None
        with contextlib.suppress(OSError):
            self._write()
            files = sorted(self.path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in files[:-MAX_FILES]:
                path.unlink(missing_ok=True)

    def _find_similar(self, values: Values) -> CachedProfile | None:
        """A profile of the same build, if the values that differ are known to change neither build nor time."""
        builds, by_build = self._builds or self._learn_builds()
        alike = by_build.get(builds.label_of(config_id(values), values), [])
        varied = {name for name in values if len({repr(known.values.get(name)) for known in alike}) > 1}
        near = [known for known in alike if _equal_except(known.values, values, varied)]
        if not all(_is_near(values[name], [known.values.get(name) for known in near]) for name in varied):
            return None
        times = [known.profile.train_seconds_per_row for known in near]
        if not times or max(times) > MAX_SPREAD * min(times):
            return None
        return sorted(near, key=lambda known: known.profile.train_seconds_per_row)[len(near) // 2]

    def _learn_builds(self) -> tuple[LabelsByValues, dict[str, list[CachedProfile]]]:
        """The builds of all cached configurations, and the profiles of each build; kept, because it takes a while."""
        builds, by_build = LabelsByValues(), dict[str, list[CachedProfile]]()
        for name, known in self.configs.items():
            if known.profile.build not in ("", ANY_CUDA_BUILD):
                builds.learn(name, known.values, known.profile.build)
                by_build.setdefault(known.profile.build, []).append(known)
        self._builds = builds, by_build
        return self._builds

    def _read(self) -> None:
        try:
            found = json.loads(self.path.read_bytes())
            if found["version"] != VERSION:
                return
            configs = [_read_profile(line) for line in found["configs"]]
            packs = {line["build"]: _read_rate(line) for line in found["packs"]}
            ratios = {str(build): _number(ratio) for build, ratio in found.get("ratios", {}).items()}
            start, memory = (
                None if found.get(name) is None else _number(found[name]) for name in ("start_seconds", "memory")
            )
            named = {config_id(known.values): known for known in configs}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, RegattaError):
            return  # missing, of another program, or damaged
        self.configs, self.packs, self.ratios, self._builds = named, packs, ratios, None
        self.start_seconds, self.memory = start, memory

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        configs = [
            {"values": dict(known.values), "pilot": asdict(known.profile), "seconds": known.seconds}
            for known in self.configs.values()
        ]
        packs = [{"build": build, **asdict(known)} for build, known in self.packs.items()]
        others = {"ratios": self.ratios, "start_seconds": self.start_seconds, "memory": self.memory}
        text = json.dumps({"version": VERSION, "configs": configs, "packs": packs, **others})
        with replacing(self.path, durable=False, durable_name=False) as written:
            written.write_text(text)


def _equal_except(values: Values, others: Values, names: set[str]) -> bool:
    return all(repr(values.get(name)) == repr(others.get(name)) for name in (values.keys() | others.keys()) - names)


def _is_near(value: object, known: Sequence[object]) -> bool:
    """Whether a value is among the known ones; for numbers, whether it is between them or not far outside."""
    numbers = [abs(float(other)) for other in known if isinstance(other, int | float) and not isinstance(other, bool)]
    if isinstance(value, bool) or not isinstance(value, int | float) or len(numbers) < len(known):
        return any(repr(value) == repr(other) for other in known)
    return min(numbers, default=1.0) / EXTRAPOLATION <= abs(value) <= max(numbers, default=0.0) * EXTRAPOLATION


def _read_profile(line: Mapping[str, Any]) -> CachedProfile:
    found = line["pilot"]
    profile = ModelProfile(**{name: _checked(name, found[name]) for name in found.keys() & _FIELDS})
    values = {str(name): value for name, value in line["values"].items()}
    return CachedProfile(values, profile, _number(line["seconds"]))


def _read_rate(line: Mapping[str, Any]) -> CachedPackRate:
    rate = line["rate"]
    found = PackRate(int(_number(rate["members"])), _number(rate["gain"]), str(rate["reason"]), _number(rate["fixed"]))
    if found.gain <= 0:
        raise ValueError(f"a gain of {found.gain}")
    return CachedPackRate(found, tuple(map(str, line["configs"])))


_FIELDS = {part.name for part in fields(ModelProfile)}
_TEXTS, _LISTS, _COUNTS = ("build",), ("metrics", "forgotten"), ("train_rows", "eval_rows", "state_bytes", "peak_bytes")


def _checked(name: str, value: Any) -> Any:
    """A field of a profile as it was written; anything else is a ValueError."""
    if name in _TEXTS:
        return str(value)
    if name == "unsharable":
        return bool(value)
    if name in _LISTS:
        return tuple(map(str, value))
    if name in _COUNTS:
        return int(_number(value))
    return None if value is None and name == "eval_fixed_seconds" else _number(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{value!r} is not a number from 0 to {MAX_NUMBER:g}")
    return float(value)


def profile_key(codes: Sequence[object], dataset: Dataset, framework: str, cluster: Cluster) -> str:
    """Equal for sweeps whose models cost the same: by the `codes` of functions, kind of data, devices and versions."""
    columns = [(column.name, column.dtype, tuple(column.shape)) for column in dataset.columns]
    unknown = [_size(part.path) for part in (*dataset.train, *dataset.eval) if part.rows is None]
    data = columns, len(dataset.train), len(dataset.eval), unknown
    packages = _PACKAGES.get(framework) or tuple(name for names in _PACKAGES.values() for name in names)
    versions = [_version(package) for package in ("regatta", *packages)]
    place = sorted((name, repr(value)) for name, value in cluster.describe().items())
    parts = (VERSION, codes, data, framework, place, device_names(cluster.device), versions)
    return blake3(repr(parts).encode()).hexdigest(length=16)


def _size(path: Path) -> int | None:
    """The size of a file, which stands for its rows where they are not known before it is read."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def device_names(device: str) -> list[str]:
    """The processor of this machine and, unless the device is "cpu", its GPUs; does not import a framework."""
    cards = [] if device == "cpu" else sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    processor = _line(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()
    return [processor, *(_line(card, "Model") for card in cards)]


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
