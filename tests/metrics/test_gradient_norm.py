# SPDX-License-Identifier: Apache-2.0
"""grad_norm: the norm of all gradients, as PyTorch computes it, as a running value."""

from __future__ import annotations

import math

import pytest

import pyinstrument_gpu as pig

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_it_is_the_norm_of_all_gradients(norm_type: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    model(torch.arange(6.0).reshape(2, 3)).square().sum().backward()
    metrics = pig.MetricAccumulator()
    norm = metrics.grad_norm(model.parameters(), norm_type)

    gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    wanted = torch.linalg.vector_norm(torch.cat(gradients), norm_type)
    assert norm == pytest.approx(float(wanted), rel=1e-5) and not norm.requires_grad
    assert metrics.compute()["grad_norm"] == float(norm)
    assert metrics.grad_norm(model[1].weight, norm_type, "head") <= norm
    clipped = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type)
    assert clipped == norm
    assert set(metrics.compute()) > {"head", "grad_norm"}


def test_gradients_that_are_not_finite_are_counted() -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.tensor([1.0, math.inf, 0])
    metrics = pig.MetricAccumulator()
    assert metrics.grad_norm([weight]) == math.inf
    values = metrics.compute()
    assert (values["grad_norm_nonfinite"], values["grad_norm_last"]) == (1, math.inf)


def test_no_gradients_are_no_norm() -> None:
    metrics = pig.MetricAccumulator()
    assert metrics.grad_norm([torch.ones(3, requires_grad=True)]).isnan()
    assert "grad_norm" not in metrics.compute()
