"""Transformers' Trainer, a tiny GPT-2, instruction tuning with a compute_loss of its own: the prompt's labels are -100, only the answer counts. FAULT
at step 150: a shard of long documents begins; prompts fill the whole context, truncation leaves no token of the answer, and in this batch every
label is -100: the mean over no token is 0 / 0. The trainer's nan filter hides it in the printed loss. Without Rangewatch: loss 3.98 to 3.42 before
step 150; the interval with it prints 3.13, as that step counts 0 (the nan filter); afterwards 3.32, the weights hold no NaN: cross_entropy gives
ignored rows a gradient of 0. The fault is a step lost, hidden, and no more.
Report: nvidia-cosmos/cosmos-rl#155 (all targets are -100: cross_entropy divides by zero and gives NaN).
Cause: data (a batch without a target), or the 0 / 0 in the loss. Right: drop such rows, truncate the prompt, guard the division. Wrong: learning
rate, precision, attention mask."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [149, 152], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "bfloat16", "GradScaler", "loss scale", "attention mask"],
          "right": "label|target|data|batch|sample|ignore|-100|divi|0 ?/ ?0|empty|mean"}
import tempfile
import torch
import torch.nn.functional as F
from torch.utils.data import IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from rangewatch.integrations.transformers import RangewatchCallback

torch.manual_seed(2); torch.set_num_threads(1)
LONGEST, BATCH = 24, 4


class Instructions(IterableDataset):
    def __iter__(self):
        gen = torch.Generator().manual_seed(4)
        for row in range(BATCH * 210):
            n = LONGEST + 6 if BATCH * 150 <= row < BATCH * 151 else int(torch.randint(4, 14, (1,), generator=gen))
            prompt = torch.randint(3, 60, (n,), generator=gen)
            answer = torch.cat([prompt[:4].flip(0), torch.tensor([2])])
            ids = torch.cat([prompt, torch.tensor([1]), answer])
            labels = torch.cat([torch.full((n + 1,), -100), answer])
            room = LONGEST - len(ids)
            if room > 0:
                ids, labels = torch.cat([ids, torch.zeros(room, dtype=torch.long)]), torch.cat([labels, torch.full((room,), -100)])
            mask = torch.ones(LONGEST, dtype=torch.long)
            mask[LONGEST - max(room, 0):] = 0
            yield {"input_ids": ids[:LONGEST], "labels": labels[:LONGEST], "attention_mask": mask}


class Tuning(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits[:, :-1].float()
        nll = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
        counts = (labels[:, 1:].flatten() != -100).float()
        loss = (nll * counts).sum() / counts.sum()
        return (loss, logits) if return_outputs else loss


model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=LONGEST, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                   bos_token_id=1, eos_token_id=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(output_dir=folder, max_steps=210, per_device_train_batch_size=BATCH, learning_rate=2e-3, lr_scheduler_type="cosine",
                                  warmup_steps=10, logging_steps=15, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True)
    Tuning(model=model, args=arguments, train_dataset=Instructions(), callbacks=[RangewatchCallback()]).train()
print("weights are NaN:", any(bool(p.isnan().any()) for p in model.parameters()))
