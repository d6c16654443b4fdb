"""Executes a user's Python file to find the sweep that it defines.

The functions of the file are sent to the workers by value, so workers need not import it.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from regatta.errors import RegattaError, UsageError, nearest
from regatta.format import type_name

if TYPE_CHECKING:
    from regatta.sweep import Sweep

DEFAULT_NAME = "sweep"


def load_sweep(target: str, repo: str | None = None) -> Sweep:
    """The sweep of FILE or FILE:name, with the repository `repo` if it is given."""
    path, name = split_target(target)
    if _mentions_torch(path):
        from regatta.sweep import expect_workers

        expect_workers(b"torch")  # they import PyTorch while this process does
    names = vars(load_file(path))
    sweep = _pick(names, name, path)
    if repo is not None:
        from regatta.run import repository

        sweep.repo = repository(repo)
    return sweep


def _mentions_torch(path: Path) -> bool:
    try:
        return b"torch" in path.read_bytes()
    except OSError:
        return False  # whatever is wrong with the file is reported when it is executed


def split_target(target: str) -> tuple[Path, str]:
    """Split FILE:name; an existing path with a colon stays whole."""
    path, _, name = target.rpartition(":")
    if path and name.isidentifier() and not Path(target).exists():
        return Path(path), name
    return Path(target), DEFAULT_NAME


def looks_like_file(target: str) -> bool:
    """Whether the argument is a file, and not the name of a run."""
    path, _ = split_target(target)
    return path.suffix == ".py" or path.is_file()


def load_file(path: Path) -> ModuleType:
    """Execute a file as a module, not as `__main__`; it can import files of its folder."""
    import cloudpickle

    if not path.is_file():
        known = [str(p) for p in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"The file {str(path)!r} {what}.", candidates=nearest(str(path), known))
    name = "regatta_file_" + re.sub(r"\W", "_", path.stem)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{str(path)!r} is not a Python file.", hint="Give it a name that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    cloudpickle.register_pickle_by_value(module)
    _execute(spec.loader.exec_module, module, path)
    return module


def _execute(execute: Callable[[ModuleType], None], module: ModuleType, path: Path) -> None:
    from regatta.sweep import LOADED_FILE

    loading = LOADED_FILE.set(str(path))
    try:
        execute(module)
    except RegattaError as error:
        error.place = error.place or _place(error, path)
        raise
    except Exception as error:
        shown = "".join(traceback.format_exception(error.with_traceback(_own_frames(error, path))))
        raise UsageError("The file raised an error.", place=_place(error, path), hint=shown) from error
    finally:
        LOADED_FILE.reset(loading)


def _own_frames(error: Exception, path: Path) -> TracebackType | None:
    """The traceback from the user's file on, without the frames of this module."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != str(path.resolve()):
        frame = frame.tb_next
    return frame


def _place(error: Exception, path: Path) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{error.filename}:{error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path.resolve())
    ]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _pick(names: Mapping[str, object], name: str, path: Path) -> Sweep:
    from regatta.sweep import Sweep

    found = names.get(name)
    if isinstance(found, Sweep):
        return found
    sweeps = [known for known, value in names.items() if isinstance(value, Sweep)]
    if name in names:
        problem = f"{name!r} is {type_name(found)}, not a regatta.Sweep."
    else:
        defined = [n for n, value in names.items() if not n.startswith("_") and not isinstance(value, ModuleType)]
        problem = f"There is no sweep named {name!r}. The file defines {', '.join(defined) or 'nothing'}."
    if sweeps:
        hint = "The file defines these sweeps; choose one: " + ", ".join(f"{path}:{name}" for name in sweeps)
    else:
        hint = "Add a line such as: sweep = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn)"
    raise UsageError(problem, place=str(path), hint=hint)
