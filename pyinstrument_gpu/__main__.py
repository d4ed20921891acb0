# SPDX-License-Identifier: Apache-2.0
"""`python -m pyinstrument_gpu` is the command `pyinstrument-gpu`."""

from pyinstrument_gpu.cli import main

if __name__ == "__main__":
    main(prog_name="pyinstrument-gpu")
