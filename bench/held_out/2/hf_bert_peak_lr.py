"""A small BERT for sequence classification under Transformers' Trainer, linear warm-up over the whole of the first 120 steps. FAULT: the learning
rate is 5e-2, where 5e-4 was meant: it learns while the warm-up is low, then the encoder collapses, the loss goes to that of chance (log 2, above
it at times), and every row gets the same logits for good. Nothing is ever NaN. Report: huggingface/transformers#735 (same output for all
inputs; "changing my learning rate from 0.01 to 5e-5 worked for me"), huggingface/transformers#12041.
Cause: learning_rate, between step 25 and 100 of the warm-up. Right: lower the learning rate. Wrong: mask, precision, eps, leave out samples."""
EXPECT = {"cause": ["learning_rate"], "step": [25, 100], "place": None, "rank": 0,
          "wrong": ["[Mm]ask", "bfloat16", "GradScaler", "leave out samples", "larger eps"], "right": "learning rate|\\blr\\b"}
import tempfile
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from rangewatch.integrations.transformers import RangewatchCallback

torch.set_num_threads(1)
set_seed(11)


class Reviews(Dataset):
    """Tokens 10 to 19 are praise, 20 to 29 are not; the label is which of them are more."""

    def __init__(self, count, seed):
        draw = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(count):
            length = int(torch.randint(10, 24, (1,), generator=draw))
            ids = torch.randint(30, 120, (24,), generator=draw)
            label = int(torch.randint(0, 2, (1,), generator=draw))
            where = torch.randperm(length - 1, generator=draw)[:4] + 1
            ids[where] = torch.randint(10, 20, (4,), generator=draw) + 10 * label
            ids[0] = 2
            mask = (torch.arange(24) < length).long()
            self.rows.append({"input_ids": ids * mask, "attention_mask": mask, "labels": label})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


config = BertConfig(vocab_size=120, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
                    max_position_embeddings=32, num_labels=2)
model = BertForSequenceClassification(config)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, max_steps=170, per_device_train_batch_size=32, learning_rate=5e-2, warmup_steps=120,
        weight_decay=0.01, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, seed=11, disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=Reviews(1024, 1), callbacks=[RangewatchCallback()]).train()
