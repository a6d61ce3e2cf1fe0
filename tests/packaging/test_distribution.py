"""What is shipped: the wheel and its metadata, the pinned set, and rooms that open without torch."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import probecascade

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    info = f"probecascade-{probecascade.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"probecascade", info}
    shipped = {name for name in names if name.startswith("probecascade/")}
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "probecascade").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == here
    assert "probecascade/py.typed" in shipped
    assert f"{info}/licenses/LICENSE" in names


def test_the_wheels_metadata(wheel: zipfile.ZipFile) -> None:
    info = f"probecascade-{probecascade.__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert wheel.read(f"{info}/entry_points.txt").decode().split("\n")[:2] == [
        "[console_scripts]",
        "probecascade = probecascade.__main__:main",
    ]


def test_the_readme_is_shipped_once_there_is_one() -> None:
    assert PROJECT.get("readme") == ("README.md" if (ROOT / "README.md").exists() else None)


def test_the_pinned_set_satisfies_every_requirement() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {pin.name.lower().replace("_", "-"): Version(str(pin.specifier)[2:]) for pin in pins}
    extras = [r for group in PROJECT["optional-dependencies"].values() for r in group]
    extras = [text for text in extras if Requirement(text).name != PROJECT["name"]]  # an extra that names another
    for text in [*PROJECT["dependencies"], *extras]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(versions[wanted.name]), text


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.search(r"Apache License\s+Version 2\.0, January 2004", text)
    assert "END OF TERMS AND CONDITIONS" in text


ROOMS = ["store", "probes", "thresholds", "policies", "evaluation", "report", "environments", "agents"]


@pytest.mark.parametrize("room", [room for room in ROOMS if (ROOT / "probecascade" / room / "__init__.py").exists()])
def test_a_room_opens_where_torch_and_transformers_are_missing(room: str) -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        f"package = importlib.import_module('probecascade.{room}')\n"
        "for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
