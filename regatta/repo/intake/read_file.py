"""Recognizes a file as weights, a network, metrics, hyperparameters, or a plain file.

    recognize(path)            by its name and its content
    recognize(path, "file")    as given

No file is executed or unpickled, and only regular files are opened.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from regatta.errors import DataError, NotFoundError, UsageError, nearest
from regatta.network.json_form import FORMAT as NETWORK_FORMAT
from regatta.repo.intake import training_logs, zip_weights
from regatta.repo.intake.limits import check_tensor_bytes
from regatta.repo.weights import ORIGIN_EPOCH, ORIGIN_VERSION, NewWeights, from_file
from regatta.store.format.tensor_id import as_tensor

Kind: TypeAlias = Literal["weights", "network", "metrics", "hyperparameters", "file"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TORCH = (".pt", ".pth", ".bin", ".ckpt")
MAX_EPOCH_DIGITS = 9
_EPOCH = re.compile(r"(?:epochs?|ep)[-_=]?(\d{1,9})(?!\d)", re.IGNORECASE)
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")


@dataclass(frozen=True)
class RecognizedFile:
    """What a file is; `says` is a summary for users, and `kept` says whether the file itself is stored as well."""

    kind: Kind
    says: str
    weights: NewWeights | None = None
    network: Any = None
    metrics: training_logs.Points | None = None
    hyperparameters: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    origin: str | None = None  # the id of the version that was checked out to this file

    @property
    def kept(self) -> bool:
        """Weights go into the parameter store; all other kinds are also stored as files."""
        return self.kind != "weights"


def recognize(path: Path, wanted: Kind | None = None, suffix: str | None = None) -> RecognizedFile:
    """Read a file by its suffix and content, or as `wanted`; a file that is not recognized is kept as it is."""
    check_regular(path)
    if wanted is not None and wanted not in KINDS:
        raise UsageError(f"A file is not added as {wanted!r}.", candidates=nearest(wanted, KINDS))
    suffix = (path.suffix if suffix is None else suffix).lower()
    reader = _BY_SUFFIX.get(suffix)
    if wanted == "file" or (wanted is None and reader is None):
        return plain_file()
    if wanted is None and reader is not None:
        return reader(path, suffix)
    return _as_wanted(path, suffix, wanted or "file")


def plain_file(*notes: str) -> RecognizedFile:
    return RecognizedFile("file", "kept as it is", notes=notes)


def check_regular(path: Path) -> None:
    """Refuse pipes and devices: reading them could block, or never end."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        dangling = path.is_symlink()
        raise NotFoundError(
            f"The link leads nowhere: {os.readlink(path)!r:.200}." if dangling else "There is no such file.",
            place=str(path),
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"The file cannot be looked at: {error}.", place=f"{str(path)!r:.200}") from error
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
        raise UsageError(f"It is {kinds.get(stat.S_IFMT(mode), 'no file')}, and is not read.", place=str(path))
    if not os.access(path, os.R_OK):
        raise UsageError("The file may not be read by you.", place=str(path))


