"""Fetches and builds llama.cpp's llama-bench, the peer that Spillway is compared with on the CPU.

The sources are those inside the PyPI source package of llama-cpp-python, checked by SHA-256, built with GGML_NATIVE=ON for
the processor at hand and kept in the user's cache folder. A second call costs nothing.
"""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
CMAKE_OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF",
                 "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_UI=OFF",
                 "-DLLAMA_BUILD_MTMD=OFF"]


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME", "")
    return pathlib.Path(base if base.startswith("/") else pathlib.Path.home() / ".cache") / "spillway" / "peers"


def run(what, command, **options):
    print(f"peer: {what}", file=sys.stderr, flush=True)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        sys.exit(f"peer: {what} failed: {' '.join(map(str, command))}\n{done.stdout[-3000:]}")


def fetch_sources(folder):
    """The checked source package; pip needs the package's build back end at hand to download it."""
    package = folder / f"llama_cpp_python-{VERSION}.tar.gz"
    if not package.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            python = pathlib.Path(scratch) / "venv/bin/python"
            run("making a virtual environment", [sys.executable, "-m", "venv", pathlib.Path(scratch) / "venv"])
            pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
            run("installing scikit-build-core into it", pip + ["install", "scikit-build-core"])
            run("downloading the sources (77 MB)", pip + [
                "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", scratch,
                f"llama-cpp-python=={VERSION}"])
            (pathlib.Path(scratch) / package.name).rename(package)
    found = hashlib.sha256(package.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"peer: {package} has sha256 {found}, expected {SHA256}; delete it and run again")
    return package


def llama_bench(jobs):
    """The path of a built llama-bench."""
    folder = cache_folder() / f"llama.cpp-{VERSION}"
    binary = folder / "build/bin/llama-bench"
    if binary.exists():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    package = fetch_sources(folder)
    sources = folder / f"llama_cpp_python-{VERSION}/vendor/llama.cpp"
    if not sources.exists():
        run("unpacking", ["tar", "-xzf", package, "-C", folder, "--no-same-owner"])
    run("configuring", ["cmake", "-S", sources, "-B", folder / "build", "-G", "Ninja", *CMAKE_OPTIONS])
    run("building llama-bench (some minutes)", ["cmake", "--build", folder / "build", "--target", "llama-bench", "-j", str(jobs)])
    return binary
