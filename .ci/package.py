"""Build the wheel and the source distribution, and use them in clean environments as a user would.

    make package

Both are built into ``dist``. The wheel is installed with the newest versions of what it needs on
every Python from 3.12 that is found, the source distribution on the first of these, and the wheel
once more with the lowest versions that pyproject.toml allows, on the oldest. In each of these
environments, outside of this folder, `CHECK` draws from a model with a class index and learns a
few images. The script says which Pythons were found, and fails if anything does, or if the version
has no section in CHANGELOG.md or differs from the tag of the commit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UV = [sys.executable, "-m", "uv", "--quiet"]
CHECK = """
import sys
import tempfile
from importlib.metadata import version
import numpy as np
import pymc as pm
import pymc_mcoem as mcoem

names = ("pymc", "pytensor", "numba", "numpy", "scipy", "xarray", "arviz", "scikit-learn")
print("  with", ", ".join(f"{name} {version(name)}" for name in names))
assert mcoem.__version__ == sys.argv[1], mcoem.__version__
with pm.Model():
    k = pm.Categorical("k", [0.3, 0.7])
    x = pm.Normal("x", 3.0 * k, 1.0)
    pm.Normal("y", x, 1.0, observed=2.0)
    idata = pm.sample(200, tune=200, chains=2, cores=1, step=mcoem.CarlinChib(),
                      random_seed=1, progressbar=False, quiet=True)
mcoem.class_index_summary(idata)
# 0.7 Normal(2; 3, 2) over its sum with 0.3 Normal(2; 0, 2)
assert abs(float(idata["posterior"]["k"].mean()) - 0.8316) < 0.15
mixture = mcoem.TemplateMixture.for_images((4, 4), n_classes=2)
em = mcoem.OnlineEM(mixture, random_seed=1, progressbar=False)
em.partial_fit(np.random.default_rng(1).random((6, 4, 4)))
with tempfile.TemporaryDirectory() as folder:
    em.save(f"{folder}/run.nc")
    assert mcoem.OnlineEM.load(f"{folder}/run.nc", mixture).n_seen == 6
"""

console = Console(highlight=False, soft_wrap=True)


def pythons() -> dict[tuple[int, int], str]:
    """Return one Python of each minor version from 3.12 on, oldest first."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = (shutil.which(f"python3.{minor}") for minor in range(12, 20))
    of_pyenv = map(str, sorted(root.glob("versions/3.*/bin/python")))
    found: dict[tuple[int, int], str] = {}
    for candidate in [sys.executable, *filter(None, on_path), *of_pyenv]:
        # a shim may stand for a version that is not installed
        asked = [candidate, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            major, minor = map(int, done.stdout.split())
            found.setdefault((major, minor), candidate)
    return {version: found[version] for version in sorted(found) if version >= (3, 12)}


def require_same_version() -> None:
    """End if the version is not the changelog's, or not that of the commit's tag."""
    version = PROJECT["version"]
    sections = re.findall(r"^## (.+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    if sections[0].split()[0] != version:
        sys.exit(f"CHANGELOG.md begins with {sections[0]}; pyproject.toml has {version}.")
    asked = ["git", "tag", "--points-at", "HEAD"]
    tags = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    wrong = [tag for tag in tags.split() if tag.startswith("v") and tag != f"v{version}"]
    if wrong:
        sys.exit(f"tag {wrong}: pyproject.toml and CHANGELOG.md have {version}.")
    if f"v{version}" in tags.split() and "not released" in sections[0]:
        sys.exit(f"tag v{version}: CHANGELOG.md begins with {sections[0]}; put the date there.")


def use(python: str, package: Path, options: list[str]) -> None:
    """Install a distribution into a clean environment and run `CHECK` there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([*UV, "venv", "--python", python, folder / "env"], check=True)
        inside = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
        install = [*UV, "pip", "install", "--python", inside, *options, package]
        subprocess.run(install, check=True)
        environment = os.environ | {"PYTENSOR_FLAGS": f"base_compiledir={folder / 'compiled'}"}
        environment.pop("PYTHONPATH", None)
        check = [inside, "-W", "ignore::FutureWarning", "-c", CHECK, PROJECT["version"]]
        subprocess.run(check, cwd=folder, env=environment, check=True)


def main() -> None:
    """Build, then install and use what was built."""
    require_same_version()
    found = pythons()
    words = ", ".join(f"{major}.{minor} ({found[major, minor]})" for major, minor in found)
    console.print(f"Python from 3.12: {words}")
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([*UV, "build", "--out-dir", folder, ROOT], check=True)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    oldest, *_ = found
    uses = [(version, wheel, []) for version in found]
    uses += [(oldest, source, []), (oldest, wheel, ["--resolution", "lowest-direct"])]
    for version, package, options in uses:
        console.print("{}.{}".format(*version), package.name, *options, "...")
        use(found[version], package, options)


if __name__ == "__main__":
    main()
