"""The models that a slice or a construct makes of the selected versions. Nothing is written here.

    DerivedModel          a network, the version that it comes from, and its weights, which are made when they are read
    derive(repo, query)   the models of a bound query; all networks are made and checked first

`commit_models` (commit_models.py) makes versions of them, and `evaluate` trains them without that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from blake3 import blake3

from regatta.dql.bound import BoundSelect
from regatta.dql.networks.bound_networks import BoundConstruct, BoundDerivation, BoundSlice, inner_derivation
from regatta.dql.networks.layer_sets import NamedLayers
from regatta.dql.networks.variants import Constructed, construct, count_variants, name_no_layer, variants
from regatta.errors import DataError, RegattaError, UsageError
from regatta.network.graph import Network, Shape
from regatta.network.json_form import from_json, to_json
from regatta.network.shapes import ShapeError, show_shape
from regatta.repo.catalog.names import ID_DIGITS, check_name
from regatta.repo.catalog.networks import canonical_json
from regatta.repo.snapshots import folder_of_run

if TYPE_CHECKING:
    import torch

    from regatta.network.torch.trial_run import TrialRun
    from regatta.repo import Repo, Version

MAX_MODELS = 1_000
DEFAULT_SEED = 0
Selection = Callable[[BoundSelect], Sequence["Version"]]


@dataclass(frozen=True)
class WeightSource:
    """Weights that can be read: their shapes and types by name, and a function that reads those of some names."""

    shapes: Mapping[str, Shape]
    types: Mapping[str, str]
    read: Callable[[Sequence[str]], Mapping[str, torch.Tensor]]
    snapshot: str  # which weights these are


@dataclass(frozen=True)
class DerivedModel:
    """A network that is derived from a version.

    `id` is that of the version which it becomes: equal for equal networks with equal weights and the same name. Tensors
    of the `kept` names are those of the source, `new` ones are initialised by the seed, `dropped` ones are left out.
    """

    source: Version
    name: str
    network: Network
    changes: tuple[str, ...]
    kept: tuple[str, ...]
    new: tuple[str, ...]
    dropped: tuple[str, ...]
    seed: int
    id: str
    _source_weights: WeightSource | None = field(repr=False, compare=False)

    @property
    def has_weights(self) -> bool:
        """Whether the source has weights. Otherwise all layers are new, and no weights are committed."""
        return self._source_weights is not None

    @property
    def parameters(self) -> int:
        """The number of weights."""
        return sum(math.prod(size or 1 for size in each.shape) for each in self.network.parameters.values())

    def weights(self, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """All tensors by name, or some: kept ones as they are stored, new ones in the type of the others."""
        from regatta.network.torch.initialise import initial_weights

        wanted = set((*self.kept, *self.new) if names is None else names)
        kept, new = ([name for name in part if name in wanted] for part in (self.kept, self.new))
        found = dict(self._source_weights.read(kept)) if self._source_weights is not None and kept else {}
        kind = self._floating_type()
        for name, tensor in initial_weights(self.network, new, self.seed).items() if new else ():
            found[name] = tensor.to(kind) if kind is not None and tensor.is_floating_point() else tensor
        return found

    def _floating_type(self) -> torch.dtype | None:
        """The floating type of most tensors of the source."""
        from regatta.store.torch_tensors import torch_dtype

        types = {} if self._source_weights is None else self._source_weights.types
        kinds = Counter(kind for kind in map(torch_dtype, types.values()) if kind.is_floating_point)
        return kinds.most_common(1)[0][0] if kinds else None


@dataclass(frozen=True)
class _Base:
    """What a model is derived from: a version, or a model that is itself derived."""

    version: Version
    name: str
    network: Network
    weights: WeightSource | None
    changes: tuple[str, ...] = ()


def derive(
    repo: Repo, query: BoundDerivation, select: Selection, *, text: str = "", seed: int = DEFAULT_SEED,
    max_models: int = MAX_MODELS,
) -> list[DerivedModel]:  # fmt: skip
    """The models that a query makes, in the order of their sources and variants; equal ones once.

    `select` runs the select that the query begins with. Versions which a query with the same text has made are no
    sources of it, so that running it once more makes nothing new.
    """
    bases = list(_bases(repo, query, select, text, seed, max_models))
    count = len(bases) * (count_variants(query) if isinstance(query, BoundConstruct) else 1)
    if count > max_models:
        raise UsageError(
            f"The query makes {count:,} models of {len(bases):,}; {max_models:,} is the limit.",
            hint=f"To make them all: --max-models {count}, or with_options(max_models={count}) in Python.",
        )
    from regatta.network.torch.trial_run import TrialRun

    trial = TrialRun()
    made = [model for base in bases for model in _derived(query, base, seed, trial)]
    return list({model.id: model for model in made}.values())


def same_query(text: str, other: object) -> bool:
    """Whether two texts are the same query, up to white space."""
    return isinstance(other, str) and text.split() == other.split()


# What models are derived from


def _bases(
    repo: Repo, query: BoundDerivation, select: Selection, text: str, seed: int, max_models: int
) -> Iterator[_Base]:
    inner = inner_derivation(query.models.sources)
    if inner is not None:
        models = derive(repo, inner, select, text=text, seed=seed, max_models=max_models)
        for model in models:
            if query.models.where is None or NamedLayers(model.network).holds(query.models.where, {}):
                yield _base_of_model(model)
        return
    for version in select(query.models):
        if not (text and same_query(text, version.metadata.get("query"))):
            yield _base_of_version(repo, version)


def _base_of_version(repo: Repo, version: Version) -> _Base:
    return _Base(version, version.name, network_of(repo, version), _weights_of(repo, version))


def _base_of_model(model: DerivedModel) -> _Base:
    source, shapes = model._source_weights, {each.name: each.shape for each in model.network.parameters.values()}
    if source is not None:
        known = {**source.shapes, **{name: shapes[name] for name in model.new}}
        shapes = {name: known[name] for name in (*model.kept, *model.new)}
        source = WeightSource(shapes, source.types, model.weights, model.id)
    return _Base(model.source, model.name, model.network, source, model.changes)


def network_of(repo: Repo, version: Version) -> Network:
    """The network of a version, as its layers can be selected and changed."""
    stored = repo.network(version)
    if stored is None:
        run = repo.catalog.run(version.run)
        hint = "Commit it with one: repo.commit(..., network=network.from_torch(model, example_input))"
        if run is not None and folder_of_run(repo, run) is not None:
            hint = f"Record the networks of its run: regatta commit --run {run.name} --networks"
        raise UsageError(f"The version {version.reference} has no network.", hint=hint)
    try:
        return from_json(canonical_json(stored, "network"))
    except DataError as error:
        raise UsageError(
            f"The network of {version.reference} cannot be read: {error.message}",
            hint="Commit one that regatta.network has read: from_torch, from_keras or from_onnx.",
        ) from error


def _weights_of(repo: Repo, version: Version) -> WeightSource | None:
    snapshots = repo.catalog.snapshots(version)
    if not snapshots:
        return None
    weights = repo.weights(version)

    def read(names: Sequence[str]) -> Mapping[str, torch.Tensor]:
        from regatta.store.torch_tensors import torch_tensors

        return torch_tensors(weights.read(names))

    shapes = {name: tuple(member.shape) for name, member in weights.members.items()}
    types = {name: member.dtype for name, member in weights.members.items()}
    return WeightSource(shapes, types, read, f"{snapshots[-1].reference} {snapshots[-1].epoch}")


# Networks and their weights


def _derived(query: BoundDerivation, base: _Base, seed: int, trial: TrialRun) -> Iterator[DerivedModel]:
    layers = NamedLayers(base.network)
    with _place_of(base, isinstance(query, BoundConstruct) and query.fit):
        if isinstance(query, BoundSlice):
            yield _model(query, base, _sliced(layers, query), seed)
            return
        reserved = None if base.weights is None else base.weights.shapes
        for variant in variants(query):
            made = construct(layers, query, variant, reserved)
            _check_runs(trial, base.network, made.network)
            yield _model(query, base, made, seed)


def _check_runs(trial: TrialRun, before: Network, after: Network) -> None:
    """Refuse a network that PyTorch would not run, if it runs the one before."""
    failure = trial.first_failure(after)
    if failure is not None and trial.first_failure(before) is None:
        raise UsageError(f"The network would not run: {failure}.")


def _sliced(layers: NamedLayers, query: BoundSlice) -> Constructed:
    ends = []
    for nodes in (query.inputs, query.outputs):
        found = layers.select(nodes)
        if not found:
            raise name_no_layer(layers, nodes)
        ends.append(list(found))
    network = layers.network.slice(*ends)
    kept = sum(node.id in layers.network.by_id for node in network.nodes)
    return Constructed(
        network, (f"sliced from {', '.join(ends[0])} to {', '.join(ends[1])}: {kept} of {len(layers.network)} layers",)
    )


def _model(query: BoundDerivation, base: _Base, made: Constructed, seed: int) -> DerivedModel:
    kept, new, dropped = _sorted_weights(base, made.network)
    name = check_name(query.into or f"{base.name}-{query.name}")
    snapshot = "" if base.weights is None else base.weights.snapshot
    parts = (base.version.id, snapshot, to_json(made.network), str(seed), name)
    id = blake3("\0".join(parts).encode(errors="surrogatepass")).hexdigest(length=ID_DIGITS // 2)
    changes = (*base.changes, *made.changes)
    return DerivedModel(base.version, name, made.network, changes, kept, new, dropped, seed, id, base.weights)


def _sorted_weights(base: _Base, network: Network) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The names of tensors that are kept, initialised and left out."""
    if base.weights is None:
        return (), tuple(network.parameters), ()
    shapes, before = base.weights.shapes, base.network.parameters
    kept, new = list[str](), list[str]()
    for name, parameter in network.parameters.items():
        if name in shapes and _fits(parameter.shape, shapes[name]):
            kept.append(name)
        elif name in before and before[name].shape == parameter.shape:
            found = f"has the shape {show_shape(shapes[name])}" if name in shapes else "is missing"
            wanted = show_shape(parameter.shape)
            raise DataError(
                f"The weights do not fit the network: {name!r:.200}, of the shape {wanted} there, {found}.",
                hint="Commit the network that belongs to the weights.",
            )
        else:
            new.append(name)
    # Tensors that no parameter of the network describes, such as counters of batches, stay with their layer.
    modules = {name.rpartition(".")[0] for name in kept}
    kept += [name for name in shapes if name not in before and name.rpartition(".")[0] in modules]
    used = {*kept, *new}
    return tuple(kept), tuple(new), tuple(name for name in shapes if name not in used)


def _fits(wanted: Shape, found: Shape) -> bool:
    return len(wanted) == len(found) and all(size in (None, there) for size, there in zip(wanted, found, strict=True))


@contextmanager
def _place_of(base: _Base, fit: bool) -> Iterator[None]:
    """Errors name the version whose network cannot be made."""
    try:
        yield
    except ShapeError as error:
        hint = None if fit else "With `fit` at the end of the query, layers are resized to take what they are given."
        raise UsageError(error.message, place=base.version.reference, hint=hint) from error
    except RegattaError as error:
        error.place = base.version.reference if error.place is None else f"{base.version.reference}, {error.place}"
        raise
