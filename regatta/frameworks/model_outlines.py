"""The networks of the models that a sweep's `model_fn` builds, found without building their weights.

This works for PyTorch only: modules are built on its "meta" device, which has shapes and no values. A model that cannot
be built or traced there has no outline. That is not an error, and the model is trained all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.hub

from regatta.frameworks import keep_settings, seeded_in_all
from regatta.network import Network, from_torch, to_json

EXAMPLE_ROWS = 2


def outlines(
    model_fn: Callable[[dict[str, Any]], Any],
    configs: Mapping[str, Mapping[str, Any]],
    *,
    seconds: float,
    example: tuple[str, Sequence[int]] | None = None,
) -> dict[str, str]:
    """The network of each configuration as JSON, by id, as far as the time allows; equal texts are one object.

    `example` is the type and the shape of an input row; with it, the shapes of all layers are known.
    """
    until, found, same = time.perf_counter() + seconds, dict[str, str](), dict[str, str]()
    with seeded_in_all(0), _no_progress_thread():  # the caller finds its random numbers unchanged
        for ident, config in configs.items():
            if time.perf_counter() >= until:
                break
            network = _outline(model_fn, dict(config), example)
            if network is not None:
                text = to_json(network)
                found[ident] = same.setdefault(text, text)
    return found


@contextmanager
def _no_progress_thread() -> Iterator[None]:
    """PyTorch shows a progress bar for each pass over a graph, and the first one would leave a thread behind."""
    tqdm: Any = vars(torch.hub)["tqdm"]
    before = getattr(tqdm, "monitor_interval", 0)
    tqdm.monitor_interval = 0
    try:
        yield
    finally:
        tqdm.monitor_interval = before


def _outline(
    model_fn: Callable[[dict[str, Any]], Any], config: dict[str, Any], example: tuple[str, Sequence[int]] | None
) -> Network | None:
    try:
        with keep_settings(), torch.device("meta"):
            built = model_fn(config)
            model = built[0] if isinstance(built, tuple) else built
            if not isinstance(model, torch.nn.Module):
                return None
            return from_torch(model.to("meta"), _batch(example))
    except Exception:  # noqa: BLE001 (the user's function was not written for this device)
        return None


def _batch(example: tuple[str, Sequence[int]] | None) -> torch.Tensor | None:
    if example is None or not isinstance(getattr(torch, example[0], None), torch.dtype):
        return None
    return torch.zeros((EXAMPLE_ROWS, *example[1]), dtype=getattr(torch, example[0]), device="meta")
