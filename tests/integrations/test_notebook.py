# SPDX-License-Identifier: Apache-2.0
"""A notebook in a kernel of its own, run twice as by "Run All Cells"."""

from pathlib import Path

import pytest

LOOP = """%%gpu_phases run -o train.gpurun
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()"""
CELLS = [
    "%load_ext pyinstrument_gpu",
    "import torch\n"
    "model = torch.nn.Linear(4, 4)\n"
    "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    "data = [(torch.zeros(4), torch.zeros(4))] * 8\n"
    "loader = torch.utils.data.DataLoader(data, batch_size=2)",
    LOOP,
    "run",
    "run.page()",
    "print(run.step_totals.count, run.environment['arguments'])",
    "%%gpu_phases\nraise ValueError('mine')",
]


@pytest.mark.slow
def test_a_notebook_that_is_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "train.ipynb"))  # as Jupyter does
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel():
        for _ in range(2):
            for number, cell in enumerate(cells[:-1]):
                client.execute_cell(cell, number)
            (report,) = cells[2].outputs
            assert report.data["text/plain"].startswith("train.ipynb, 8 steps in ")
            assert "forward" in report.data["text/html"]
            assert cells[3].outputs[0].data["text/html"].count("<tr") >= 6
            assert cells[4].outputs[0].data["text/html"].startswith("<iframe ")
            assert cells[5].outputs[0].text == "8 ['train.ipynb']\n"
        with pytest.raises(nbclient.exceptions.CellExecutionError) as raised:
            client.execute_cell(cells[-1], len(cells) - 1)
        assert (raised.value.ename, raised.value.evalue) == ("ValueError", "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["train.gpurun"]
