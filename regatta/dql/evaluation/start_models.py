"""The networks and weights that an evaluation trains: those of versions, and those that a query derives from them.

They are written into files, since a run must be able to go on, and be repeated, whatever becomes of the versions.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from regatta.data import Dataset
from regatta.dql.networks.derived_models import DEFAULT_SEED, DerivedModel, network_of
from regatta.dql.networks.layer_sets import NamedLayers
from regatta.dql.selectors import SelectorPattern
from regatta.errors import DataError, UsageError
from regatta.network.graph import Network
from regatta.network.shapes import show_shape
from regatta.paths import STATE_SUFFIX
from regatta.repo.catalog.records import SHORT

if TYPE_CHECKING:
    from regatta.network.torch.start_models import StartModels
    from regatta.repo import Repo, Version

STAGING = "models-"  # the beginning of the name of a folder in the repository, until its run has one


@dataclass(frozen=True)
class StartModel:
    """`key` is the value `model` of configurations, and `base` the id of the version whose weights it has."""

    key: str
    name: str
    base: str
    network: Network
    weights: Callable[[], Mapping[str, Any]]


def start_models(repo: Repo, found: Sequence[Version] | Sequence[DerivedModel]) -> list[StartModel]:
    """The models in their order, each under a key of its own."""
    digits = SHORT
    while len({each.id[:digits] for each in found}) < len(found):
        digits += 1
    return [
        _of_derived(each, each.id[:digits])
        if isinstance(each, DerivedModel)
        else _of_version(repo, each, each.id[:digits])
        for each in found
    ]


def _of_derived(model: DerivedModel, key: str) -> StartModel:
    names = list(model.network.parameters)
    return StartModel(key, model.name, model.source.id, model.network, lambda: model.weights(names))


def _of_version(repo: Repo, version: Version, key: str) -> StartModel:
    network = network_of(repo, version)
    return StartModel(key, version.reference, version.id, network, lambda: _weights(repo, version, network))


def _weights(repo: Repo, version: Version, network: Network) -> Mapping[str, Any]:
    """The weights of the newest snapshot; where there is none, all layers are initialised."""
    from regatta.network.torch.initialise import initial_weights
    from regatta.store.torch_tensors import torch_tensors

    names = list(network.parameters)
    if not repo.catalog.snapshots(version):
        return initial_weights(network, names, DEFAULT_SEED)
    weights = repo.weights(version)
    missing = [name for name in names if name not in weights]
    if missing:
        raise DataError(
            f"The weights of {version.reference} do not have {missing[0]!r:.200}, which its network needs.",
            hint="Commit the network that belongs to the weights.",
        )
    return torch_tensors(weights.read(names))


def check_inputs(models: Sequence[StartModel], dataset: Dataset) -> None:
    """Refuse models that do not take the rows of the data."""
    row = dataset.columns[0].shape if dataset.columns else None  # an input_fn reads it
    for model in models:
        inputs = model.network.inputs
        if len(inputs) != 1:
            raise UsageError(f"The network of {model.name} has {len(inputs)} inputs; one can be trained.")
        shape = (inputs[0].shape or ())[1:]
        sizes = [size for size in shape if size is not None]
        known = row is not None and inputs[0].shape is not None and len(sizes) == len(shape)
        if known and math.prod(sizes) != math.prod(row or ()):
            raise UsageError(
                f"The model {model.name} takes inputs of the shape {show_shape(shape)}; "
                f"the rows of {dataset.name} have the shape {show_shape(row or ())}.",
                hint="Give data that the model was made for, or derive a network for the data.",
            )


def check_targets(models: Sequence[StartModel], dataset: Dataset, loss: str) -> None:
    """Refuse targets that the loss cannot compare with what the models give."""
    from regatta.network.torch.start_models import OF_CLASSES

    if len(dataset.columns) != 2:
        return
    target = dataset.columns[1]
    are_classes = target.dtype.startswith(("int", "uint"))
    for model in models:
        row = _output_row(model.network)
        if loss in OF_CLASSES and are_classes:
            fits = row is None or (len(row) == len(target.shape) + 1 and _agree(row[1:], target.shape))
        else:
            fits = loss not in OF_CLASSES[1:] and not are_classes and (row is None or _agree(row, target.shape))
        if not fits:
            raise UsageError(
                f"The loss {loss} cannot compare outputs of {model.name}{_of_shape(row)} with targets of "
                f"{dataset.name}{_of_shape(target.shape)} and the type {target.dtype}.",
                hint="Classes are whole numbers, for cross_entropy. Other losses take numbers of the output's shape.",
            )


def _output_row(network: Network) -> Sequence[int | None] | None:
    """The shape of the first output for one row, if it is known."""
    output = next((node.id for node in network.nodes if node.kind == "OUTPUT"), None)
    source = None if output is None else next(iter(network.sources[output]), None)
    shape = None if source is None else network.by_id[source].shape
    return None if shape is None else shape[1:]


def _of_shape(shape: Sequence[int | None] | None) -> str:
    return "" if shape is None else f" of the shape {show_shape(tuple(shape))}"


def _agree(shape: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """Whether two shapes may be the same; None is any size."""
    return len(shape) == len(other) and all(
        one is None or two is None or one == two for one, two in zip(shape, other, strict=True)
    )


LayerGroups: TypeAlias = Mapping[str, Mapping[str, tuple[str, ...]]]  # names of parameters, by model and rate


def parameters_of_layers(model: StartModel, selectors: Mapping[str, SelectorPattern]) -> dict[str, tuple[str, ...]]:
    """The names of the trainable parameters of the layers that each selector names."""
    from regatta.network.torch.start_models import parameter_names

    names = NamedLayers(model.network).names
    layers = {
        key: [id for id, known in names.items() if selector.match(known) is not None]
        for key, selector in selectors.items()
    }
    return {key: parameter_names(model.network, found) for key, found in layers.items()}


def names_of_layers_with_weights(model: StartModel) -> dict[str, tuple[str, ...]]:
    """The names by which selectors can name each layer that has weights."""
    names = NamedLayers(model.network).names
    return {node.id: tuple(filter(None, names[node.id])) for node in model.network.nodes if node.parameters}


@contextmanager
def staged(models: Sequence[StartModel], groups: LayerGroups, repository: Path) -> Iterator[StartModels]:
    """The models in files. They are removed at the end, unless a run has taken them."""
    from regatta.network.torch.start_models import StartModels, write_model

    folder = Path(tempfile.mkdtemp(prefix=STAGING, dir=repository))
    try:
        digests = {
            model.key: write_model(folder / f"{model.key}{STATE_SUFFIX}", model.network, model.weights(), model.name)
            for model in models
        }
        yield StartModels(digests, groups, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
