"""The page of public names: whole, documented, and light to open."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import probecascade
from probecascade import errors

NAMES = [name for name in probecascade.__all__ if name != "__version__"]
NEED_TORCH = {"Engine", "attach"}


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_there_and_documented(name: str) -> None:
    found = getattr(probecascade, name)
    assert found.__name__ == {"load_model": "load"}.get(name, name)
    assert found.__module__.startswith("probecascade.")
    assert inspect.getdoc(found)
    # a dataclass without a docstring is given its signature as one
    assert not (inspect.isclass(found) and (found.__doc__ or "").startswith(f"{name}("))


def test_the_page_lists_every_name_once_and_nothing_else() -> None:
    assert sorted(NAMES) == sorted(probecascade._HOMES)
    assert dir(probecascade) == sorted(probecascade.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Cascades'"):
        probecascade.Cascades  # noqa: B018


def test_every_error_is_public() -> None:
    raised = {name for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, Exception)}
    assert raised <= set(NAMES)


def test_the_package_opens_without_loading_anything() -> None:
    heavy = "('torch', 'transformers', 'numpy', 'h5py', 'sklearn')"
    assert python(f"import sys, probecascade; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_only_what_drives_a_model_needs_torch() -> None:
    light = [name for name in NAMES if name not in NEED_TORCH]
    code = f"import sys, probecascade\nfor name in {light}: getattr(probecascade, name)\nprint('torch' in sys.modules)"
    assert python(code) == "False"
    for name in sorted(NEED_TORCH):
        assert python(f"import sys, probecascade; probecascade.{name}; print('torch' in sys.modules)") == "True"
