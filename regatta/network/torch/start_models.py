"""The models of a sweep that starts from networks and weights in files of its run, instead of a function of the user.

StartModels is the `model_fn` of such a sweep: `config["model"]` names the file, and the other values of the
configuration are those of the optimizer. `named_loss` and `accuracy` are its `loss_fn` and `eval_fn`.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn import functional

from regatta.errors import CorruptError, NotFoundError, UsageError
from regatta.network.graph import Network
from regatta.network.json_form import from_json, to_json
from regatta.network.torch.network_module import NetworkModule
from regatta.network.torch.to_torch import to_torch
from regatta.paths import MODELS, RUNS, STATE_SUFFIX, find_repository

OPTIMIZERS: Mapping[str, type[torch.optim.Optimizer]] = {
    name.lower(): getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop")
}
LOSSES: Mapping[str, Any] = {
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "multi_margin": functional.multi_margin_loss,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "huber": functional.huber_loss,
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
}
OF_CLASSES = ("cross_entropy", "nll", "multi_margin")  # losses for which there is an accuracy
OPTIMIZER_VALUES = ("momentum", "weight_decay", "nesterov", "dampening", "alpha", "eps", "amsgrad", "centered")
EVALUATED_ROWS = 1_024  # at once
METADATA = "model"  # the key of the name and the network in the metadata of a file
_OPEN_MODELS = 64  # whose network and weights a worker keeps mapped


@dataclass
class StartModels:
    """`model_fn(config)`: the model `config["model"]` with its weights, and its optimizer.

    `digests` are the hashes of the files, by model. `groups` has the names of the parameters, by model, of each value
    of the configuration that is the learning rate of some layers; `.lr_mult` at its end: a multiple of `base_lr`.
    """

    digests: Mapping[str, str]
    groups: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    folder: Path | None = None

    def __call__(self, config: Mapping[str, Any]) -> Any:
        network, weights = self._read(str(config["model"]))
        module = to_torch(network, weights)
        return module, make_optimizer(module, config, self.groups.get(str(config["model"]), {}))

    def code_identity(self) -> object:
        """What makes two of them equal: neither where the files are, nor what was read from them."""
        return type(self).__name__, sorted(self.digests.items()), repr(self.groups)

    def network_of(self, config: Mapping[str, Any]) -> str:
        """The network of a configuration, as JSON."""
        return to_json(self._read(str(config["model"]))[0])

    def move_to(self, folder: Path) -> None:
        """Move the files into the folder of a run, unless it has them."""
        if self.folder is not None and not (folder / MODELS).exists():
            os.rename(self.folder, folder / MODELS)
        self.folder = folder / MODELS

    def _read(self, model: str) -> tuple[Network, Mapping[str, torch.Tensor]]:
        path = self._path(model)
        key = str(path), self.digests[model]
        if key not in _READ:
            while len(_READ) >= _OPEN_MODELS:
                del _READ[next(iter(_READ))]
            _READ[key] = _read_model(path, self.digests[model])
        return _READ[key]

    def _path(self, model: str) -> Path:
        if model not in self.digests:
            raise UsageError(f"The run has no model {model!r}.")
        name = f"{model}{STATE_SUFFIX}"
        if self.folder is None:
            raise UsageError("The models of the sweep are in no folder yet.")
        if (self.folder / name).is_file():
            return self.folder / name
        repositories = {self.folder.parents[2], find_repository()} - {None}  # the run was renamed, or all was moved
        for path in [path for each in repositories if each for path in (each / RUNS).glob(f"*/{MODELS}/{name}")]:
            if _digest(path) == self.digests[model]:
                return path
        raise NotFoundError("The model that the run starts from is not there.", place=str(self.folder / name))


_READ: dict[tuple[str, str], tuple[Network, Mapping[str, torch.Tensor]]] = {}


def write_model(path: Path, network: Network, weights: Mapping[str, torch.Tensor], name: str = "") -> str:
    """Write a network and its weights into a file, and return the hash of the file. The name is for people."""
    plain = {name: tensor.detach().contiguous().clone() for name, tensor in weights.items()}
    # One text: the library writes several in an order that differs each time.
    save_file(plain, path, {METADATA: json.dumps({"name": name, "network": to_json(network)})})
    return _digest(path)


def _read_model(path: Path, digest: str) -> tuple[Network, Mapping[str, torch.Tensor]]:
    if _digest(path) != digest:
        raise CorruptError("The file is not the model that the run started from.", place=str(path))
    with safe_open(path, "pt") as file:
        network = from_json(json.loads(file.metadata()[METADATA])["network"])
        return network, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)


def _digest(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest(length=16)


def make_optimizer(
    module: NetworkModule, config: Mapping[str, Any], groups: Mapping[str, tuple[str, ...]]
) -> torch.optim.Optimizer:
    """The optimizer of a configuration; layers with a rate of their own are a group of its parameters.

    A layer that is in several groups belongs to the last of them.
    """
    base_lr = float(config["base_lr"])
    of_parameter = {name: value for value, names in groups.items() if value in config for name in names}
    members: dict[str, list[torch.nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        members.setdefault(of_parameter.get(name, ""), []).append(parameter)
    rates = {"": base_lr}
    for value in members:
        if value:
            rates[value] = float(config[value]) * (base_lr if value.endswith(".lr_mult") else 1.0)
    order = sorted(members, key=lambda value: [*groups, ""].index(value))
    parts = [{"params": members[value], "lr": rates[value]} for value in reversed(order)]
    options = {name: config[name] for name in OPTIMIZER_VALUES if name in config}
    make: Any = OPTIMIZERS[str(config["optimizer"])]
    optimizer: torch.optim.Optimizer = make(parts, lr=base_lr, **options)
    return optimizer


def optimizer_options(name: str) -> tuple[str, ...]:
    """The values of a configuration that an optimizer takes, besides its rate."""
    known = inspect.signature(OPTIMIZERS[name]).parameters
    return tuple(value for value in OPTIMIZER_VALUES if value in known)


def parameter_names(network: Network, layers: Iterable[str]) -> tuple[str, ...]:
    """The names in the module of the trainable parameters that these layers have."""
    module, wanted = to_torch(network), set(layers)
    of_layers = {parameter.name for id in wanted for parameter in network.by_id[id].parameters}
    return tuple(name for name, _ in module.named_parameters() if name in of_layers)


def named_loss(model: Any, batch: Any, config: Mapping[str, Any]) -> torch.Tensor:
    """`loss_fn`: the loss of PyTorch that `config["loss"]` names, of the first output."""
    x, y = batch
    loss: torch.Tensor = LOSSES[config["loss"]](_outputs(model, x), y)
    return loss


def accuracy(data: Any, model: Any, config: Mapping[str, Any]) -> dict[str, float]:
    """`eval_fn`: the share of rows whose class has the largest output."""
    x, y = data
    right = 0
    for start in range(0, len(x), EVALUATED_ROWS):
        part = slice(start, start + EVALUATED_ROWS)
        right += int((_outputs(model, x[part]).argmax(1) == y[part]).sum())
    return {"accuracy": right / max(1, len(x))}


def _outputs(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The output for rows in the shape that the network takes; images may come as rows of numbers."""
    network = getattr(model, "network", None)
    shape = () if network is None else (network.inputs[0].shape or ())[1:]
    if None not in shape and tuple(x.shape[1:]) != shape and prod(shape) == prod(x.shape[1:]):
        x = x.reshape(len(x), *shape)
    found = model(x)
    first: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return first


