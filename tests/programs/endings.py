# SPDX-License-Identifier: Apache-2.0
"""A training that ends in its fourth step, in the way that ENDING says."""
# steps: 4
# phases: forward 4, loss 4, backward 4, optimizer 3

import os
import signal
import sys

import torch
from torch.nn import functional

from tests.programs import common

common.seed()
ending = os.environ["ENDING"]
model = common.network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (inputs, labels) in enumerate(common.loader()):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    print(f"{step} {loss.item():.6f}", flush=True)  # waits
    if step == 3:
        if ending == "code":
            sys.exit(7)
        if ending == "message":
            sys.exit("the loss is too high")
        if ending == "exception":
            raise ValueError(f"{ending}: {loss.item():.3f}")
        if ending == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGTERM)
        if ending == "at once":
            os._exit(9)
        break
    optimizer.step()
print("after the loop")
