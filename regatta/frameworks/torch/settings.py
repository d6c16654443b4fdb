"""The settings of PyTorch that a model may leave behind: defaults, modes, flags of backends, global hooks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from regatta.frameworks.settings import ProcessSetting

# Pairs of functions of torch._C. A version of PyTorch, or a build, may lack some.
_FLAGS = {
    "torch.backends.cudnn.enabled": ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    "torch.backends.cudnn.benchmark": ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    "torch.backends.cudnn.benchmark_limit": ("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"),
    "torch.backends.cudnn.deterministic": ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    "torch.backends.cudnn.depthwise_kernel": ("_get_cudnn_depthwise_kernel", "_set_cudnn_depthwise_kernel"),
    "torch.backends.mkldnn.enabled": ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    "torch.backends.mkldnn.deterministic": ("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    "torch.backends.nnpack.enabled": ("_get_nnpack_enabled", "_set_nnpack_enabled"),
    "torch.backends.quantized.engine": ("_get_qengine", "_set_qengine"),
    "torch.backends.cuda.enable_flash_sdp": ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    "torch.backends.cuda.enable_mem_efficient_sdp": ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    "torch.backends.cuda.enable_math_sdp": ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    "torch.backends.cuda.enable_cudnn_sdp": ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp": (
        "_get_math_sdp_allow_fp16_bf16_reduction",
        "_set_math_sdp_allow_fp16_bf16_reduction",
    ),
    "torch.nn.attention.sdpa_kernel": ("_get_sdp_priority_order", "_set_sdp_priority_order"),
    "torch.backends.cuda.preferred_linalg_library": ("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
    "torch.backends.cuda.preferred_blas_library": ("_get_blas_preferred_backend", "_set_blas_preferred_backend"),
    "torch.utils.deterministic.fill_uninitialized_memory": (
        "_get_deterministic_fill_uninitialized_memory",
        "_set_deterministic_fill_uninitialized_memory",
    ),
    "torch.autograd.set_multithreading_enabled": ("_is_multithreading_enabled", "_set_multithreading_enabled"),
    "torch.autograd.forward_ad": ("_is_fwd_grad_enabled", "_set_fwd_grad_enabled"),
    "torch function dispatch": ("_get_torch_function_state", "_set_torch_function_state"),
}
# Each precision is taken from the one before it while it is "none".
_PRECISIONS = (
    ("generic", "all"),
    ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"),
    ("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
_CUBLAS_FLAGS = (
    "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation",
)  # fmt: skip
_MODULE_HOOKS = (
    "_global_buffer_registration_hooks", "_global_module_registration_hooks", "_global_parameter_registration_hooks",
    "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_pre_hooks", "_global_forward_hooks",
    "_global_forward_hooks_always_called", "_global_forward_hooks_with_kwargs",
)  # fmt: skip
_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_AUTOCAST_DEVICES = ("cpu", "cuda")


def _torch() -> Any:
    """PyTorch without its types, which leave out most of what is read and put back here."""
    import torch

    return torch


@functools.cache
def settings() -> tuple[ProcessSetting, ...]:
    return tuple(_settings())


def _settings() -> Iterator[ProcessSetting]:
    torch = _torch()
    # Modes come first: some change what the functions below return.
    yield ProcessSetting("a dispatch mode", _dispatch_modes, _put_dispatch_modes)
    yield ProcessSetting("a function mode or the default device", _function_modes, _put_function_modes)
    yield ProcessSetting("torch.inference_mode", torch.is_inference_mode_enabled, _put_inference_mode)
    yield ProcessSetting("torch.set_grad_enabled", torch.is_grad_enabled, torch._C._set_grad_enabled)
    yield ProcessSetting("torch.set_default_dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield ProcessSetting("torch.autocast", _autocast, _put_autocast)
    yield ProcessSetting("the dispatch keys", _DispatchKeys, _put_dispatch_keys)
    yield ProcessSetting("torch.autograd.set_detect_anomaly", _anomaly, lambda modes: torch.set_anomaly_enabled(*modes))
    yield ProcessSetting("torch.autograd.graph.saved_tensors_hooks", _saved_tensors_hooks, _put_saved_tensors_hooks)
    yield ProcessSetting("torch.use_deterministic_algorithms", _deterministic, _put_deterministic)
    yield ProcessSetting("torch.set_num_threads", torch.get_num_threads, torch.set_num_threads)
    yield ProcessSetting("torch.set_flush_denormal", _flushes_denormals, torch.set_flush_denormal)
    yield _older(
        "torch.set_float32_matmul_precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    )
    yield _older("torch.backends.cudnn.allow_tf32", torch._C._get_cudnn_allow_tf32, torch._C._set_cudnn_allow_tf32)
    yield from _flags()
    yield from _hooks()
    yield ProcessSetting("torch.nn.utils.parametrize.cached", _parametrizations, _put_parametrizations)
    yield ProcessSetting("torch.__future__", _future_flags, _put_future_flags)
    yield ProcessSetting("torch.backends.mha", _mha_fastpath, _put_mha_fastpath)
    yield ProcessSetting("torch.backends.opt_einsum", _opt_einsum, _put_opt_einsum)
    yield ProcessSetting("torch.cuda.set_stream", _cuda_stream, _put_cuda_stream)


# -- stacks of modes ---------------------------------------------------------------------------------------


def _function_modes() -> tuple[Any, ...]:
    """The modes, outermost first, and the default device, which is one of them."""
    torch = _torch()
    from torch.utils import _device

    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    modes = tuple(map(torch._C._get_function_stack_at, range(torch._C._len_torch_function_stack())))
    return default, _device.CURRENT_DEVICE, modes


def _put_function_modes(before: tuple[Any, ...]) -> None:
    torch = _torch()
    from torch.utils import _device

    default, device, modes = before
    keep = _common_length(_function_modes()[-1], modes)
    while torch._C._len_torch_function_stack() > keep:
        torch._C._pop_torch_function_stack()
    for mode in modes[keep:]:
        torch._C._push_on_torch_function_stack(mode)
    torch._GLOBAL_DEVICE_CONTEXT.device_context = default
    _device.CURRENT_DEVICE = device


def _dispatch_modes() -> tuple[Any, ...]:
    torch = _torch()
    return tuple(map(torch._C._get_dispatch_stack_at, range(torch._C._len_torch_dispatch_stack())))


def _put_dispatch_modes(before: tuple[Any, ...]) -> None:
    keep = _common_length(_dispatch_modes(), before)
    for mode in reversed(_dispatch_modes()[keep:]):
        mode.__exit__(None, None, None)
    for mode in before[keep:]:
        mode.__enter__()


def _saved_tensors_hooks() -> tuple[Any, ...]:
    torch = _torch()
    stack: list[Any] = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        stack.insert(0, top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    for pair in stack:
        torch._C._autograd._push_saved_tensors_default_hooks(*pair)
    return tuple(stack)


def _put_saved_tensors_hooks(before: tuple[Any, ...]) -> None:
    torch = _torch()
    for _ in _saved_tensors_hooks():
        torch._C._autograd._pop_saved_tensors_default_hooks()
    for pair in before:
        torch._C._autograd._push_saved_tensors_default_hooks(*pair)


def _common_length(one: Any, other: Any) -> int:
    """How many of the first items are the same objects."""
    same = 0
    while same < min(len(one), len(other)) and one[same] is other[same]:
        same += 1
    return same


# -- modes of autograd and autocast ---------------------------------------------------------------------------

_guards: list[Any] = []  # each one holds a mode until it is destroyed


def _put_inference_mode(enabled: bool) -> None:
    _guards.append(_torch()._C._InferenceMode(enabled))
    _guards[-1].__enter__()


class _DispatchKeys:
    """What the modes above have switched on in this thread. A guard of a mode that is destroyed late changes it."""

    def __init__(self) -> None:
        torch = _torch()
        self.included = torch._C._dispatch_tls_local_include_set()
        self.excluded = torch._C._dispatch_tls_local_exclude_set()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _DispatchKeys) and (self.included, self.excluded) == (other.included, other.excluded)

    __hash__ = None  # type: ignore[assignment]


def _put_dispatch_keys(keys: _DispatchKeys) -> None:
    _guards.append(_torch()._C._ForceDispatchKeyGuard(keys.included, keys.excluded))
    _guards[-1].__enter__()


def _anomaly() -> tuple[bool, bool]:
    torch = _torch()
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _autocast() -> tuple[Any, ...]:
    torch = _torch()
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    devices = [(torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _AUTOCAST_DEVICES]
    return depth, torch.is_autocast_cache_enabled(), devices


def _put_autocast(before: tuple[Any, ...]) -> None:
    torch = _torch()
    depth, caches, devices = before
    while _autocast()[0] > depth:
        torch.autocast_decrement_nesting()
    while _autocast()[0] < depth:
        torch.autocast_increment_nesting()
    torch.clear_autocast_cache()  # it holds casts of other weights
    torch.set_autocast_cache_enabled(caches)
    for name, (enabled, dtype) in zip(_AUTOCAST_DEVICES, devices, strict=True):
        torch.set_autocast_enabled(name, enabled)
        torch.set_autocast_dtype(name, dtype)


# -- flags and precisions -------------------------------------------------------------------------------------


def _flags() -> Iterator[ProcessSetting]:
    torch = _torch()
    for name, (get, put) in _FLAGS.items():
        if hasattr(torch._C, get) and hasattr(torch._C, put):
            yield ProcessSetting(name, getattr(torch._C, get), getattr(torch._C, put))
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        for backend, operation in _PRECISIONS:
            get_precision = functools.partial(torch._C._get_fp32_precision_getter, backend, operation)
            put_precision = functools.partial(torch._C._set_fp32_precision_setter, backend, operation)
            yield ProcessSetting(f"fp32_precision of {backend} {operation}", get_precision, put_precision)
    for name in _CUBLAS_FLAGS:
        if hasattr(torch._C, f"_get_cublas_{name}"):
            get_flag = getattr(torch._C, f"_get_cublas_{name}")
            put_flag = getattr(torch._C, f"_set_cublas_{name}")
            yield ProcessSetting(f"torch.backends.cuda.matmul.{name}", get_flag, functools.partial(_put_each, put_flag))


def _put_each(put: Callable[..., object], value: Any) -> None:
    """Some flags have two parts."""
    put(*value) if isinstance(value, tuple) else put(value)


def _older(name: str, get: Callable[[], Any], put: Callable[[Any], object]) -> ProcessSetting:
    """A precision of the older kind: reading it is an error while the precisions of single backends contradict it."""

    def read() -> Any:
        try:
            return get()
        except RuntimeError:
            return None

    return ProcessSetting(name, read, lambda value: None if value is None else put(value))


def _deterministic() -> tuple[bool, bool]:
    torch = _torch()
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _put_deterministic(modes: tuple[bool, bool]) -> None:
    _torch().use_deterministic_algorithms(modes[0], warn_only=modes[1])


def _flushes_denormals() -> bool:
    return sys.float_info.min * 0.5 == 0.0  # computed at each call, by the processor


def _mha_fastpath() -> bool:
    return bool(_torch().backends.mha.get_fastpath_enabled())


def _put_mha_fastpath(enabled: bool) -> None:
    _torch().backends.mha.set_fastpath_enabled(enabled)


def _opt_einsum() -> tuple[Any, ...]:
    opt_einsum = _torch().backends.opt_einsum
    return opt_einsum.enabled, getattr(opt_einsum, "strategy", None)


def _put_opt_einsum(before: tuple[Any, ...]) -> None:
    enabled, strategy = before
    _torch().backends.opt_einsum.set_flags(enabled, strategy if enabled else None)


# -- hooks and caches of torch.nn and torch.optim --------------------------------------------------------------


def _hooks() -> Iterator[ProcessSetting]:
    from torch.nn.modules import module
    from torch.optim import optimizer

    for place, names in ((module, _MODULE_HOOKS), (optimizer, _OPTIMIZER_HOOKS)):
        for name in names:
            hooks = getattr(place, name, None)
            if isinstance(hooks, dict):
                put = functools.partial(_put_items, hooks)
                yield ProcessSetting(f"global hooks of {place.__name__}", functools.partial(_items, hooks), put)

    def put_kind(full: bool | None) -> None:
        module._global_is_full_backward_hook = full

    yield ProcessSetting(
        "global hooks of torch.nn.modules.module", lambda: module._global_is_full_backward_hook, put_kind
    )


def _items(hooks: dict[int, Any]) -> tuple[Any, ...]:
    return tuple(hooks.items())


def _put_items(hooks: dict[int, Any], before: tuple[Any, ...]) -> None:
    hooks.clear()
    hooks.update(before)


def _parametrizations() -> int:
    from torch.nn.utils import parametrize

    return parametrize._cache_enabled


def _put_parametrizations(enabled: int) -> None:
    from torch.nn.utils import parametrize

    parametrize._cache_enabled = enabled
    parametrize._cache = {}


def _future_flags() -> tuple[bool, bool]:
    from torch import __future__ as flags

    return flags.get_overwrite_module_params_on_conversion(), flags.get_swap_module_params_on_conversion()


def _put_future_flags(before: tuple[bool, bool]) -> None:
    from torch import __future__ as flags

    flags.set_overwrite_module_params_on_conversion(before[0])
    flags.set_swap_module_params_on_conversion(before[1])


# -- CUDA -----------------------------------------------------------------------------------------------------


def _cuda_stream() -> Any:
    """The current stream; None is the default stream, which it is until a model uses CUDA."""
    torch = _torch()
    if not torch.cuda.is_initialized():
        return None
    stream = torch.cuda.current_stream()
    return None if stream == torch.cuda.default_stream() else stream


def _put_cuda_stream(stream: Any) -> None:
    torch = _torch()
    torch.cuda.set_stream(torch.cuda.default_stream() if stream is None else stream)