def optimizer_values(built: Any) -> dict[str, Any]:
    """The values of a configuration that make an optimizer like that of a `model_fn`."""
    found = [part for part in built if isinstance(part, torch.optim.Optimizer)] if isinstance(built, tuple) else []
    if not found:
        raise UsageError("The sweep's model_fn returns no optimizer of PyTorch, so it is not known how to train.")
    optimizer = found[0]
    name = type(optimizer).__name__.lower()
    if OPTIMIZERS.get(name) is not type(optimizer):
        raise UsageError(
            f"The optimizer {type(optimizer).__name__} has no name here.", hint=f"Names: {', '.join(OPTIMIZERS)}."
        )
    if len(optimizer.param_groups) > 1:
        raise UsageError(
            "The optimizer of the sweep has several groups of parameters.", hint='Use config.net["..."].lr.'
        )
    usual = inspect.signature(OPTIMIZERS[name]).parameters
    settings = {key: value for key, value in optimizer.defaults.items() if key in usual and value != usual[key].default}
    options = optimizer_options(name)
    odd = [key for key in settings if key not in (*options, "lr")]
    if odd:
        raise UsageError(f"The optimizer of the sweep has {odd[0]}={settings[odd[0]]!r:.80}, which has no name here.")
    return {
        "optimizer": name,
        "base_lr": optimizer.defaults["lr"],
        **{key: settings[key] for key in options if key in settings},
    }
