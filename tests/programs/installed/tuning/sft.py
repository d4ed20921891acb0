# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a tiny language model with random weights: `python -m tuning.sft`."""
# steps: 4
# phases: data 8, data end 1, forward 8, backward 8, clip 4, optimizer 4, scheduler 4, zero_grad 4

import hashlib
import random
import tempfile
import warnings

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from .trainer import TuningTrainer


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes, **heads))
    texts = torch.randint(32, (16, 12))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_steps=1000,
            dataloader_pin_memory=False,
        )
        rows = [{"input_ids": text, "labels": text} for text in texts]
        options = {"model": model, "args": arguments, "train_dataset": rows}
        trainer = TuningTrainer(**options)  # waits in transformers/modeling_utils.py
        trainer.train()  # waits in transformers/trainer.py, accelerate/utils/operations.py
    left = hashlib.sha256(
        torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode()
    )
    for parameter in model.parameters():
        left.update(parameter.detach().cpu().numpy().tobytes())  # waits
    print("state", left.hexdigest())


if __name__ == "__main__":
    main()
