"""Optimizers in the form that a CUDA graph can hold: counters and, for schedules, learning rates on the device.

The capturable form of an optimizer may round differently from its ordinary form. So a pack promises equality for the
same form: packed equals alone for an optimizer that `capturable` has prepared.
"""

from __future__ import annotations

from typing import Any

import torch

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)  # one kernel, and a loss scaler need not wait


def capturable(optimizer: torch.optim.Optimizer, schedule: bool = False) -> torch.optim.Optimizer:
    """Prepare an optimizer for capture, in place; `schedule` says that its learning rates will change.

    Parameters on the CPU need no preparation. Settings that the caller chose (foreach, fused) stay.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not all(parameter.is_cuda for parameter in parameters):
        return optimizer
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        if type(optimizer) in FUSED and group.get("foreach") is None and group.get("fused") is None:
            group["fused"], group["foreach"] = True, False
            optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        if schedule and takes_tensor_rate(group):
            group["lr"] = _as_tensor(group["lr"], parameters[0].device)  # a group may be empty
    _counters_to_device(optimizer)
    return optimizer


def takes_tensor_rate(group: dict[str, Any]) -> bool:
    """Whether the update of a parameter group can read its learning rate from the device under capture."""
    return bool(group.get("capturable") or group.get("fused"))


def _as_tensor(rate: Any, device: torch.device) -> torch.Tensor:
    if isinstance(rate, torch.Tensor):
        return rate.to(device)
    return torch.tensor(rate, dtype=torch.float32, device=device)


def _counters_to_device(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        if not takes_tensor_rate(group):
            continue
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if isinstance(step, torch.Tensor):
                optimizer.state[parameter]["step"] = step.to(parameter.device)


def why_not_capturable(optimizer: torch.optim.Optimizer) -> str | None:
    """Why an optimizer cannot be captured, judged by its settings; a test capture finds the other reasons."""
    for group in optimizer.param_groups:
        on_gpu = any(parameter.is_cuda for parameter in group["params"])
        if on_gpu and group.get("capturable") is False and not group.get("fused"):
            return f"{type(optimizer).__name__} without capturable=True counts its steps on the host"
        if group.get("lr_decay"):
            return f"{type(optimizer).__name__} with lr_decay computes its learning rate on the host"
    return None


def host_counters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Step counters on the host for parameters on a device: a replayed step does not advance them."""
    return [
        value
        for parameter, state in optimizer.state.items()
        if isinstance(parameter, torch.Tensor) and parameter.is_cuda
        for value in state.values()
        if isinstance(value, torch.Tensor) and not value.is_cuda
    ]
