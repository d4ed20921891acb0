# SPDX-License-Identifier: Apache-2.0
"""A program in the style of nanoGPT: steps that are counted, micro-batches, evaluation now and
then, checkpoints in the working directory, and a second part that resumes from one."""
# steps: 9
# phases: forward 18, loss 18, backward 18, clip 9, optimizer 9, zero_grad 9

import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tests.programs import common


def batch() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(common.BATCH, 12)
    labels = (inputs.sum(1) > 0).long()
    return inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits


@torch.no_grad()
def estimate(model: torch.nn.Module) -> float:
    model.eval()
    losses = torch.zeros(3)
    for k in range(3):
        inputs, labels = batch()
        losses[k] = functional.cross_entropy(model(inputs), labels).item()  # waits
    model.train()
    return losses.mean().item()


def train(steps: range, *, resume: bool) -> torch.nn.Module:
    model = common.network()
    model.to(common.DEVICE)  # waits
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if resume:
        saved = torch.load("checkpoint.pt", map_location=common.DEVICE)  # waits, unseen
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # waits not: it is there already
    inputs, labels = batch()
    for step in steps:
        if step % 3 == 0:
            print(f"{step} validation {estimate(model):.6f}")
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved, "checkpoint.pt")  # waits, unseen: a file is not followed
        for _ in range(2):
            loss = functional.cross_entropy(model(inputs), labels) / 2
            inputs, labels = batch()  # while a device would work on the one before
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # waits, unseen: the counters of steps are loaded to the device
        optimizer.zero_grad(set_to_none=True)
        print(f"{step} {loss.item() * 2:.6f}")  # waits
    return model


common.seed()
train(range(6), resume=False)
model = train(range(6, 9), resume=True)
Path("log.json").write_text(json.dumps({"steps": 9}))