def shards(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """Files that together hold one snapshot, by the first of them; incomplete snapshots are refused."""
    groups: dict[Path, list[Path]] = {}
    for path in paths:
        match = _SHARD.fullmatch(path.name)
        first = path if match is None else path.with_name(f"{match[1]}-{1:05d}-of-{match[3]}{match[4]}")
        groups.setdefault(first, []).append(path)
    for first, parts in groups.items():
        match = _SHARD.fullmatch(first.name)
        if match is not None and len(parts) != int(match[3]):
            raise UsageError(
                f"{len(parts)} of {int(match[3])} parts of a snapshot were given.",
                place=str(parts[0]),
                hint=f"Add them together: {match[1]}-*-of-{match[3]}{match[4]}",
            )
    return groups


def joined(parts: Sequence[RecognizedFile], first: Path) -> RecognizedFile:
    """One snapshot from its parts."""
    if len(parts) == 1:
        return parts[0]
    tensors: dict[str, Any] = {}
    for part in parts:
        if part.weights is None:
            raise DataError("A part of a snapshot holds no weights.", place=str(first))
        if twice := tensors.keys() & part.weights.tensors.keys():
            raise DataError(f"Two parts of a snapshot hold the tensor {min(twice)!r:.100}.", place=str(first))
        tensors |= part.weights.tensors
    whole = replace(parts[0].weights, tensors=tensors)  # type: ignore[type-var]
    return _weights(whole, (f"out of {len(parts)} parts",))


def _weights(taken: NewWeights | None, notes: tuple[str, ...] = ()) -> RecognizedFile:
    assert taken is not None
    count = f"{len(taken.tensors):,} tensor{'s' if len(taken.tensors) != 1 else ''}"
    after = "" if taken.epoch is None else f", after epoch {taken.epoch}"
    return RecognizedFile("weights", f"{count}, {taken.parameters:,} parameters{after}", taken, notes=notes)


def _from_tensor_file(path: Path, suffix: str) -> RecognizedFile:
    taken = from_file(path, epoch_in(path))
    epoch = taken.metadata.get(ORIGIN_EPOCH, "")
    if taken.epoch is None and epoch.isdecimal() and len(epoch) <= MAX_EPOCH_DIGITS:
        taken = replace(taken, epoch=int(epoch))
    return replace(_weights(taken), origin=taken.metadata.get(ORIGIN_VERSION))


def _from_torch(path: Path, suffix: str) -> RecognizedFile:
    from regatta.frameworks.torch.files import read_state_dict

    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK"
    if not is_archive:
        if suffix in (".bin", ".ckpt"):  # others write files of that name too
            return plain_file("not read as weights: it is not an archive of PyTorch")
        raise DataError(
            "This is not an archive as PyTorch has written them since 1.6; older files are pickles, and not read.",
            place=str(path),
            hint="Load it where you trust it and torch.save it again, or add it with --as file.",
        )
    with zip_weights.opened(path, stored=True) as archive:
        read = zip_weights.check_checkpoint(archive, path)
    found = read_state_dict(path, read)
    check_tensor_bytes(found.bytes, read, path)
    epoch = found.epoch if found.epoch is not None else epoch_in(path)
    taken = NewWeights(epoch, {name: as_tensor(name, value) for name, value in found.tensors.items()}, {})
    notes = [f"found under {found.under!r}"] if found.under is not None else []
    if found.left_out:
        more = f" and {len(found.left_out) - 3} more" if len(found.left_out) > 3 else ""
        notes.append(f"left out: {', '.join(found.left_out[:3])}{more}")
    return _weights(taken, tuple(notes))


def _from_exported(path: Path, suffix: str) -> RecognizedFile:
    tensors = {name: as_tensor(name, value) for name, value in zip_weights.read_exported(path).items()}
    found = _weights(NewWeights(epoch_in(path), tensors, {}), ("its graph is not read; the file is kept as well",))
    return replace(found, kind="network")


def _from_onnx(path: Path, suffix: str) -> RecognizedFile:
    from regatta.repo.intake.onnx_weights import read_onnx

    found = read_onnx(path)
    taken = NewWeights(epoch_in(path), {name: as_tensor(name, value) for name, value in found.tensors.items()}, {})
    says = f"{len(found.network.nodes):,} layers, {len(taken.tensors):,} tensors, {taken.parameters:,} parameters"
    return replace(_weights(taken, found.notes), kind="network", network=found.network, says=says)


def _from_log(path: Path, suffix: str) -> RecognizedFile:
    try:
        rows = training_logs.log_rows(path, suffix)
        if not rows or not training_logs.looks_like_log(path, rows[0]):
            return plain_file()
        return _metrics(training_logs.log_points(rows, path))
    except DataError as error:
        return plain_file(f"not read as a log: {error.message}")


def _from_settings(path: Path, suffix: str) -> RecognizedFile:
    try:
        content = training_logs.settings(path, suffix)
        if isinstance(content, dict) and content.get("format") == NETWORK_FORMAT:
            return _from_network_json(path)
        points = training_logs.points_of_json(content, path)
        return _metrics(points) if points is not None else _settings(content, path)
    except DataError as error:
        return plain_file(f"not read as settings: {error.message}")


def _metrics(points: training_logs.Points) -> RecognizedFile:
    steps = max(len(series) for series in points.values())
    names = ", ".join(list(points)[:4]) + (f" and {len(points) - 4} more" if len(points) > 4 else "")
    return RecognizedFile("metrics", f"{names} over {steps:,} step{'s' if steps != 1 else ''}", metrics=points)


def _from_network_json(path: Path) -> RecognizedFile:
    from regatta.network import from_json

    try:
        network = from_json(training_logs.text_of(path))
    except DataError as error:
        where = error.place or "the document"
        hint = "regatta.network.to_json writes networks."
        raise DataError(f"It is not a network: {where}: {error.message}", place=str(path), hint=hint) from error
    return RecognizedFile("network", f"{len(network.nodes):,} layers", network=network)


def _settings(content: object, path: Path) -> RecognizedFile:
    """Settings; the version.json of a checkout also has the network and the id of its version."""
    values = training_logs.hyperparameters(content, path)
    names = ", ".join(list(values)[:4]) + (f" and {len(values) - 4} more" if len(values) > 4 else "")
    found = RecognizedFile("hyperparameters", names or "none", hyperparameters=values)
    if not training_logs.is_checkout(content):
        return found
    ident = content["id"]
    return replace(found, network=_checkout_network(content), origin=ident if isinstance(ident, str) else None)


def _checkout_network(content: Mapping[str, Any]) -> Any:
    """The network of a checked out version; None if it has none, or one that is not in the common vocabulary."""
    from regatta.network import from_json

    try:
        return from_json(json.dumps(content.get("network")))
    except DataError:
        return None


def _as_wanted(path: Path, suffix: str, wanted: Kind) -> RecognizedFile:
    """A file that cannot be read as `wanted` is an error, not a plain file."""
    if wanted == "metrics":
        if suffix == ".json":
            points = training_logs.points_of_json(training_logs.settings(path, suffix), path)
            if points is None:
                raise DataError("There are no metrics in it: rows, or lists of numbers by name.", place=str(path))
            return _metrics(points)
        return _metrics(
            training_logs.log_points(
                training_logs.log_rows(path, suffix if suffix in training_logs.LOGS else ".csv"), path
            )
        )
    if wanted == "hyperparameters":
        content = training_logs.settings(path, suffix if suffix in training_logs.CONFIGS else ".yaml")
        return _settings(content, path)
    if wanted == "network" and suffix == ".json":
        return _from_network_json(path)
    reader = _BY_SUFFIX.get(suffix)
    found = reader(path, suffix) if reader is not None else None
    if found is None or (found.kind != wanted and not (wanted == "weights" and found.weights is not None)):
        raise UsageError(
            f"A file that ends in {suffix!r} is not read as {wanted}.",
            place=str(path),
            hint="Weights: .safetensors, .npz, .pt, .pth, .bin, .ckpt, .onnx or .pt2. Networks: .onnx or .json.",
        )
    return found


def epoch_in(path: Path) -> int | None:
    """The epoch in the name of a file, as in net-epoch12.pt."""
    found = _EPOCH.findall(path.stem)
    return int(found[-1]) if found else None


_BY_SUFFIX: dict[str, Callable[[Path, str], RecognizedFile]] = {
    **dict.fromkeys((".safetensors", ".npz"), _from_tensor_file),
    **dict.fromkeys(TORCH, _from_torch),
    ".pt2": _from_exported,
    ".onnx": _from_onnx,
    **dict.fromkeys(training_logs.LOGS, _from_log),
    **dict.fromkeys(training_logs.CONFIGS, _from_settings),
}
