# SPDX-License-Identifier: Apache-2.0
"""A training that ends in its fourth step, in the way that ENDING says."""
# steps: 4
# phases: data 4, zero_grad 4, forward 4, loss 4, backward 4, optimizer 3

import atexit
import os
import random
import signal
import sys
import threading

import torch
from torch.nn import functional

from tests.programs import common

common.seed()
ending = os.environ["ENDING"]
model = common.network().to(common.DEVICE)  # waits
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (inputs, labels) in enumerate(common.loader()):
    inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits
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
            raise ValueError("the loss is too high")
        if ending == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if ending == "interrupt raised":
            raise KeyboardInterrupt
        if ending == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if ending == "aborted":
            os.abort()
        if ending == "exit function":
            atexit.register(int, "no number")
        if ending == "thread":
            thread = threading.Thread(target=int, args=("no number",))
            thread.start()
            thread.join()
        if ending in ("child", "child at once"):
            child = os.fork()
            if child == 0:
                random.seed(1)  # a fork seeds it anew
                optimizer.step()
                model(inputs).sum().backward()
                if ending == "child at once":
                    os._exit(3)
                sys.exit(4)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if ending == "at once":
            os._exit(9)
        break
    optimizer.step()
print("after the loop")
